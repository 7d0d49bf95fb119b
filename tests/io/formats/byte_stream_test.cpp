// Tests: io/formats/byte_stream.cpp
#include "lockstep/io/formats/internal/byte_stream.h"

#include <algorithm>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/io/files/files.h"
#include "support/packed.h"
#include "support/record_files.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using internal::ByteStream;
using testing::error_of;
using testing::gzip_of;
using ::testing::HasSubstr;
using testing::write_to;
using testing::zlib_of;

bool never_plain(std::string_view) { return false; }

std::string read_all(ByteStream& stream) {
  std::string bytes;
  stream.append_to(bytes, ~std::uint64_t{0} >> 1U);
  return bytes;
}

// Numbers in words: packs to a fifth or so.
std::string some_text(std::size_t bytes) {
  std::mt19937 random(7);
  std::string text;
  while (text.size() < bytes) text += std::to_string(random() % 5000) + " and ";
  text.resize(bytes);
  return text;
}

class ByteStreams : public ::testing::Test {
 protected:
  std::string contents(const std::string& bytes, Compression compression = Compression::kAuto) {
    ByteStream stream(write_to(folder_ / "f", bytes), compression, never_plain);
    return read_all(stream);
  }
  TemporaryFolder folder_;
};

TEST_F(ByteStreams, GivePlainAndPackedContents) {
  for (const std::size_t size : {0U, 1U, 1000U, 262144U, 262145U, 1000000U}) {
    const std::string text = some_text(size);
    EXPECT_EQ(contents(text), text);
    EXPECT_EQ(contents(gzip_of(text)), text);
    EXPECT_EQ(contents(zlib_of(text)), text);
    EXPECT_EQ(contents(gzip_of(text), Compression::kGzip), text);
    EXPECT_EQ(contents(zlib_of(text), Compression::kZlib), text);
    EXPECT_EQ(contents(gzip_of(text), Compression::kNone), gzip_of(text));
  }
}

// By RFC 1952 and RFC 1951: a header, one stored block "hi\n", the CRC-32 and the size.
TEST_F(ByteStreams, UnpackAGzipFileThatWasMadeByHand) {
  const std::string bytes(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
      "\x01\x03\x00\xfc\xffhi\n"
      "\x7a\x7a\x6f\xed\x03\x00\x00\x00",
      26);
  EXPECT_EQ(contents(bytes), "hi\n");
}

TEST_F(ByteStreams, ReadAllMembersOfAGzipFile) {
  const std::string text = some_text(300000);
  EXPECT_EQ(contents(gzip_of(text) + gzip_of("") + gzip_of("tail")), text + "tail");
  std::string many;
  for (int i = 0; i < 1000; ++i) many += gzip_of("ab");
  EXPECT_EQ(contents(many).size(), 2000U);
}

TEST_F(ByteStreams, AskTheFormatAboutPlainFilesThatBeginLikePackedOnes) {
  const auto plain = [](std::string_view) { return true; };
  for (const std::string bytes : {"\x1f\x8b\x08 text", "x^2,y^2\n"}) {
    ByteStream stream(write_to(folder_ / "f", bytes), Compression::kAuto, plain);
    EXPECT_EQ(stream.compression(), Compression::kNone);
    EXPECT_EQ(read_all(stream), bytes);
  }
  ByteStream text(write_to(folder_ / "f", "x^2,y^2\n"), Compression::kAuto, ByteStream::begins_as_text);
  EXPECT_EQ(text.compression(), Compression::kNone);
  ByteStream gzip(write_to(folder_ / "f", gzip_of("a")), Compression::kAuto, ByteStream::begins_as_text);
  EXPECT_EQ(gzip.compression(), Compression::kGzip);
}

TEST_F(ByteStreams, SayHowFarTheyAre) {
  ByteStream plain(write_to(folder_ / "f", "0123456789"), Compression::kAuto, never_plain);
  EXPECT_EQ(plain.most_left(), 10U);
  EXPECT_EQ(plain.peek(4).substr(0, 4), "0123");
  plain.skip(4);
  EXPECT_EQ(plain.offset(), 4U);
  EXPECT_EQ(plain.file_offset(), 4U);
  EXPECT_EQ(plain.most_left(), 6U);
  const std::string text = some_text(500000), bytes = gzip_of(text);
  ByteStream packed(write_to(folder_ / "f", bytes), Compression::kAuto, never_plain);
  EXPECT_GE(packed.most_left(), text.size());
  EXPECT_EQ(read_all(packed), text);
  EXPECT_EQ(packed.offset(), text.size());
  EXPECT_EQ(packed.file_offset(), bytes.size());
  EXPECT_EQ(packed.most_left(), 0U);
}

// Any mix of peeks, reads and seeks gives what the same calls give on a string.
TEST_F(ByteStreams, AgreeWithAStringUnderRandomCalls) {
  const std::string text = some_text(900000);
  for (const std::string& bytes :
       {text, gzip_of(text), zlib_of(text), gzip_of(text.substr(0, 400000)) + gzip_of(text.substr(400000))}) {
    ByteStream stream(write_to(folder_ / "f", bytes), Compression::kAuto, never_plain);
    std::mt19937 random(11);
    std::size_t at = 0;
    for (int i = 0; i < 300; ++i) {
      const std::size_t size = random() % (random() % 3 == 0 ? 300000 : 3000);
      if (random() % 8 == 0) {
        at = random() % (text.size() + 1);
        stream.seek(at);
      } else if (random() % 2 == 0) {
        std::string to(size, '\0');
        to.resize(stream.read(to.data(), to.size()));
        ASSERT_EQ(to, text.substr(at, size));
        at += to.size();
      } else {
        const std::size_t wanted = std::min(size, ByteStream::kBuffer);
        const std::string_view seen = stream.peek(wanted);
        ASSERT_GE(seen.size(), std::min(wanted, text.size() - at));
        ASSERT_EQ(seen, text.substr(at, seen.size()));
        const std::size_t step = std::min(seen.size(), wanted);
        stream.skip(step);
        at += step;
      }
      ASSERT_EQ(stream.offset(), at);
    }
  }
}

TEST_F(ByteStreams, RefuseToGoBehindTheEnd) {
  for (const std::string& bytes : {std::string("0123456789"), gzip_of("0123456789")}) {
    ByteStream stream(write_to(folder_ / "f", bytes), Compression::kAuto, never_plain);
    stream.seek(10);
    EXPECT_THAT(error_of([&] { stream.seek(11); }),
                HasSubstr("cannot go to byte 11 of the contents, which have only 10"));
    stream.rewind();
    EXPECT_EQ(read_all(stream), "0123456789");
  }
}

TEST_F(ByteStreams, FindDamage) {
  const std::string text = some_text(3000), gzip = gzip_of(text), zlib = zlib_of(text);
  const auto failure = [&](const std::string& bytes, Compression compression = Compression::kAuto) {
    return error_of([&] { contents(bytes, compression); });
  };
  EXPECT_THAT(failure(gzip.substr(0, gzip.size() - 1)),
              HasSubstr("the file ends inside its packed contents"));
  EXPECT_THAT(failure(gzip.substr(0, 100)), HasSubstr("byte 100: the file ends inside"));
  EXPECT_THAT(failure("", Compression::kGzip), HasSubstr("byte 0: the file ends inside"));
  EXPECT_THAT(failure(zlib.substr(0, zlib.size() - 1)), HasSubstr("the file ends inside"));
  EXPECT_THAT(failure(gzip + "junk"), HasSubstr("DataLoss"));
  EXPECT_THAT(failure(zlib + "junk"), HasSubstr("something follows"));
  EXPECT_THAT(failure("plain text", Compression::kGzip), HasSubstr("incorrect header check"));
  std::string wrong_sum = gzip;
  wrong_sum[gzip.size() - 5] ^= 1;
  EXPECT_THAT(failure(wrong_sum), HasSubstr("incorrect data check"));
  EXPECT_THAT(failure(wrong_sum), HasSubstr((folder_ / "f").string()));
  std::string wrong_size = gzip;
  wrong_size[gzip.size() - 1] ^= 1;
  EXPECT_THAT(failure(wrong_size), HasSubstr("incorrect length check"));
}

// What comes before the damage can be read; then each flipped byte is an error or harmless (in the header).
TEST_F(ByteStreams, NeverGiveOtherContentsWithoutAnError) {
  const std::string text = some_text(2000), gzip = gzip_of(text);
  for (std::size_t i = 10; i < gzip.size(); ++i) {
    std::string damaged = gzip;
    damaged[i] ^= 0x10;
    EXPECT_THAT(error_of([&] { EXPECT_EQ(contents(damaged), text); }), HasSubstr("DataLoss")) << i;
  }
}

TEST_F(ByteStreams, NoticeThatAFileShrinks) {
  const std::string text = some_text(600000);
  ByteStream stream(write_to(folder_ / "f", text), Compression::kNone, never_plain);
  EXPECT_EQ(stream.peek(10).substr(0, 3), text.substr(0, 3));
  std::filesystem::resize_file(folder_ / "f", 300000);
  EXPECT_THAT(error_of([&] { read_all(stream); }), HasSubstr("it ends early"));
}

}  // namespace
}  // namespace lockstep
