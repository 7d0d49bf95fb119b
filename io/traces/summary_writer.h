// io/traces/summary_writer.h - scalars and histograms for TensorBoard.
//
//   SummaryWriter writer("logs/run_1");                         // then: tensorboard --logdir logs
//   writer.scalar("loss", loss.item(), step);
//   writer.histogram("layer_1/w", store.value("w1"), step);
//   writer.flush();
//
// Makes one event file in the folder, and the folder if it is missing: TFRecord frames with their checksums,
// each holding an Event message of TensorFlow's event.proto. Tags with slashes group charts. Values are kept
// in memory until flush(), until there are SummaryWriterOptions::buffer_bytes of them, or until the writer is
// destroyed. A reader sees whole frames, and perhaps a last one that is cut off; TensorBoard waits for the
// rest of it.
//
// failure   FailedPrecondition or Error(kUnavailable) naming the path, if the file cannot be made or written;
//           InvalidArgument for an empty tag, and for a histogram of values that are not finite. The
//           destructor cannot report: call flush().
//
// Thread safety: one writer may be used from any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// A distribution in TensorFlow's buckets: limits grow by a tenth from 1e-12 to 1e20, then comes the largest
// double; the same below zero, and zero is a limit. So a bucket is a tenth of its lower limit wide, but for
// the two at zero and the two at the ends.
class LOCKSTEP_API Histogram {
 public:
  Histogram();
  void add(double value);  // InvalidArgument if it is not finite
  // Every element, converted to double.
  void add(const Tensor& values);

  std::int64_t count() const { return count_; }
  double min() const { return min_; }  // without values: the largest double; max(): the lowest
  double max() const { return max_; }
  double sum() const { return sum_; }
  double sum_of_squares() const { return sum_of_squares_; }
  // Buckets with their upper limits: each holds the values below its limit, from the limit of the bucket
  // before on. Neighbouring buckets that hold nothing are joined into one.
  struct Bucket {
    double limit;
    double count;
  };
  std::vector<Bucket> buckets() const;

 private:
  std::vector<std::int64_t> counts_;  // by bucket
  std::int64_t count_ = 0;
  double min_, max_;
  double sum_ = 0, sum_of_squares_ = 0;
};

struct SummaryWriterOptions {
  std::string suffix = {};                      // at the end of the file's name
  std::size_t buffer_bytes = 64 << 10;          // 0: every value is written at once
  std::function<double()> wall_time = nullptr;  // seconds since 1970; null: the system's clock
};

class LOCKSTEP_API SummaryWriter {
 public:
  explicit SummaryWriter(const std::filesystem::path& folder, SummaryWriterOptions options = {});
  ~SummaryWriter();
  SummaryWriter(const SummaryWriter&) = delete;
  SummaryWriter& operator=(const SummaryWriter&) = delete;

  // TensorBoard keeps scalars in single precision.
  void scalar(std::string_view tag, double value, std::int64_t step);
  void histogram(std::string_view tag, const Tensor& values, std::int64_t step);
  void histogram(std::string_view tag, const Histogram& values, std::int64_t step);
  // All values given so far are in the file when it returns.
  void flush();

  const std::filesystem::path& path() const;  // of the event file

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
