// Tests: io/formats/text_lines.cpp, io/formats/line_scanner.cpp, io/formats/fixed_length.cpp
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/io/formats/fixed_length.h"
#include "lockstep/io/formats/text_lines.h"
#include "support/packed.h"
#include "support/record_files.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::all_records;
using ::testing::ElementsAre;
using testing::error_of;
using testing::gzip_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::records_from_each_position;
using testing::write_to;
using testing::zlib_of;

using namespace std::string_literals;

// --- lines

class TextLines : public ::testing::Test {
 protected:
  std::vector<std::string> lines(const std::string& bytes, const TextLineOptions& options = {}) {
    return all_records(*open_text_lines(write_to(folder_ / "f", bytes), options));
  }
  TemporaryFolder folder_;
};

TEST_F(TextLines, EndAsOnEverySystem) {
  EXPECT_THAT(lines("a\nb\r\nc"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(lines("a\n"), ElementsAre("a"));
  EXPECT_THAT(lines("a\n\n\r\n\nb\n"), ElementsAre("a", "", "", "", "b"));
  EXPECT_THAT(lines(""), IsEmpty());
  EXPECT_THAT(lines("\n"), ElementsAre(""));
  EXPECT_THAT(lines("a\rb\r\r\nc\r"), ElementsAre("a\rb\r", "c\r"));
  EXPECT_THAT(lines("a\0b\n\xff"s), ElementsAre("a\0b"s, "\xff"));
}

TEST_F(TextLines, ComeFromPackedFiles) {
  EXPECT_THAT(lines(gzip_of("a\nb\n")), ElementsAre("a", "b"));
  EXPECT_THAT(lines(zlib_of("a\nb\n"), {.compression = Compression::kZlib}), ElementsAre("a", "b"));
  EXPECT_THAT(lines("x^2\n"), ElementsAre("x^2"));  // begins like zlib
}

TEST_F(TextLines, GoOnFromEachPosition) {
  std::mt19937 random(4);
  std::string text;
  std::vector<std::string> wanted;
  for (int i = 0; i < 300; ++i) {
    wanted.emplace_back(random() % (i % 50 == 0 ? 300000 : 60), static_cast<char>('a' + i % 26));
    text += wanted.back() + (random() % 2 == 0 ? "\n" : "\r\n");
  }
  for (const std::string& bytes : {text, gzip_of(text)})
    EXPECT_EQ(records_from_each_position(*open_text_lines(write_to(folder_ / "f", bytes))), wanted);
}

TEST_F(TextLines, AreBounded) {
  const TextLineOptions ten{.line_bytes = 10};
  EXPECT_THAT(lines("0123456789\r\n0123456789\n0123456789", ten),
              ElementsAre("0123456789", "0123456789", "0123456789"));
  for (const std::string end : {"", "\n", "\r\n", "\r"}) {
    EXPECT_THAT(error_of([&] { lines("a\n0123456789a" + end, ten); }),
                HasSubstr("f: line 2 has more than 10 bytes"));
  }
  EXPECT_THAT(error_of([&] { lines("0123456789\r", ten); }), HasSubstr("line 1"));
  EXPECT_THAT(error_of([&] { lines(std::string(5 << 20, 'a')); }), HasSubstr("InvalidArgument"));
}

// --- blocks

class FixedLength : public ::testing::Test {
 protected:
  std::vector<std::string> blocks(const std::string& bytes, const FixedLengthOptions& options) {
    return records_from_each_position(*open_fixed_length(write_to(folder_ / "f", bytes), options));
  }
  std::string failure(const std::string& bytes, const FixedLengthOptions& options) {
    return error_of([&] { all_records(*open_fixed_length(write_to(folder_ / "f", bytes), options)); });
  }
  TemporaryFolder folder_;
};

TEST_F(FixedLength, CutsAFileIntoRecords) {
  EXPECT_THAT(blocks("abcdef", {.record_bytes = 2}), ElementsAre("ab", "cd", "ef"));
  EXPECT_THAT(blocks("HHHabcdefF", {.record_bytes = 3, .header_bytes = 3, .footer_bytes = 1}),
              ElementsAre("abc", "def"));
  EXPECT_THAT(blocks("HHHF", {.record_bytes = 3, .header_bytes = 3, .footer_bytes = 1}), IsEmpty());
  EXPECT_THAT(blocks("", {.record_bytes = 3}), IsEmpty());
  const std::string large(600000, 'x');
  EXPECT_THAT(blocks(large + large, {.record_bytes = 600000}), ElementsAre(large, large));
}

TEST_F(FixedLength, UnpacksIfToldTo) {
  const FixedLengthOptions packed{
      .record_bytes = 3, .header_bytes = 3, .footer_bytes = 1, .compression = Compression::kAuto};
  EXPECT_THAT(blocks(gzip_of("HHHabcdefF"), packed), ElementsAre("abc", "def"));
  EXPECT_THAT(blocks(gzip_of("HHHF"), packed), IsEmpty());
  EXPECT_THAT(blocks("\x1f\x8b", {.record_bytes = 1}), ElementsAre("\x1f", "\x8b"));
}

TEST_F(FixedLength, BeginsAgainFromTheDefaultPosition) {
  const auto reader =
      open_fixed_length(write_to(folder_ / "f", "HHHabc"), {.record_bytes = 3, .header_bytes = 3});
  EXPECT_EQ(reader->position(), (ReadPosition{3, 0}));
  EXPECT_THAT(all_records(*reader), ElementsAre("abc"));
  reader->seek({});
  EXPECT_THAT(all_records(*reader), ElementsAre("abc"));
}

TEST_F(FixedLength, RefusesFilesOfAnotherLength) {
  EXPECT_THAT(failure("abcde", {.record_bytes = 2}),
              HasSubstr("it has 5 bytes, which are 2 records of 2 bytes and 1 more"));
  EXPECT_THAT(failure("HF", {.record_bytes = 2, .header_bytes = 2, .footer_bytes = 1}),
              HasSubstr("DataLoss"));
  EXPECT_THAT(failure("H", {.record_bytes = 2, .header_bytes = ~std::uint64_t{0}}),
              HasSubstr("shorter than the header"));
  EXPECT_THAT(failure("H", {.record_bytes = 2, .footer_bytes = ~std::uint64_t{0}}),
              HasSubstr("shorter than the header"));
  EXPECT_THAT(failure("ab", {.record_bytes = 0}), HasSubstr("record_bytes is 0"));
  const FixedLengthOptions packed{
      .record_bytes = 3, .header_bytes = 3, .footer_bytes = 2, .compression = Compression::kGzip};
  EXPECT_THAT(failure(gzip_of("HHHabcdFF"), packed),
              HasSubstr("record 1 at byte 6 of the unpacked contents: the file ends after"));
  EXPECT_THAT(failure(gzip_of("HHHabcF"), packed), HasSubstr("DataLoss"));
  EXPECT_THAT(failure(gzip_of("HH"), packed), HasSubstr("shorter than the header"));
  EXPECT_THAT(
      failure(gzip_of("HH"), {.record_bytes = 3, .footer_bytes = 1 << 20, .compression = Compression::kGzip}),
      HasSubstr("in plain files only"));
}

}  // namespace
}  // namespace lockstep
