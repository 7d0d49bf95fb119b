// io/traces/device_rates.cpp - what devices reach: small programs, and the time of one call in them.
#include "lockstep/io/traces/device_rates.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "lockstep/core/topology.h"
#include "lockstep/core/variable_store.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/run/compile.h"

namespace lockstep {

namespace {

constexpr std::string_view kTimed = "timed";
constexpr int kRuns = 2;  // that count, after one that warms up
// Width of the matrices whose product is the operand: it is soon made, and no two rows of it are alike.
constexpr std::int64_t kThin = 16;
constexpr std::int64_t kFewestRows = 256;  // of matrices that are multiplied or copied
constexpr double kLongestProduct = 30e-3;  // seconds: no product is tried that is likely to take longer

// How long the timed node took in the last run. On threads: from the begin of its first shard to the end of the last. On a stream:
// its first call, which a copy to the result may follow.
class CallTime final : public Observer {
 public:
  void on_run_begin(const RunEvent&) noexcept override { times_.reset(); }
  void on_node_begin(const NodeEvent& event) noexcept override { note(event.node); }
  void on_node_end(const NodeEvent& event) noexcept override { note(event.node); }
  void on_span(const SpanEvent& event) noexcept override {
    if (event.node.name() == kTimed && !times_) times_.emplace(event.begin, event.end);
  }
  double seconds() const {
    return times_ ? std::chrono::duration<double>(times_->second - times_->first).count() : 0;
  }

 private:
  void note(const Node& node) noexcept {
    if (node.name() != kTimed) return;
    const SteadyTime now = std::chrono::steady_clock::now();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!times_) times_.emplace(now, now);
    times_->first = std::min(times_->first, now);
    times_->second = std::max(times_->second, now);
  }
  std::mutex mutex_;
  std::optional<std::pair<SteadyTime, SteadyTime>> times_;
};

// Zeros would do as well, but multiplying them takes less power, and a card then runs faster than with numbers.
Tensor numbers(DType dtype, const Shape& shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  visit_dtype(dtype, [&]<class T>(T) {
    std::uint32_t state = 1;
    for (T& element : tensor.data<T>()) {
      state = state * 1664525U + 1013904223U;
      element = static_cast<T>(static_cast<float>(state >> 8U) * 0x1p-23F - 1);
    }
  });
  return tensor;
}

// Seconds of a copy of a square matrix, or of its product with itself; 0: the device does not say.
double seconds_of(const Runtime& runtime, const std::string& device, bool multiplies, DType dtype,
                  std::int64_t rows, bool allow_tf32) {
  GraphBuilder b;
  {
    const auto there = b.device(device);
    const Value operand = b.op1(
        "matmul", {b.constant(numbers(dtype, {rows, kThin})), b.constant(numbers(dtype, {kThin, rows}))});
    b.result(multiplies ? b.op1("matmul", {operand, operand}, {}, kTimed)
                        : b.op1("copy", {operand}, {}, kTimed));
  }
  const Program program = compile(b.finish(), runtime,
                                  {.variables = std::make_shared<VariableStore>(), .allow_tf32 = allow_tf32});
  // The same memory in each run, so that its pages are there.
  Tensor result = Tensor::empty(dtype, {rows, rows}, runtime.pool(Device::parse(device)));
  CallTime time;
  double best = 0;
  for (int run = 0; run <= kRuns; ++run) {
    program.run_into({}, {&result, 1}, {.observer = &time});
    program.wait();
    if (run > 0 && time.seconds() > 0) best = best > 0 ? std::min(best, time.seconds()) : time.seconds();
  }
  return best;
}

bool is_cpu(const std::string& device) { return Device::parse(device).kind == DeviceKind::kCpu; }

double copy_rate(const Runtime& runtime, const std::string& device, std::int64_t rows) {
  for (; rows >= kFewestRows; rows /= 2) {
    try {
      const double seconds = seconds_of(runtime, device, false, DType::kF32, rows, false);
      const auto elements = static_cast<double>(rows) * static_cast<double>(rows);
      return seconds > 0 ? 2 * sizeof(float) * elements / seconds : 0;
    } catch (const std::exception& error) {
      if (code_of(error, ErrorCode::kInternal) != ErrorCode::kOutOfMemory) return 0;
    }
  }
  return 0;
}

double product_rate(const Runtime& runtime, const std::string& device, DType dtype,
                    const RateOptions& options) {
  double best = 0;
  for (std::int64_t rows = kFewestRows; rows <= options.most_rows; rows *= 2) {
    double seconds = 0;
    try {
      seconds = seconds_of(runtime, device, true, dtype, rows, options.allow_tf32);
    } catch (const std::exception&) {  // no memory for such matrices, or no kernel
      break;
    }
    if (seconds <= 0) break;
    const auto n = static_cast<double>(rows);
    best = std::max(best, 2 * n * n * n / seconds);
    if (8 * seconds > kLongestProduct) break;
  }
  return best;
}

}  // namespace

DeviceRates measure_rates(const Runtime& runtime, std::string_view device, const std::vector<DType>& products,
                          const RateOptions& options) {
  DeviceRates rates{std::string(device), options.bytes_per_second};
  const bool cpu = is_cpu(rates.device);
  if (rates.bytes_per_second == 0 && options.measure) {
    const std::int64_t rows = options.copied_rows > 0 ? options.copied_rows : cpu ? 4096 : 8192;
    rates.bytes_per_second = copy_rate(runtime, rates.device, rows);
  }
  for (const DType dtype : products) {
    const bool tf32 = options.allow_tf32 && dtype == DType::kF32 && !cpu;
    DeviceRates::Product product{dtype, tf32, options.flops_per_second};
    if (product.flops_per_second == 0 && options.measure)
      product.flops_per_second = product_rate(runtime, rates.device, dtype, options);
    rates.products.push_back(product);
  }
  return rates;
}

std::vector<DeviceRates> measure_rates(const Runtime& runtime, const Trace& trace,
                                       const RateOptions& options) {
  struct Place {
    std::vector<std::string> devices;
    std::set<DType> products;
  };
  std::map<std::pair<MemoryId, int>, Place> places;  // by memory and card
  for (const TracedCall& call : trace.calls) {
    if (call.bytes_moved <= 0 && call.multiply_adds <= 0) continue;
    const std::string device(device_of_call(trace, call));
    const DeviceFacts* const facts = runtime.topology().find(Device::parse(device));
    if (facts == nullptr) continue;
    Place& place = places[{facts->memory, facts->card}];
    if (std::ranges::find(place.devices, device) == place.devices.end()) place.devices.push_back(device);
    if (call.multiply_adds > 0) place.products.insert(trace.nodes[call.node].dtype);
  }
  std::vector<DeviceRates> all;
  for (const auto& [key, place] : places) {
    const DeviceRates rates =
        measure_rates(runtime, place.devices[0], {place.products.begin(), place.products.end()}, options);
    for (const std::string& device : place.devices) {
      all.push_back(rates);
      all.back().device = device;
    }
  }
  return all;
}

}  // namespace lockstep
