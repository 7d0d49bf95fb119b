// Tests: core/base/sha256.cpp
#include "lockstep/core/base/sha256.h"

#include <string>

#include <gtest/gtest.h>

namespace lockstep::internal {
namespace {

std::string hash_of(std::string_view text) { return to_hex(Sha256().add(text).hash()); }
std::string hmac_of(std::string_view secret, std::string_view text) {
  return to_hex(HmacSha256(std::as_bytes(std::span(secret))).add(text).hash());
}

// Examples of FIPS 180-4.
TEST(Sha256, IsThatOfTheStandard) {
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowItIsAdded) {
  const std::string text(300, 'x');
  for (std::size_t length = 0; length <= text.size(); ++length) {
    Sha256 in_pieces;
    for (std::size_t at = 0; at < length; at += 7)
      in_pieces.add(std::string_view(text).substr(at, std::min<std::size_t>(7, length - at)));
    EXPECT_EQ(to_hex(in_pieces.hash()), hash_of(std::string_view(text).substr(0, length))) << length;
  }
}

// Cases 1, 2, 3 and 6 of RFC 4231.
TEST(HmacSha256, IsThatOfTheStandard) {
  EXPECT_EQ(hmac_of(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_of("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_of(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hmac_of(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Sha256, AnyDifferenceIsSeen) {
  const Sha256Hash hash = Sha256().add("abc").hash();
  EXPECT_TRUE(are_equal(hash, hash));
  for (std::size_t i = 0; i < hash.size(); ++i) {
    Sha256Hash other = hash;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(are_equal(hash, other)) << i;
  }
}

}  // namespace
}  // namespace lockstep::internal
