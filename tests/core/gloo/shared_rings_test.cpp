// Tests: core/gloo/shared_rings.cpp
#include "lockstep/core/gloo/internal/shared_rings.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/gloo/internal/mesh.h"

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Two participants that have found each other.
struct TwoOfThem {
  TwoOfThem() {
    EXPECT_TRUE(one->join(1, other->description()));
    EXPECT_TRUE(other->join(0, one->description()));
    one->close_door();
    other->close_door();
  }
  std::unique_ptr<SharedRings> one = SharedRings::make(0, 2), other = SharedRings::make(1, 2);
};

std::vector<std::byte> bytes_of(std::size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((i * 131 + static_cast<std::size_t>(seed) * 7) % 251);
  return bytes;
}

// Messages of all sizes, also of several times the ring's, arrive whole and in order.
TEST(SharedRings, CarryMessagesOfAnySize) {
  TwoOfThem both;
  std::vector<std::vector<std::byte>> messages;
  int seed = 0;
  for (const std::size_t size :
       std::vector<std::size_t>{0, 1, 63, 64, 65, 4096, 100'000, 262'144, 262'145, 3'000'001, 1, 0, 700'000})
    messages.push_back(bytes_of(size, ++seed));
  std::jthread sender([&] {
    RingTransfers sends;
    for (const auto& message : messages) both.one->send(1, 5, message.data(), message.size(), sends);
    for (std::size_t i = 0; i < messages.size(); ++i) both.one->await(sends);
    EXPECT_EQ(sends.under_way, 0U);
  });
  for (const auto& message : messages) {
    std::vector<std::byte> got(message.size() + 8);  // room for more is no harm
    RingTransfers receives;
    both.other->receive(0, 5, got.data(), got.size(), receives);
    both.other->await(receives);
    got.resize(message.size());
    EXPECT_EQ(got, message);
  }
}

// Both ways at once, more than fits into the rings: whoever waits goes on with what it sends, too.
TEST(SharedRings, BothMaySendFirst) {
  TwoOfThem both;
  const auto play = [](SharedRings& rings, int peer) {
    const std::vector<std::byte> own = bytes_of(5'000'000, peer), expected = bytes_of(5'000'000, 1 - peer);
    std::vector<std::byte> got(own.size());
    RingTransfers sends, receives;
    rings.receive(peer, 1, got.data(), got.size(), receives);
    rings.send(peer, 1, own.data(), own.size(), sends);
    rings.await(receives);
    rings.await(sends);
    EXPECT_EQ(got, expected);
  };
  std::jthread other([&] { play(*both.other, 0); });
  play(*both.one, 1);
}

TEST(SharedRings, MessagesAreMatchedSlotBySlot) {
  TwoOfThem both;
  const std::vector<std::byte> first = bytes_of(100, 1), second = bytes_of(200, 2), third = bytes_of(300, 3);
  RingTransfers sends;
  both.one->send(1, 1, first.data(), first.size(), sends);
  both.one->send(1, 2, second.data(), second.size(), sends);
  both.one->send(1, 1, third.data(), third.size(), sends);
  std::vector<std::byte> a(400), b(400), c(400);
  RingTransfers ones, twos;
  both.other->receive(0, 1, a.data(), a.size(), ones);
  both.other->receive(0, 1, b.data(), b.size(), ones);
  both.other->receive(0, 2, c.data(), c.size(), twos);
  both.other->await(ones);
  both.other->await(ones);
  both.other->await(twos);
  a.resize(100);
  b.resize(300);
  c.resize(200);
  EXPECT_EQ(a, first);
  EXPECT_EQ(b, third);
  EXPECT_EQ(c, second);
}

TEST(SharedRings, AMessageThatIsTooLongIsAnErrorAndTouchesNothingElse) {
  TwoOfThem both;
  const std::vector<std::byte> message = bytes_of(200, 1);
  RingTransfers sends;
  both.one->send(1, 1, message.data(), message.size(), sends);
  std::vector<std::byte> got(200, std::byte{9});
  RingTransfers receives;
  both.other->receive(0, 1, got.data(), 100, receives);
  try {
    both.other->await(receives);
    FAIL() << "expected an error";
  } catch (const GlooLost& error) {
    EXPECT_THAT(error.what(), HasSubstr("a message of 200 bytes came where 100 were expected"));
  }
  EXPECT_EQ(got, std::vector<std::byte>(200, std::byte{9}));
  EXPECT_THROW(both.other->await(receives), GlooInterrupted) << "nothing can be matched any more";
  both.other->forget(receives);
}

TEST(SharedRings, WhoeverWaitsIsInterrupted) {
  TwoOfThem both;
  std::byte byte{};
  RingTransfers receives;
  both.other->receive(0, 1, &byte, 1, receives);
  std::jthread later([&] {
    std::this_thread::sleep_for(30ms);
    both.other->interrupt();
  });
  EXPECT_THROW(both.other->await(receives), GlooInterrupted);
  EXPECT_THROW(both.other->await(receives), GlooInterrupted) << "and so is whoever comes later";
  EXPECT_THROW(both.other->receive(0, 1, &byte, 1, receives), GlooInterrupted);
  EXPECT_THROW(both.other->send(0, 1, &byte, 1, receives), GlooInterrupted);
  both.other->forget(receives);
}

TEST(SharedRings, NothingTouchesWhatIsForgotten) {
  TwoOfThem both;
  std::vector<std::byte> got(300'000, std::byte{9});
  {
    RingTransfers receives;
    both.other->receive(0, 1, got.data(), got.size(), receives);
    both.other->forget(receives);
  }
  const std::vector<std::byte> message = bytes_of(got.size(), 1);
  RingTransfers sends, later;
  both.one->send(1, 1, message.data(), message.size(), sends);
  EXPECT_THROW(both.other->await(later), GlooInterrupted);
  EXPECT_EQ(got, std::vector<std::byte>(300'000, std::byte{9}));
  both.one->forget(sends);
}

// --- finding each other

TEST(SharedRings, NothingElseIsTakenForTheMemoryOfAParticipant) {
  const auto rings = SharedRings::make(0, 2), other = SharedRings::make(1, 2),
             larger = SharedRings::make(1, 3);
  const std::string right = other->description();
  ASSERT_TRUE(SharedRings::are_near(right, rings->description()));
  const std::string place = right.substr(0, right.find(' ')), token = right.substr(right.rfind(' ') + 1);
  const auto of = [&](const std::string& process, const std::string& file, const std::string& its_token) {
    return place + ' ' + process + ' ' + file + ' ' + its_token;
  };
  const std::string own = std::to_string(getpid());
  EXPECT_FALSE(rings->join(1, ""));
  EXPECT_FALSE(rings->join(1, "none"));
  EXPECT_FALSE(rings->join(1, "a b c"));
  EXPECT_FALSE(rings->join(1, of(own, "x", token)));
  EXPECT_FALSE(rings->join(1, of(own, "99999999999999999999", token)));
  EXPECT_FALSE(rings->join(1, of("-1", "3", token)));
  EXPECT_FALSE(rings->join(1, of(own, "0", token))) << "no memory";
  EXPECT_FALSE(rings->join(1, larger->description())) << "of a group of three";
  EXPECT_FALSE(rings->join(1, right.substr(0, right.size() - 1) + (right.back() == '0' ? '1' : '0')));
  EXPECT_FALSE(rings->join(1, right + "0"));
  EXPECT_TRUE(rings->join(1, right));
  other->close_door();
  EXPECT_FALSE(rings->join(1, right)) << "later nobody finds it";
}

TEST(SharedRings, AreNearOnOneMachineAndInOneNetwork) {
  EXPECT_TRUE(SharedRings::are_near("here 1 2 t", "here 2 4 u"));
  EXPECT_FALSE(SharedRings::are_near("here 1 2 t", "there 1 2 t"));
  EXPECT_FALSE(SharedRings::are_near("here 1 2 t", "none"));
  EXPECT_FALSE(SharedRings::are_near("", ""));
}

}  // namespace
}  // namespace lockstep::internal
