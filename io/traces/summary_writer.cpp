// io/traces/summary_writer.cpp - scalars and histograms for TensorBoard.
#include "lockstep/io/traces/summary_writer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <mutex>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/cast.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/formats/protobuf_wire.h"
#include "lockstep/io/formats/tfrecord.h"

namespace lockstep {

// --- distributions

namespace {

constexpr double kSmallestLimit = 1e-12, kLargestLimit = 1e20, kGrowth = 1.1;

// The upper limits of all buckets, in order.
const std::vector<double>& bucket_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = kSmallestLimit; limit < kLargestLimit; limit *= kGrowth) positive.push_back(limit);
    positive.push_back(std::numeric_limits<double>::max());
    std::vector<double> all;
    for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) all.push_back(-*limit);
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    return all;
  }();
  return limits;
}

}  // namespace

Histogram::Histogram()
    : counts_(bucket_limits().size()),
      min_(std::numeric_limits<double>::max()),
      max_(std::numeric_limits<double>::lowest()) {}

void Histogram::add(double value) {
  if (!std::isfinite(value)) {
    throw InvalidArgument(str("a histogram holds finite values only, got ", value,
                              "; find where it comes from, or leave such values out"));
  }
  const std::vector<double>& limits = bucket_limits();
  const auto above = std::ranges::upper_bound(limits, value);
  const auto last = static_cast<std::ptrdiff_t>(limits.size()) - 1;  // also holds the largest double
  ++counts_[static_cast<std::size_t>(std::min(above - limits.begin(), last))];
  ++count_;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
  sum_ += value;
  sum_of_squares_ += value * value;
}

void Histogram::add(const Tensor& tensor) {
  if (!tensor.defined()) throw InvalidArgument("a histogram of an empty handle; give it a tensor");
  const Tensor values = tensor.host();
  const kernels::UnaryLoop convert = kernels::cast_loop(values.dtype(), DType::kF64);
  const auto* data = static_cast<const char*>(values.raw());
  std::array<double, 1024> part{};
  constexpr auto kPart = static_cast<std::int64_t>(part.size());
  for (std::int64_t begin = 0; begin < values.num_elements(); begin += kPart) {
    const std::int64_t count = std::min(kPart, values.num_elements() - begin);
    const char* from = data + static_cast<std::size_t>(begin) * size_of(values.dtype());
    convert(from, part.data(), count);
    for (const double value : std::span(part).first(static_cast<std::size_t>(count))) add(value);
  }
}

std::vector<Histogram::Bucket> Histogram::buckets() const {
  const std::vector<double>& limits = bucket_limits();
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const auto count = static_cast<double>(counts_[i]);
    const bool joins = !buckets.empty() && count == 0 && buckets.back().count == 0;
    if (joins) {
      buckets.back().limit = limits[i];
    } else {
      buckets.push_back({limits[i], count});
    }
  }
  return buckets;
}

// --- the file

namespace {

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

// TensorBoard looks for "tfevents" and sorts by name; process and number keep writers apart.
std::string file_name(double wall_time, const std::string& suffix) {
  static std::atomic<std::uint64_t> last{0};
  std::array<char, 32> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%010lld", static_cast<long long>(wall_time));
  return str("events.out.tfevents.", seconds.data(), ".", host_name(), ".", ::getpid(), ".",
             last.fetch_add(1, std::memory_order_relaxed), suffix);
}

}  // namespace

// --- the writer

struct SummaryWriter::State {
  SummaryWriterOptions options;
  std::filesystem::path path;
  std::mutex mutex;
  struct Close {
    void operator()(std::FILE* open) const { std::fclose(open); }
  };
  std::unique_ptr<std::FILE, Close> file;
  std::string buffer;

  double now() const { return options.wall_time ? options.wall_time() : system_seconds(); }

  [[noreturn]] void fail(const char* what) const {
    const std::string why = std::generic_category().message(errno);
    throw Error(ErrorCode::kUnavailable, str("event file '", path.string(), "' cannot be ", what, ": ", why));
  }

  // Under the mutex.
  void write_out() {
    if (buffer.empty()) return;
    const std::size_t written = std::fwrite(buffer.data(), 1, buffer.size(), file.get());
    buffer.erase(0, written);  // a frame is never written twice
    if (!buffer.empty() || std::fflush(file.get()) != 0) fail("written");
  }

  void add(const WireMessage& event) {
    std::string frame;
    append_tfrecord(frame, event.encoded());
    const std::lock_guard<std::mutex> lock(mutex);
    buffer += frame;
    if (buffer.size() > options.buffer_bytes) write_out();
  }

  // Fields of event.proto and summary.proto, by their numbers. `value` holds those that follow the tag in a
  // Summary.Value.
  void add_value(std::string_view tag, std::int64_t step, const WireMessage& value) {
    if (tag.empty()) throw InvalidArgument("SummaryWriter: a value needs a tag; give it a name");
    const WireMessage summary = WireMessage().message(1, WireMessage().bytes(1, tag).append(value));
    add(WireMessage().number(1, now()).integer(2, step).message(5, summary));
  }
};

SummaryWriter::SummaryWriter(const std::filesystem::path& folder, SummaryWriterOptions options)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.options = std::move(options);
  try {
    make_folders(folder);
  } catch (const Error& error) {
    throw FailedPrecondition(
        str("the folder '", folder.string(), "' for event files cannot be made: ", error.message()));
  }
  const double now = state.now();
  state.path = folder / file_name(now, state.options.suffix);
  state.file.reset(std::fopen(state.path.c_str(), "wbx"));
  if (state.file == nullptr) state.fail("made");
  state.add(WireMessage().number(1, now).bytes(3, "brain.Event:2"));
}

SummaryWriter::~SummaryWriter() {
  try {
    flush();
  } catch (const Error&) {
    // A destructor has nobody to report to. Callers that want the error call flush() first.
  }
}

void SummaryWriter::scalar(std::string_view tag, double value, std::int64_t step) {
  state_->add_value(tag, step, WireMessage().single(2, static_cast<float>(value)));
}

void SummaryWriter::histogram(std::string_view tag, const Tensor& values, std::int64_t step) {
  Histogram histogram_of_values;
  try {
    histogram_of_values.add(values);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(str("SummaryWriter: '", tag, "' at step ", step, ": ", error.message()));
  }
  histogram(tag, histogram_of_values, step);
}

void SummaryWriter::histogram(std::string_view tag, const Histogram& values, std::int64_t step) {
  const std::vector<Histogram::Bucket> buckets = values.buckets();
  std::vector<double> limits, counts;
  for (const Histogram::Bucket& bucket : buckets) {
    limits.push_back(bucket.limit);
    counts.push_back(bucket.count);
  }
  WireMessage proto;  // HistogramProto
  proto.number(1, values.min())
      .number(2, values.max())
      .number(3, static_cast<double>(values.count()))
      .number(4, values.sum())
      .number(5, values.sum_of_squares())
      .numbers(6, limits.data(), limits.size())
      .numbers(7, counts.data(), counts.size());
  state_->add_value(tag, step, WireMessage().message(5, proto));
}

void SummaryWriter::flush() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->write_out();
}

const std::filesystem::path& SummaryWriter::path() const { return state_->path; }

}  // namespace lockstep
