// Tests: io/datasets/files.cpp
#include "lockstep/io/datasets/files.h"

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/files/npy.h"
#include "lockstep/io/formats/example.h"
#include "lockstep/io/formats/tfrecord.h"
#include "support/program_test.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DatasetFiles : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }

  // Record i: an "x" of two numbers, a "y", "words" of i numbers, and a "key".
  void write_records(const std::string& name, std::int64_t first, std::int64_t count) const {
    TfRecordWriter writer(file(name));
    for (std::int64_t i = first; i < first + count; ++i) {
      const std::vector<float> x = {static_cast<float>(i), 0.5F};
      const std::vector<std::int64_t> words(static_cast<std::size_t>(i), 7);
      ExampleBuilder example;
      example.floats("x", x.data(), 2).integers("y", &i, 1).integers("words", words.data(), words.size());
      writer.append(example.bytes("key", "k" + std::to_string(i)).encoded());
    }
    writer.commit();
  }
  static std::vector<FeatureSpec> features() {
    return {{.name = "x", .shape = {2}},
            {.name = "y", .type = FeatureType::kI64},
            {.name = "words", .type = FeatureType::kI64, .shape = {kUnknown}},
            {.name = "key", .type = FeatureType::kBytes}};
  }

  TemporaryFolder folder_;
};

TEST_F(DatasetFiles, RecordsOfAllFilesAreParsedOneByOne) {
  write_records("a.tfrecord", 0, 2);
  write_records("b.tfrecord.gz", 2, 2);
  const AnyDataset parsed =
      parse_examples(datasets::tfrecords(datasets::matching(file("*.tfrecord*"))), features());
  EXPECT_EQ(parsed.element_spec()["x"].leaf().tensor, (TensorSpec{DType::kF32, {2}}));
  EXPECT_EQ(parsed.element_spec()["words"].leaf().tensor, (TensorSpec{DType::kI64, {kUnknown}}));
  DatasetIterator iterator = parsed.iterator();
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto element = iterator.next();
    ASSERT_TRUE(element);
    EXPECT_EQ((*element)["x"].tensor().data<float>()[0], static_cast<float>(i));
    EXPECT_EQ((*element)["y"].tensor().item(), static_cast<double>(i));
    EXPECT_EQ((*element)["words"].tensor().shape(), (Shape{i}));
    EXPECT_EQ((*element)["key"].string(), "k" + std::to_string(i));
  }
  EXPECT_FALSE(iterator.next());
}

TEST_F(DatasetFiles, BatchesOfRecordsAreParsedTogether) {
  write_records("a.tfrecord", 0, 5);
  const AnyDataset parsed = parse_examples(datasets::tfrecords({file("a.tfrecord")}).batch(3), features(), 2);
  EXPECT_EQ(parsed.element_spec()["x"].leaf().tensor, (TensorSpec{DType::kF32, {kUnknown, 2}}));
  EXPECT_EQ(parsed.element_spec()["y"].leaf().tensor, (TensorSpec{DType::kI64, {kUnknown}}));
  DatasetIterator iterator = parsed.iterator();
  const auto first = iterator.next(), second = iterator.next();
  ASSERT_TRUE(first && second);
  EXPECT_TRUE((*first)["x"].tensor().bit_equal(Tensor::from({3, 2}, {0.F, 0.5F, 1.F, 0.5F, 2.F, 0.5F})));
  EXPECT_EQ((*first)["words"].tensor().shape(), (Shape{3}));
  EXPECT_THAT((*first)["words/lengths"].tensor().data<std::int64_t>(), ElementsAre(0, 1, 2));
  EXPECT_THAT((*first)["key"].strings(), ElementsAre("k0", "k1", "k2"));
  EXPECT_EQ((*second)["x"].tensor().shape(), (Shape{2, 2}));
  EXPECT_FALSE(iterator.next());
}

// A position in the second file, on other threads.
TEST_F(DatasetFiles, ResumeInTheMidstOfAFile) {
  write_records("a.tfrecord", 0, 5);
  write_records("b.tfrecord", 5, 5);
  const auto input = [&](unsigned threads) {
    return parse_examples(
               datasets::tfrecords({file("a.tfrecord"), file("b.tfrecord")}).shuffle(4, {.seed = 3}).batch(2),
               features(), threads)
        .prefetch(2);
  };
  std::vector<Tensor> right;
  DatasetIterator whole = input(1).iterator();
  while (const auto batch = whole.next()) right.push_back((*batch)["y"].tensor());
  ASSERT_EQ(right.size(), 5U);
  for (std::size_t stop = 0; stop <= right.size(); ++stop) {
    DatasetIterator first = input(2).iterator();
    for (std::size_t i = 0; i < stop; ++i) first.next();
    DatasetIterator second = input(3).iterator();
    second.restore(first.save());
    for (std::size_t i = stop; i < right.size(); ++i)
      EXPECT_TRUE((*second.next())["y"].tensor().bit_equal(right[i])) << stop << ' ' << i;
    EXPECT_FALSE(second.next());
  }
}

TEST_F(DatasetFiles, LinesBlocksAndRows) {
  write_file_whole(file("lines.txt"), "one\ntwo\r\nthree");
  std::vector<std::string> lines;
  for (const std::string& line : datasets::text_lines({file("lines.txt")})) lines.push_back(line);
  EXPECT_THAT(lines, ElementsAre("one", "two", "three"));

  write_file_whole(file("blocks"), "hAABBf");
  std::vector<std::string> blocks;
  for (const std::string& block :
       datasets::fixed_length({file("blocks")}, {.record_bytes = 2, .header_bytes = 1, .footer_bytes = 1}))
    blocks.push_back(block);
  EXPECT_THAT(blocks, ElementsAre("AA", "BB"));

  const Tensor rows = Tensor::from({3, 2}, {1.F, 2.F, 3.F, 4.F, 5.F, 6.F});
  write_file_whole(file("rows.npy"), write_npy(rows));
  std::int64_t row = 0;
  for (const Tensor& one : datasets::npy_rows(file("rows.npy"))) {
    EXPECT_TRUE(one.bit_equal(rows.slice(row, row + 1).reshape({2}))) << row;
    ++row;
  }
  EXPECT_EQ(row, 3);
}

TEST_F(DatasetFiles, ErrorsNameWhatIsWrong) {
  const auto of_numbers = caught([] { parse_examples(datasets::range(3), features()); });
  EXPECT_EQ(of_numbers.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(of_numbers.what, HasSubstr("expected records (strings) or batches of them"));
  EXPECT_THAT(of_numbers.what, HasSubstr("files_test.cpp"));
  EXPECT_EQ(caught([&] { datasets::matching(file("*.none")); }).code, ErrorCode::kNotFound);
  EXPECT_EQ(caught([&] { datasets::npy_rows(file("none.npy")); }).code, ErrorCode::kNotFound);
  std::ofstream(file("damaged.tfrecord")) << "no record at all";
  auto damaged = datasets::tfrecords({file("damaged.tfrecord")}).iterator();
  EXPECT_THAT(caught([&] { damaged.next(); }).what, HasSubstr("damaged.tfrecord"));
}

}  // namespace
}  // namespace lockstep
