// Tests: io/formats/tfrecord.cpp, io/formats/record_reader.cpp
#include "lockstep/io/formats/tfrecord.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/io/files/files.h"
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
using testing::tfrecord_head;
using testing::tfrecord_of;
using testing::write_to;
using testing::zlib_of;

class TfRecord : public ::testing::Test {
 protected:
  std::unique_ptr<RecordReader> open(const std::string& bytes, const TfRecordOptions& options = {}) {
    return open_tfrecord(write_to(folder_ / "f", bytes), options);
  }
  std::vector<std::string> read(const std::string& bytes, const TfRecordOptions& options = {}) {
    return all_records(*open(bytes, options));
  }
  std::string failure(const std::string& bytes, const TfRecordOptions& options = {}) {
    return error_of([&] { read(bytes, options); });
  }
  TemporaryFolder folder_;
};

// "abc", by the definition: length 3, and checksums from TensorFlow's masked_crc32c.
TEST_F(TfRecord, ReadsWhatTheDefinitionSays) {
  const std::string bytes = tfrecord_of("abc") + tfrecord_of("") + tfrecord_of(std::string(70000, 'x'));
  EXPECT_THAT(read(bytes), ElementsAre("abc", "", std::string(70000, 'x')));
  EXPECT_THAT(read(""), IsEmpty());
}

TEST_F(TfRecord, FramesAsTheDefinitionSays) {
  std::string framed = "before";
  append_tfrecord(framed, "abc");
  EXPECT_EQ(framed, "before" + tfrecord_of("abc"));
}

TEST_F(TfRecord, RecognisesPackedFiles) {
  const std::string bytes = tfrecord_of("abc") + tfrecord_of("defg");
  EXPECT_THAT(read(gzip_of(bytes)), ElementsAre("abc", "defg"));
  EXPECT_THAT(read(zlib_of(bytes)), ElementsAre("abc", "defg"));
  EXPECT_THAT(read(gzip_of(tfrecord_of("abc")) + gzip_of(tfrecord_of("defg"))), ElementsAre("abc", "defg"));
}

// The length 0x088b1f begins like gzip, and 0x9c78 like zlib: the checksum of the length tells them apart.
TEST_F(TfRecord, TakesALengthThatLooksLikeAMarkForALength) {
  for (const std::size_t length : {0x088b1fU, 0x9c78U, 0x0178U}) {
    const std::string record(length, 'r');
    EXPECT_THAT(read(tfrecord_of(record)), ElementsAre(record));
  }
}

TEST_F(TfRecord, GoesOnFromEachPosition) {
  std::mt19937 random(3);
  std::string bytes;
  std::vector<std::string> records;
  for (int i = 0; i < 60; ++i) {
    records.emplace_back(random() % (i % 20 == 0 ? 400000 : 400), static_cast<char>('a' + i % 26));
    bytes += tfrecord_of(records.back());
  }
  for (const std::string& file : {bytes, gzip_of(bytes)})
    EXPECT_EQ(testing::records_from_each_position(*open(file)), records);
}

TEST_F(TfRecord, SaysItsPosition) {
  const auto reader = open(tfrecord_of("abc") + tfrecord_of("de"));
  EXPECT_EQ(reader->position(), (ReadPosition{0, 0}));
  std::string record;
  reader->next(record);
  EXPECT_EQ(reader->position(), (ReadPosition{19, 1}));
  EXPECT_EQ(reader->bytes_read(), 19U);
  reader->next(record);
  EXPECT_FALSE(reader->next(record));
  EXPECT_FALSE(reader->next(record));
  EXPECT_EQ(reader->position(), (ReadPosition{37, 2}));
  EXPECT_THAT(error_of([&] {
                reader->seek({38, 3});
              }),
              HasSubstr("have only 37; the position belongs to another file"));
}

TEST_F(TfRecord, NamesDamageAndItsPlace) {
  const std::string good = tfrecord_of("abc"), bytes = good + tfrecord_of("defg");
  std::string wrong_data = bytes;
  wrong_data[19 + 12] ^= 1;
  EXPECT_THAT(failure(wrong_data), HasSubstr("f: record 1 at byte 19: the checksum of its 4 bytes is wrong"));
  std::string wrong_length = bytes;
  wrong_length[19] ^= 1;
  EXPECT_THAT(failure(wrong_length), HasSubstr("record 1 at byte 19: the checksum of its length is wrong"));
  EXPECT_THAT(failure(good + "abc"), HasSubstr("the file ends 3 bytes into its length"));
  EXPECT_THAT(failure(bytes.substr(0, bytes.size() - 1)),
              HasSubstr("claims 4 bytes and a checksum of 4, and the file ends after 7"));
  EXPECT_THAT(failure(good + tfrecord_head(std::uint64_t{1} << 62U)), HasSubstr("DataLoss"));
  EXPECT_THAT(failure(good + tfrecord_head(~std::uint64_t{0})), HasSubstr("DataLoss"));
  EXPECT_THAT(failure(gzip_of(good + tfrecord_head(100000000))), HasSubstr("of the unpacked contents"));
  EXPECT_THAT(failure("some text that is no TFRecord"), HasSubstr("this is no file of TFRecords"));
}

// Every flipped bit of a file is noticed, and none makes the reader give another record.
TEST_F(TfRecord, NoticesEveryFlippedBit) {
  const std::string bytes = tfrecord_of("abc") + tfrecord_of("defgh");
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THAT(failure(damaged), HasSubstr("DataLoss")) << bit;
  }
}

TEST_F(TfRecord, ThrowsAgainUntilItIsSentElsewhere) {
  std::string bytes = tfrecord_of("abc") + tfrecord_of("defg") + tfrecord_of("h");
  bytes[19 + 12] ^= 1;
  const auto reader = open(bytes);
  std::string record;
  reader->next(record);
  EXPECT_THROW(reader->next(record), Error);
  EXPECT_THROW(reader->next(record), Error);
  EXPECT_EQ(reader->position(), (ReadPosition{19, 1}));
  reader->seek({39, 2});
  EXPECT_TRUE(reader->next(record));
  EXPECT_EQ(record, "h");
  reader->seek({0, 0});
  EXPECT_TRUE(reader->next(record));
  EXPECT_EQ(record, "abc");
}

TEST_F(TfRecord, PassesOverDamageIfToldTo) {
  const TfRecordOptions ignore{.ignore_errors = true};
  const auto left = [&](const std::string& bytes) {
    const auto reader = open(bytes, ignore);
    const std::vector<std::string> records = all_records(*reader);
    return std::pair(records, reader->dropped());
  };
  const std::string bytes = tfrecord_of("abc") + tfrecord_of("defg") + tfrecord_of("h");
  using Records = std::vector<std::string>;
  std::string wrong_data = bytes;
  wrong_data[19 + 12] ^= 1;
  EXPECT_EQ(left(wrong_data), std::pair(Records({"abc", "h"}), std::uint64_t{1}));
  EXPECT_EQ(left(gzip_of(wrong_data)), std::pair(Records({"abc", "h"}), std::uint64_t{1}));
  std::string wrong_length = bytes;
  wrong_length[19] ^= 1;
  EXPECT_EQ(left(wrong_length), std::pair(Records({"abc"}), std::uint64_t{1}));
  EXPECT_EQ(left(bytes.substr(0, bytes.size() - 2)), std::pair(Records({"abc", "defg"}), std::uint64_t{1}));
  const std::string packed = gzip_of(bytes);
  EXPECT_EQ(left(packed.substr(0, packed.size() - 8)),
            std::pair(Records({"abc", "defg", "h"}), std::uint64_t{1}));
  EXPECT_EQ(left(bytes), std::pair(Records({"abc", "defg", "h"}), std::uint64_t{0}));
}

TEST_F(TfRecord, RefusesRecordsAboveTheLimit) {
  const std::string bytes = tfrecord_of(std::string(1000, 'x'));
  const TfRecordOptions tight{.ignore_errors = true, .limits = {.base_bytes = 100, .bytes_per_byte = 0}};
  EXPECT_THAT(failure(bytes, tight), HasSubstr("InvalidArgument"));
  EXPECT_THAT(failure(bytes, tight), HasSubstr("it has 1000 bytes, more than the limit of 100"));
}

TEST_F(TfRecord, WritesWhatItReads) {
  std::vector<std::string> records;
  for (int i = 0; i < 300; ++i)
    records.emplace_back(static_cast<std::size_t>(i) * 37 % 5000, static_cast<char>(i));
  records.emplace_back(700000, 'z');
  for (const auto& [name, compression] :
       {std::pair("plain", Compression::kAuto), std::pair("a.gz", Compression::kAuto),
        std::pair("zlib", Compression::kZlib), std::pair("gzip", Compression::kGzip)}) {
    const std::filesystem::path path = folder_ / name;
    TfRecordWriter writer(path, compression);
    for (const std::string& record : records) writer.append(record);
    EXPECT_FALSE(std::filesystem::exists(path));
    writer.commit();
    EXPECT_EQ(all_records(*open_tfrecord(path)), records);
  }
  std::string expected;
  for (const std::string& record : records) expected += tfrecord_of(record);
  EXPECT_EQ(read_file(folder_ / "plain"), expected);
  EXPECT_EQ(read_file(folder_ / "a.gz").substr(0, 2), "\x1f\x8b");
}

TEST_F(TfRecord, LeavesNothingWithoutCommit) {
  { TfRecordWriter(folder_ / "f").append("abc"); }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(TfRecord, SaysThatAFileIsMissing) {
  EXPECT_THROW(open_tfrecord(folder_ / "missing"), NotFound);
  EXPECT_THROW(open_tfrecord(folder_.path()), FailedPrecondition);
}

}  // namespace
}  // namespace lockstep
