// io/traces/summary_writer.cpp - scalars and histograms for TensorBoard.
#include "lockstep/io/traces/summary_writer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
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
#include "lockstep/io/files/crc32c.h"
#include "lockstep/io/files/files.h"

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

// --- messages of event.proto, summary.proto and histogram.proto, by their field numbers

namespace {

class Message {
 public:
  Message& number(std::uint32_t field, double value) {
    key(field, 1);
    fixed(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }
  Message& single(std::uint32_t field, float value) {
    key(field, 5);
    fixed(std::bit_cast<std::uint32_t>(value), 4);
    return *this;
  }
  Message& integer(std::uint32_t field, std::int64_t value) {
    key(field, 0);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  // A string, or another message.
  Message& bytes(std::uint32_t field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(std::uint32_t field, const Message& value) { return bytes(field, value.bytes_); }
  Message& append(const Message& fields) {
    bytes_ += fields.bytes_;
    return *this;
  }
  template <class Range, class Of>
  Message& numbers(std::uint32_t field, const Range& range, Of of) {
    Message packed;
    for (const auto& element : range) packed.fixed(std::bit_cast<std::uint64_t>(double{of(element)}), 8);
    return bytes(field, packed.bytes_);
  }
  const std::string& encoded() const { return bytes_; }

  void fixed(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i)
      bytes_ += static_cast<char>((value >> (8 * static_cast<unsigned>(i))) & 0xFFU);
  }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) bytes_ += static_cast<char>((value & 0x7FU) | 0x80U);
    bytes_ += static_cast<char>(value);
  }
  void key(std::uint32_t field, std::uint32_t wire_type) { varint(field << 3U | wire_type); }

  std::string bytes_;
};

// Checksums in TFRecord files are rotated, so that a checksum of data that holds checksums stays good.
std::uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U; }

// length, its checksum, the bytes, their checksum
std::string framed(std::string_view bytes) {
  Message frame;
  frame.fixed(bytes.size(), 8);
  std::string out = frame.encoded();
  Message length_sum, sum;
  length_sum.fixed(masked_crc(out), 4);
  sum.fixed(masked_crc(bytes), 4);
  out += length_sum.encoded();
  out += bytes;
  out += sum.encoded();
  return out;
}

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

  void add(const Message& event) {
    const std::string frame = framed(event.encoded());
    const std::lock_guard<std::mutex> lock(mutex);
    buffer += frame;
    if (buffer.size() > options.buffer_bytes) write_out();
  }

  // `value` holds the fields that follow the tag in a Summary.Value.
  void add_value(std::string_view tag, std::int64_t step, const Message& value) {
    if (tag.empty()) throw InvalidArgument("SummaryWriter: a value needs a tag; give it a name");
    const Message summary = Message().message(1, Message().bytes(1, tag).append(value));
    add(Message().number(1, now()).integer(2, step).message(5, summary));
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
  state.add(Message().number(1, now).bytes(3, "brain.Event:2"));
}

SummaryWriter::~SummaryWriter() {
  try {
    flush();
  } catch (const Error&) {
    // A destructor has nobody to report to. Callers that want the error call flush() first.
  }
}

void SummaryWriter::scalar(std::string_view tag, double value, std::int64_t step) {
  state_->add_value(tag, step, Message().single(2, static_cast<float>(value)));
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
  Message proto;
  proto.number(1, values.min())
      .number(2, values.max())
      .number(3, static_cast<double>(values.count()))
      .number(4, values.sum())
      .number(5, values.sum_of_squares())
      .numbers(6, buckets, [](const Histogram::Bucket& bucket) { return bucket.limit; })
      .numbers(7, buckets, [](const Histogram::Bucket& bucket) { return bucket.count; });
  state_->add_value(tag, step, Message().message(5, proto));
}

void SummaryWriter::flush() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->write_out();
}

const std::filesystem::path& SummaryWriter::path() const { return state_->path; }

}  // namespace lockstep
