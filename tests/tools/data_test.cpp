// Tests: tools/data.cpp, tools/data_file.cpp
// lockstep data: what files hold, damage, and conversions, from outside.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "lockstep/core/tensor.h"
#include "lockstep/io/files/npy.h"
#include "lockstep/io/files/npz.h"
#include "lockstep/io/formats/example.h"
#include "support/packed.h"
#include "support/record_files.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::write_to;

using namespace std::string_literals;

std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class DataTool : public ::testing::Test {
 protected:
  struct Outcome {
    int status = -1;
    std::string out, err;
  };
  Outcome data(const std::string& arguments) const {
    const std::string line = "cd '" + folder_.path().string() +
                             "' && ASAN_OPTIONS=detect_leaks=0 '" LOCKSTEP_TOOL "' data " + arguments +
                             " >.out 2>.err";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(folder_ / ".out"),
            contents(folder_ / ".err")};
  }
  void write(const std::string& name, const std::string& bytes) const { write_to(folder_ / name, bytes); }
  TemporaryFolder folder_;
};

std::string two_examples() {
  std::string bytes;
  for (const std::int64_t label : {7, 8}) {
    ExampleBuilder builder;
    builder.integers("label", &label, 1).bytes("name", "a\nb");
    if (label == 8) builder.tensor("box", Tensor::from({2}, {0.5F, 1.F}));
    bytes += testing::tfrecord_of(builder.encoded());
  }
  return bytes;
}

TEST_F(DataTool, ShowsExamples) {
  write("train.tfrecord", two_examples());
  write("unnamed", testing::gzip_of(two_examples()));
  for (const char* name : {"train.tfrecord", "unnamed"}) {
    const Outcome outcome = data(name);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(": TFRecord of tf.train.Example, 2 elements\n"));
    EXPECT_THAT(outcome.out, HasSubstr("  label: i64[1]\n"));
    EXPECT_THAT(outcome.out, HasSubstr("  box: f32[2], missing in 1\n"));
    EXPECT_THAT(outcome.out, HasSubstr("  name: bytes[1]\n"));
    EXPECT_THAT(outcome.out, HasSubstr("    name = \"a\\nb\"\n"));
  }
  EXPECT_THAT(data("--rows 0 train.tfrecord").out, ::testing::Not(HasSubstr("[0]")));
}

TEST_F(DataTool, ShowsOtherFormats) {
  write("t.csv", "id,price,city\n1,2.5,Berlin\n2,,\"Rome, IT\"\n");
  Outcome outcome = data("t.csv");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      HasSubstr("t.csv: CSV, 2 elements\n  id: i64[1]\n  price: f32[1], missing in 1\n  city: bytes[1]\n"));
  EXPECT_THAT(outcome.out, HasSubstr("city = \"Rome, IT\""));
  write("t.tsv", "id\tb\n1\tx\n");
  EXPECT_THAT(data("t.tsv").out, HasSubstr("id: i64[1]"));
  write("semicolons", "id;b\n1;x\n");
  EXPECT_THAT(data("-f csv --delimiter ';' semicolons").out, HasSubstr("id: i64[1]"));
  write("train-images-idx3-ubyte.gz", testing::gzip_of("\0\0\x08\x03\0\0\0\2\0\0\0\1\0\0\0\2abcd"s));
  EXPECT_THAT(data("train-images-idx3-ubyte.gz").out, HasSubstr("IDX, 2 elements\n  value: u8[1,2]\n"));
  write("a.npy", write_npy(Tensor::from({2}, {1.5F, 2.F})));
  EXPECT_THAT(data("a.npy").out, HasSubstr("NumPy (.npy), 2 elements\n  value: f32[]\n"));
  write("a.npz", write_npz({{"x", Tensor::zeros({3, 2})}, {"y", Tensor::zeros(DType::kI32, {3})}}));
  EXPECT_THAT(data("a.npz").out, HasSubstr("3 elements\n  x: f32[2]\n  y: i32[]\n"));
  write("a.txt", "one\ntwo\n");
  EXPECT_THAT(data("a.txt").out, HasSubstr("a.txt: text, 2 elements\n"));
}

TEST_F(DataTool, ShowsDamageAndWhatIsBeforeIt) {
  std::string bytes = two_examples();
  bytes[bytes.size() - 6] ^= 1;
  write("bad.tfrecord", bytes);
  write("good.txt", "a\n");
  const Outcome outcome = data("bad.tfrecord missing.csv good.txt");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("bad.tfrecord: TFRecord of tf.train.Example, 1 element\n"));
  EXPECT_THAT(outcome.out, HasSubstr("not whole: bad.tfrecord: record 1 at byte "));
  EXPECT_THAT(outcome.out, HasSubstr("missing.csv: cannot be read\n"));
  EXPECT_THAT(outcome.out, HasSubstr("good.txt: text, 1 element\n"));
  write("bad.csv", "a,b\n1,2\n3\n");
  EXPECT_THAT(data("bad.csv").out,
              HasSubstr("not whole: bad.csv:3: the record has 1 field, and the header 2"));
}

TEST_F(DataTool, ConvertsThereAndBack) {
  write("t.csv", "id,price,city\n1,2.5,Berlin\n-2,0.1,\"Rome, \"\"IT\"\"\"\n");
  EXPECT_EQ(data("t.csv --to t.tfrecord.gz").status, 0);
  EXPECT_EQ(contents(folder_ / "t.tfrecord.gz").substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(data("t.tfrecord.gz --to back.csv").status, 0);
  EXPECT_EQ(contents(folder_ / "back.csv"), "city,id,price\nBerlin,1,2.5\n\"Rome, \"\"IT\"\"\",-2,0.1\n");
  write("a.npy", write_npy(Tensor::from({2, 2}, {1.F, 2.F, 3.F, 4.F})));
  EXPECT_EQ(data("a.npy --to a.tfrecord").status, 0);
  EXPECT_THAT(data("a.tfrecord").out, HasSubstr("value: f32[2]\n"));
}

TEST_F(DataTool, RefusesWhatItCannotConvert) {
  write("t.tfrecord", two_examples());
  Outcome outcome = data("t.tfrecord --to t.csv");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("'box' is not in the first element"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "t.csv"));
  write("a.npy", write_npy(Tensor::zeros({2, 2})));
  EXPECT_THAT(data("a.npy --to a.csv").err,
              HasSubstr("'value' has 2 values, and a field of a CSV file holds one"));
  EXPECT_EQ(data("a.npy --to a.npz").status, 2);
  EXPECT_EQ(data("a.npy t.tfrecord --to b.tfrecord").status, 2);
  EXPECT_EQ(data("--delimiter ab a.npy").status, 2);
  EXPECT_EQ(data("").status, 2);
  write("what", "nothing known");
  outcome = data("what");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("give --format"));
}

}  // namespace
}  // namespace lockstep
