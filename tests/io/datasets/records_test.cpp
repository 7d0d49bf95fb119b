// Tests: io/datasets/records.cpp, io/formats/record_reader.cpp
// Sources that read files, over readers that lie in memory: positions, lists of files, rows in pieces.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/dataset.h"
#include "lockstep/io/formats/array_rows.h"
#include "lockstep/io/formats/record_reader.h"
#include "support/dataset_test.h"

namespace lockstep {
namespace {

using testing::all_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal_of;

const std::map<std::string, std::vector<std::string>> kFiles = {
    {"a", {"a0", "a1", "a2"}}, {"b", {}}, {"c", {"c0"}}, {"d", {"d0", "bad", "d2"}}};

class MemoryRecords final : public RecordReader {
 public:
  explicit MemoryRecords(const std::string& file) {
    const auto found = kFiles.find(file);
    if (found == kFiles.end()) throw NotFound(str("there is no file '", file, "'"));
    records_ = found->second;
  }
  bool next(std::string& record) override {
    if (at_.records == records_.size()) return false;
    record = records_[at_.records];
    if (record == "bad") throw Error(ErrorCode::kDataLoss, str("file 'd' is damaged at byte ", at_.offset));
    ++at_.records;
    at_.offset += record.size();
    return true;
  }
  ReadPosition position() const override { return at_; }
  void seek(const ReadPosition& position) override {
    if (position.records > records_.size()) throw Error(ErrorCode::kDataLoss, "the file is shorter");
    at_ = position;
  }
  std::uint64_t bytes_read() const override { return at_.offset; }

 private:
  std::vector<std::string> records_;
  ReadPosition at_;
};

RecordFormat memory_format() {
  return {.format = "memory",
          .open = [](const std::string& file) { return std::make_unique<MemoryRecords>(file); }};
}

std::vector<std::string> texts(const AnyDataset& dataset) {
  std::vector<std::string> all;
  for (const Element& element : all_of(dataset)) all.push_back(element.string());
  return all;
}

TEST(Records, ComeFileAfterFile) {
  const AnyDataset records = datasets::records({"a", "b", "c"}, memory_format());
  EXPECT_EQ(str(records.element_spec()), "string");
  EXPECT_THAT(texts(records), ElementsAre("a0", "a1", "a2", "c0"));
  EXPECT_THAT(texts(records.repeat(2)), ElementsAre("a0", "a1", "a2", "c0", "a0", "a1", "a2", "c0"));
  EXPECT_THAT(records.to_string(),
              AllOf(HasSubstr("records(format='memory')"), HasSubstr("from_slices(rows=3")));
}

TEST(Records, ListsOfFilesAreShardedByRewritingTheTree) {
  const AnyDataset records = datasets::records({"a", "b", "c"}, memory_format());
  EXPECT_THAT(texts(records.with_inputs({records.inputs()[0].shard(2, 0)})),
              ElementsAre("a0", "a1", "a2", "c0"));
  EXPECT_THAT(texts(records.with_inputs({records.inputs()[0].shard(2, 1)})), ElementsAre());
}

TEST(Records, GoOnAtTheSameRecord) {
  const AnyDataset records =
      datasets::records({"a", "b", "c", "a"}, memory_format()).shuffle(2, {.seed = 1}).prefetch(2);
  const auto all = texts(records);
  ASSERT_EQ(all.size(), 7U);
  DatasetIterator iterator = records.iterator();
  for (std::size_t i = 0; i <= all.size(); ++i) {
    DatasetIterator other = records.iterator();
    other.restore(iterator.save());
    for (std::size_t j = i; j < all.size(); ++j) EXPECT_EQ(other.next()->string(), all[j]);
    EXPECT_FALSE(other.next());
    iterator.next();
  }
}

TEST(Records, FaultsOfFilesNameTheRecord) {
  EXPECT_THAT(refusal_of([] {
                texts(datasets::records({"a", "d"}, memory_format()));
              }),
              AllOf(HasSubstr("DataLoss: records: element 4: file 'd' is damaged at byte 2"),
                    HasSubstr("records_test.cpp")));
  EXPECT_THAT(refusal_of([] { texts(datasets::records({"x"}, memory_format())); }), HasSubstr("NotFound"));
  EXPECT_THAT(refusal_of([] { datasets::records(Strings(), memory_format()); }),
              HasSubstr("there are no files"));
  EXPECT_THAT(refusal_of([] { datasets::records(datasets::range(3), memory_format()); }),
              HasSubstr("got i64[]"));
}

class MemoryArray final : public ArrayRows {
 public:
  const TensorSpec& row() const override { return row_; }
  std::int64_t rows() const override { return 6; }
  void read(std::int64_t first, std::int64_t count, void* to) const override {
    ++reads;
    for (std::int64_t i = 0; i < 2 * count; ++i) static_cast<std::int64_t*>(to)[i] = 2 * first + i;
  }
  static inline int reads = 0;

 private:
  const TensorSpec row_{DType::kI64, {2}};
};

TEST(ArrayRowsSource, BatchesReadNeighboursTogether) {
  const AnyDataset rows = datasets::array_rows(
      "x.npy", [](const std::string& /*file*/) { return std::make_unique<MemoryArray>(); });
  EXPECT_EQ(str(rows.element_spec()), "i64[2]");
  EXPECT_THAT(testing::numbers_of(all_of(rows)[5]), ElementsAre(10, 11));
  MemoryArray::reads = 0;
  EXPECT_THAT(testing::numbers_of(rows.batch(4)), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_EQ(MemoryArray::reads, 2);
  EXPECT_THAT(testing::numbers_of(rows.shuffle(6).batch(6)),
              ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
}

}  // namespace
}  // namespace lockstep
