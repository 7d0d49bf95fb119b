// bench_device_calls - what the host does for a call of a device, measured on a device that does nothing.
//
//   bench_device_calls [--quick] [--json FILE]
//
// Chains of additions on one device: put on its stream call by call, and recorded and replayed; and a run of one
// call that returns a handle, beside the same run on the CPU. Then branches on devices that take their time: how far
// they overlap.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/testing/fake_gpu.h"
#include "lockstep/testing/null_device.h"
#include "support/report.h"

namespace {

std::atomic<std::uint64_t> allocations{0};

}  // namespace

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const block = std::malloc(bytes == 0 ? 1 : bytes)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t /*bytes*/) noexcept { std::free(block); }

namespace lockstep::bench {
namespace {

constexpr int kCalls = 1000;
constexpr double kEagerTarget = 150e-9;
constexpr double kReplayTarget = 2e-6;
constexpr double kHandleTarget = 1e-6;
constexpr double kOverlapTarget = 1.05;

Program chain(const Runtime& runtime, const char* device, int calls, bool record) {
  GraphBuilder b;
  const auto there = b.device(device);
  const VariableRef start = b.variable("start", Tensor::zeros(DType::kF32, {4}));
  Value value = b.read(start);
  for (int i = 0; i < calls; ++i) value = value + value;
  b.result(value);
  CompileOptions options{.variables = std::make_shared<VariableStore>()};
  options.record = record;
  return compile(b.finish(), runtime, options);
}

void run(Report& report) {
  const Runtime runtime({.threads = 1, .backends = {std::make_shared<testing::NullBackend>()}});
  const Program eager = chain(runtime, "gpu:0", kCalls, false),
                replayed = chain(runtime, "gpu:0", kCalls, true), one = chain(runtime, "gpu:0", 1, true),
                here = chain(runtime, "cpu:0", 1, true);
  const auto runs = [](const Program& program) {
    return [&program](std::size_t n) {
      for (std::size_t i = 0; i < n; ++i) program.run();
    };
  };
  const std::vector<Contender> contenders = {{"1000 calls, one by one", runs(eager)},
                                             {"1000 calls, replayed", runs(replayed)},
                                             {"one call", runs(one)},
                                             {"one call on the CPU", runs(here)}};
  for (const Contender& contender : contenders) contender.run(4);  // so that everything is recorded
  const Samples samples = report.sampler().alternate(contenders);
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    std::printf("%-24s", contenders[i].name.c_str());
    Report::show(spread(samples.seconds[i]), 1e6, 28);
    std::printf(" us a run%s\n", samples.noisy ? " NOISY" : "");
  }
  const std::string where = samples.noisy ? "(noisy)" : "";
  const Spread call = spread(differences(samples.seconds[0], samples.seconds[2]));
  const Spread replay = spread(differences(samples.seconds[1], samples.seconds[2]));
  const Spread handle = spread(differences(samples.seconds[2], samples.seconds[3]));
  report.verdicts().at_most("a call, ns", where, call.median / (kCalls - 1) * 1e9, kEagerTarget * 1e9);
  report.verdicts().at_most("999 calls replayed, us", where, replay.median * 1e6, kReplayTarget * 1e6);
  report.verdicts().at_most("a handle, above the CPU's run, us", where, handle.median * 1e6,
                            kHandleTarget * 1e6);
  report.record("calls", contenders, samples);

  std::vector<Tensor> room = replayed.run();
  for (int i = 0; i < 4; ++i) replayed.run_into({}, room);
  const std::uint64_t before = allocations.load();
  for (int i = 0; i < kCalls; ++i) replayed.run_into({}, room);
  const std::uint64_t made = allocations.load() - before;
  report.verdicts().at_most("allocations in 1000 runs", "", static_cast<double>(made), 0);
}

// Branches that have nothing to do with each other, on a fake of which every call and copy takes 25 ms: a batch that comes in, a
// computation, and a sum over two devices. All of them in one program, beside the longest alone: one run put call by call, one that
// is replayed, and runs in a row.
void overlap(Report& report) {
  const auto gpus = std::make_shared<testing::FakeGpu>(testing::FakeGpuOptions{.devices = 4});
  gpus->set_delay(std::chrono::milliseconds(25));
  const Runtime runtime({.threads = 1, .backends = {gpus}});
  const Tensor start = Tensor::full(DType::kF32, {4}, 1);
  const auto arrival = [&](GraphBuilder& b) {
    const Value x = b.placeholder("x", DType::kF32, {4});
    const auto there = b.device("gpu:0");
    b.result(relu(x));
  };
  const auto computation = [&](GraphBuilder& b) {
    const auto there = b.device("gpu:1");
    b.result(relu(relu(relu(b.read(b.variable("one", start))))));
  };
  const auto reduction = [&](GraphBuilder& b) {
    Value far;
    {
      const auto other = b.device("gpu:3");
      far = relu(b.read(b.variable("three", start)));
    }
    const auto there = b.device("gpu:2");
    b.result(far + b.read(b.variable("two", start)));
  };
  const auto measure = [&](const char* name, bool record, int runs) {
    const auto program = [&](const auto&... branches) {
      GraphBuilder b;
      (branches(b), ...);
      CompileOptions options;
      options.record = record;
      return compile(b.finish(), runtime, options);
    };
    const auto seconds = [&](const Program& each) {
      const std::vector<Tensor> fed(each.graph().parameters().size(), start);
      const auto begin = std::chrono::steady_clock::now();
      std::vector<Tensor> last;
      for (int i = 0; i < runs; ++i) last = each.run(fed);
      for (const Tensor& result : last) result.wait();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    const Program alone[] = {program(arrival), program(computation), program(reduction)};
    const Program together = program(arrival, computation, reduction);
    seconds(together);
    for (const Program& each : alone) seconds(each);  // so that everything is recorded
    std::vector<double> ratios;
    for (int i = 0; i < 3; ++i) {
      double longest = 0;
      for (const Program& each : alone) longest = std::max(longest, seconds(each));
      ratios.push_back(seconds(together) / longest);
    }
    const Spread ratio = spread(ratios);
    std::printf("%-24s", name);
    Report::show(ratio, 1, 28);
    std::printf(" of the longest\n");
    return ratio.median;
  };
  report.verdicts().at_most("branches together / the longest, call by call", "",
                            measure("branches, one run", false, 1), kOverlapTarget);
  report.verdicts().at_most("branches together / the longest, replayed", "",
                            measure("branches, replayed", true, 1), kOverlapTarget);
  report.verdicts().at_most("branches together / the longest, replayed in a row", "",
                            measure("branches, 16 runs", true, 16), kOverlapTarget);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Report report(argc, argv, "bench_device_calls");
  lockstep::bench::run(report);
  lockstep::bench::overlap(report);
  report.finish();
}
