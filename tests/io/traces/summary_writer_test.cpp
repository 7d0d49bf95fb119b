// Tests: io/traces/summary_writer.cpp
#include "lockstep/io/traces/summary_writer.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/io/files/files.h"
#include "support/data_dir.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

// --- a reader that shares nothing with the writer

std::uint32_t bitwise_crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return ~crc;
}

std::uint32_t masked(std::uint32_t crc) { return ((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U; }

template <class T>
T little_endian(std::string_view bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::vector<std::string_view> frames_of(std::string_view file) {
  std::vector<std::string_view> frames;
  while (!file.empty()) {
    if (file.size() < 16) throw std::runtime_error("a frame is cut off");
    const auto length = little_endian<std::uint64_t>(file);
    if (little_endian<std::uint32_t>(file.substr(8)) != masked(bitwise_crc32c(file.substr(0, 8))))
      throw std::runtime_error("the checksum of a length is wrong");
    if (file.size() - 16 < length) throw std::runtime_error("a frame is cut off");
    frames.push_back(file.substr(12, length));
    if (little_endian<std::uint32_t>(file.substr(12 + length)) != masked(bitwise_crc32c(frames.back())))
      throw std::runtime_error("the checksum of a frame is wrong");
    file.remove_prefix(16 + length);
  }
  return frames;
}

// The fields of a protocol buffer message: by number, the raw bytes of each occurrence (varints as eight
// bytes).
std::map<std::uint64_t, std::vector<std::string>> fields_of(std::string_view message) {
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<std::uint8_t>(message.at(0));
      message.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80U) return value;
    }
  };
  std::map<std::uint64_t, std::vector<std::string>> fields;
  while (!message.empty()) {
    const std::uint64_t key = varint();
    std::string value;
    std::size_t length = 0;
    switch (key & 7U) {
      case 0: {
        const std::uint64_t number = varint();
        value.assign(reinterpret_cast<const char*>(&number), sizeof number);
        break;
      }
      case 1: length = 8; break;
      case 2: length = varint(); break;
      case 5: length = 4; break;
      default: throw std::runtime_error("an unknown wire type");
    }
    if (length > message.size()) throw std::runtime_error("a field is cut off");
    value += message.substr(0, length);
    message.remove_prefix(length);
    fields[key >> 3U].push_back(value);
  }
  return fields;
}

struct ReadValue {
  std::string tag;
  std::int64_t step = 0;
  double wall_time = 0;
  float scalar = 0;
  std::map<std::uint64_t, std::vector<std::string>> histogram;  // fields; empty for a scalar

  double number(std::uint64_t field) const { return little_endian<double>(histogram.at(field).at(0)); }
  std::vector<double> numbers(std::uint64_t field) const {
    const std::string& packed = histogram.at(field).at(0);
    std::vector<double> numbers(packed.size() / sizeof(double));
    std::memcpy(numbers.data(), packed.data(), packed.size());
    return numbers;
  }
};

struct ReadFile {
  std::string version;
  std::vector<ReadValue> values;
};

ReadFile read(const std::filesystem::path& path) {
  ReadFile file;
  const std::string bytes = read_file(path);
  for (const std::string_view frame : frames_of(bytes)) {
    auto event = fields_of(frame);
    if (event.contains(3)) file.version = event.at(3).at(0);
    if (!event.contains(5)) continue;
    const auto summary = fields_of(event.at(5).at(0));
    for (const std::string& one : summary.at(1)) {
      auto value = fields_of(one);
      ReadValue read;
      read.tag = value.at(1).at(0);
      read.step = little_endian<std::int64_t>(event.at(2).at(0));
      read.wall_time = little_endian<double>(event.at(1).at(0));
      if (value.contains(2)) read.scalar = little_endian<float>(value.at(2).at(0));
      if (value.contains(5)) read.histogram = fields_of(value.at(5).at(0));
      file.values.push_back(std::move(read));
    }
  }
  return file;
}

// --- tests

class SummaryWriterTest : public ::testing::Test {
 protected:
  SummaryWriterOptions at(double seconds) {
    SummaryWriterOptions options;
    options.wall_time = [seconds] { return seconds; };
    return options;
  }
  TemporaryFolder folder_;
};

TEST_F(SummaryWriterTest, ScalarsReadBack) {
  SummaryWriter writer(folder_.path() / "made" / "here", at(1234567890.5));
  writer.scalar("loss", 0.25, 0);
  const std::string long_tag(300, 'x');  // its length takes two bytes
  writer.scalar(long_tag, std::numeric_limits<double>::quiet_NaN(), std::int64_t{1} << 40);
  writer.scalar("loss", -3, -1);
  writer.flush();
  const ReadFile file = read(writer.path());
  EXPECT_EQ(file.version, "brain.Event:2");
  ASSERT_EQ(file.values.size(), 3U);
  EXPECT_EQ(file.values[0].tag, "loss");
  EXPECT_EQ(file.values[0].scalar, 0.25F);
  EXPECT_EQ(file.values[0].step, 0);
  EXPECT_EQ(file.values[0].wall_time, 1234567890.5);
  EXPECT_EQ(file.values[1].tag, long_tag);
  EXPECT_TRUE(std::isnan(file.values[1].scalar));
  EXPECT_EQ(file.values[1].step, std::int64_t{1} << 40);
  EXPECT_EQ(file.values[2].step, -1);
  const std::string name = writer.path().filename().string();
  EXPECT_EQ(name.rfind("events.out.tfevents.1234567890.", 0), 0U) << name;
}

TEST_F(SummaryWriterTest, HistogramsReadBack) {
  SummaryWriter writer(folder_.path());
  writer.histogram("w", Tensor::from<float>({4}, {-1.5F, 0, 0.25F, 2}), 7);
  for (const DType dtype : kAllDTypes) writer.histogram("ones", Tensor::full(dtype, {3, 1000}, 1), 8);
  writer.histogram("nothing", Tensor::zeros({0}), 9);
  writer.flush();
  const ReadFile file = read(writer.path());
  ASSERT_EQ(file.values.size(), 2 + std::size(kAllDTypes));
  const ReadValue& w = file.values[0];
  EXPECT_EQ(w.step, 7);
  EXPECT_EQ(w.number(1), -1.5);
  EXPECT_EQ(w.number(2), 2);
  EXPECT_EQ(w.number(3), 4);
  EXPECT_EQ(w.number(4), 0.75);
  EXPECT_EQ(w.number(5), 2.25 + 0.0625 + 4);
  const std::vector<double> limits = w.numbers(6), counts = w.numbers(7);
  ASSERT_EQ(limits.size(), counts.size());
  // Each value lies in a bucket of its own, below its limit and not below the one before.
  std::vector<double> found;
  for (std::size_t i = 0; i < limits.size(); ++i) {
    EXPECT_TRUE(i == 0 || limits[i - 1] < limits[i]);
    for (const double value : {-1.5, 0.0, 0.25, 2.0}) {
      if (value >= limits[i] || (i > 0 && value < limits[i - 1])) continue;
      EXPECT_EQ(counts[i], 1) << value;
      found.push_back(value);
    }
  }
  EXPECT_EQ(found, (std::vector<double>{-1.5, 0, 0.25, 2}));
  EXPECT_EQ(limits.back(), std::numeric_limits<double>::max());
  for (std::size_t i = 1; i <= std::size(kAllDTypes); ++i) {
    EXPECT_EQ(file.values[i].number(3), 3000);
    EXPECT_EQ(file.values[i].number(4), 3000);
  }
  EXPECT_EQ(file.values.back().number(3), 0);
}

TEST(Histogram, HasTensorFlowsBuckets) {
  Histogram one;
  one.add(1.0);
  const std::vector<Histogram::Bucket> buckets = one.buckets();
  ASSERT_EQ(buckets.size(), 3U) << "what is below, the value, what is above";
  EXPECT_EQ(buckets[1].count, 1);
  // 1e-12 times powers of 1.1, one factor at a time.
  double limit = 1e-12;
  while (limit * 1.1 <= 1) limit *= 1.1;
  EXPECT_EQ(buckets[0].limit, limit);
  EXPECT_EQ(buckets[1].limit, limit * 1.1);
  EXPECT_EQ(buckets[2].limit, std::numeric_limits<double>::max());

  Histogram extremes;
  for (const double value : {std::numeric_limits<double>::max(), std::numeric_limits<double>::lowest(), 0.0,
                             -0.0, 1e-300, -1e-300})
    extremes.add(value);
  double sum = 0;
  for (const Histogram::Bucket& bucket : extremes.buckets()) sum += bucket.count;
  EXPECT_EQ(sum, 6);
  EXPECT_EQ(extremes.min(), std::numeric_limits<double>::lowest());
  EXPECT_EQ(extremes.max(), std::numeric_limits<double>::max());
}

TEST_F(SummaryWriterTest, WritesWhenItsBufferIsFullAndWhenItGoes) {
  SummaryWriterOptions options;
  options.suffix = ".worker_0";
  std::filesystem::path path;
  {
    SummaryWriter writer(folder_.path(), options);
    path = writer.path();
    EXPECT_EQ(path.string().rfind(".worker_0"), path.string().size() - 9);
    writer.scalar("x", 1, 1);
    EXPECT_EQ(read_file(path), "") << "kept until there is more";
    for (int i = 0; i < 2000; ++i) writer.scalar("x", 1, 1);
    EXPECT_GE(read_file(path).size(), 64U << 10U);
  }
  EXPECT_EQ(read(path).values.size(), 2001U);
  options.buffer_bytes = 0;
  SummaryWriter at_once(folder_.path(), options);
  EXPECT_NE(at_once.path(), path) << "two writers of one folder have two files";
  at_once.scalar("x", 2, 1);
  EXPECT_EQ(read(at_once.path()).values.size(), 1U);
}

TEST_F(SummaryWriterTest, ThreadsDoNotMixTheirFrames) {
  SummaryWriter writer(folder_.path(), {.buffer_bytes = 100});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&writer, t] {
        for (int i = 0; i < 200; ++i) writer.scalar(std::string(static_cast<std::size_t>(t) + 1, 'x'), t, i);
      });
    }
  }
  writer.flush();
  std::map<std::string, std::vector<std::int64_t>> steps;
  for (const ReadValue& value : read(writer.path()).values) steps[value.tag].push_back(value.step);
  ASSERT_EQ(steps.size(), 4U);
  for (const auto& [tag, list] : steps) {
    ASSERT_EQ(list.size(), 200U);
    for (std::size_t i = 0; i < list.size(); ++i) EXPECT_EQ(list[i], static_cast<std::int64_t>(i)) << tag;
  }
}

TEST_F(SummaryWriterTest, SaysWhatIsWrong) {
  write_file_whole(folder_.path() / "file", "x");
  EXPECT_THROW(SummaryWriter(folder_.path() / "file"), Error);
  SummaryWriter writer(folder_.path());
  EXPECT_THROW(writer.scalar("", 1, 1), InvalidArgument);
  EXPECT_THROW(writer.histogram("w", Tensor(), 1), InvalidArgument);
  try {
    writer.histogram("w", Tensor::from<float>({2}, {1, std::numeric_limits<float>::infinity()}), 3);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(error.message().find("'w' at step 3"), std::string::npos) << error.message();
  }
  writer.flush();
  EXPECT_TRUE(read(writer.path()).values.empty());
}

TEST_F(SummaryWriterTest, TensorBoardReadsIt) {
  const std::string python = "'" LOCKSTEP_TEST_TENSORBOARD_PYTHON "'";
  const auto runs = [](const std::string& command) {
    return std::system(command.c_str()) == 0;  // NOLINT(concurrency-mt-unsafe)
  };
  if (!runs(python + " -c 'import tensorboard' >/dev/null 2>&1")) {
    GTEST_SKIP() << "no TensorBoard for the Python " << python
                 << "; configure with -DLOCKSTEP_TEST_TENSORBOARD_PYTHON=<one that has it>";
  }
  {
    SummaryWriter writer(folder_.path() / "log", at(1500.25));
    writer.scalar("loss", 0.5, 3);
    writer.scalar("loss", 0.25, 4);
    writer.histogram("w", Tensor::from<float>({4}, {-1, 0, 0.25F, 2}), 4);
    writer.histogram("nothing", Tensor::zeros({0}), 4);
  }
  const std::filesystem::path out = folder_.path() / "out";
  ASSERT_TRUE(runs(str(python, " '", (testing::data_dir() / "io/traces/read_summaries.py").string(), "' '",
                       (folder_.path() / "log").string(), "' > '", out.string(), "'")));
  EXPECT_EQ(read_file(out),
            "scalars loss 3 1500.2 0.5\n"
            "scalars loss 4 1500.2 0.25\n"
            "histograms nothing 4 1500.2 count 0\n"
            "histograms w 4 1500.2 count 4 between -1 and 2\n");
}

}  // namespace
}  // namespace lockstep
