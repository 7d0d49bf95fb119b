// Tests: io/traces/worker_traces.cpp
#include "lockstep/io/traces/worker_traces.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/strategies/mirrored.h"
#include "support/json.h"
#include "support/strategy_test.h"
#include "support/virtual_workers.h"

namespace lockstep {
namespace {

using testing::expect_workers;
using ::testing::HasSubstr;
using testing::Json;
using testing::kVector;
using testing::VirtualWorkers;

constexpr int kRuns = 6;

// Each worker's recorder begins at another time. What the first worker gets, and whether the others get nothing.
std::string traced(const VirtualWorkers& workers) {
  std::mutex mutex;
  std::string file;
  expect_workers(workers, [&](MirroredStrategy& strategy) {
    const int rank = strategy.worker().rank;
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * (rank % 3)));
    TraceRecorder recorder;
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::zeros(DType::kF32, {2}), {.aggregation = Aggregation::kMean});
    const auto step = strategy.function(
        {kVector}, [&](Value x) { w.assign_add(replica_context().all_reduce(ReduceOp::kMax, tanh(x))); });
    std::vector<Tensor> slots(static_cast<std::size_t>(workers.replicas),
                              Tensor::full(DType::kF32, {2}, rank));
    const PerReplica<Tensor> x(slots);
    for (int run = 0; run < kRuns; ++run) step.call({&x, 1}, {.observer = &recorder});
    const std::string mine = gather_chrome_traces(recorder.trace(), strategy);
    EXPECT_EQ(mine.empty(), rank != 0);
    const std::lock_guard<std::mutex> lock(mutex);
    if (rank == 0) file = mine;
  });
  return file;
}

TEST(WorkerTraces, HaveAllWorkersByOneClock) {
  const Json file = Json::parse(traced({.count = 3, .replicas = 2, .threads = 2}));
  const double differ_by =
      file["otherData"]["clocks_differ_by_ns_at_most"].number() / 1000;  // in microseconds
  EXPECT_GT(differ_by, 0);
  EXPECT_EQ(file["otherData"]["dropped_events"].number(), 0);
  std::map<int, std::string> names;
  struct Span {
    double begin, end;
  };
  std::map<int, std::vector<Span>> exchanges;  // by worker, in order
  double first = 1e18;
  for (const Json& event : file["traceEvents"].list()) {
    const int process = static_cast<int>(event["pid"].number());
    const std::string& phase = event["ph"].text();
    if (phase == "M" && event["name"].text() == "process_name") names[process] = event["args"]["name"].text();
    if (phase != "M") {
      EXPECT_GE(event["ts"].number(), 0);
      first = std::min(first, event["ts"].number());
    }
    if (phase != "X" || event["args"].object().count("shard") == 0) continue;
    if (event["args"]["op"].text() != "group_all_reduce") continue;
    EXPECT_EQ(event["cat"].text(), "collective");
    exchanges[process].push_back({event["ts"].number(), event["ts"].number() + event["dur"].number()});
  }
  EXPECT_LT(first, 1e6) << "the earliest recorder is the beginning";
  EXPECT_EQ(names, (std::map<int, std::string>{{1, "worker:0"}, {2, "worker:1"}, {3, "worker:2"}}));
  ASSERT_EQ(exchanges.size(), 3U);
  for (auto& [process, spans] : exchanges) {
    ASSERT_GE(spans.size(), static_cast<std::size_t>(kRuns)) << process;
    ASSERT_EQ(spans.size(), exchanges[1].size());
    std::ranges::sort(spans, {}, &Span::begin);
  }
  // Nobody's exchange is over before all have begun it.
  for (std::size_t i = 0; i < exchanges[1].size(); ++i) {
    double begin = 0, end = 1e18;
    for (const auto& [process, spans] : exchanges) {
      begin = std::max(begin, spans[i].begin);
      end = std::min(end, spans[i].end);
    }
    EXPECT_LE(begin, end + 2 * differ_by) << i;
  }
}

TEST(WorkerTraces, OfOneWorkerAreItsTrace) {
  const std::string text = traced({.count = 1, .replicas = 2});
  const Json file = Json::parse(text);
  EXPECT_THAT(text, HasSubstr("worker:0"));
  EXPECT_GT(file["traceEvents"].list().size(), static_cast<std::size_t>(kRuns));
}

// A call of a group need not wait for the end of the one before it: the group has them in order.
TEST(TracedExchanges, AreCalledBeforeThoseBeforeThemAreOver) {
  Trace trace;
  std::mutex mutex;
  expect_workers({.count = 2, .bytes_per_pack = 1}, [&](MirroredStrategy& strategy) {
    const int rank = strategy.worker().rank;
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::zeros(DType::kF32, {2}), {.aggregation = Aggregation::kMean});
    const Variable v("v", Tensor::zeros(DType::kF32, {2}), {.aggregation = Aggregation::kMean});
    const auto step = strategy.function({{DType::kF32, {2}}}, [&](Value x) {
      const TensorSpec spec{DType::kF32, {2}};
      x = current_builder()->call("late", {&x, 1}, {&spec, 1}, [rank](KernelContext& c) {
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        std::copy_n(c.input<float>(0).data(), 2, c.output<float>(0).data());
      })[0];
      w.assign_add(x);
      v.assign_add(tanh(x));
    });
    TraceRecorder recorder;
    const PerReplica<Tensor> x(std::vector{Tensor::full(DType::kF32, {2}, 1)});
    step.call({&x, 1}, {.observer = &recorder});
    const std::lock_guard<std::mutex> lock(mutex);
    if (rank == 0) trace = recorder.trace();
  });
  std::vector<const TracedCall*> made, over;  // by begin
  for (const TracedCall& call : trace.calls) {
    if (trace.nodes[call.node].op == "group_all_reduce")
      (call.shard == call.shards ? over : made).push_back(&call);
  }
  ASSERT_EQ(made.size(), 2U);
  ASSERT_EQ(over.size(), 2U);
  std::ranges::sort(made, {}, [](const TracedCall* call) { return call->begin; });
  std::ranges::sort(over, {}, [](const TracedCall* call) { return call->begin; });
  EXPECT_GT(over[0]->end - over[0]->begin, 100'000'000) << "the other worker is late";
  EXPECT_LT(made[1]->begin, over[0]->end);
  EXPECT_GE(over[1]->begin, over[0]->end);
}

// Texts of more than a piece, and of different lengths.
TEST(WorkerTraces, TakeLongTexts) {
  std::mutex mutex;
  std::string file;
  expect_workers({.count = 2}, [&](MirroredStrategy& strategy) {
    Trace trace;
    trace.tracks.push_back({"caller"});
    trace.nodes.push_back({.name = std::string(1000, 'n'), .op = "add"});
    const int calls = strategy.worker().rank == 0 ? 10 : 3000;
    for (int i = 0; i < calls; ++i) trace.calls.push_back({.begin = 10 * i, .end = 10 * i + 5});
    const std::string mine = gather_chrome_traces(trace, strategy);
    const std::lock_guard<std::mutex> lock(mutex);
    file += mine;
  });
  EXPECT_GT(file.size(), 3'000'000U);
  std::map<int, int> slices;
  const Json parsed = Json::parse(file);
  for (const Json& event : parsed["traceEvents"].list()) {
    if (event["ph"].text() == "X") ++slices[static_cast<int>(event["pid"].number())];
  }
  EXPECT_EQ(slices[1], 10);
  EXPECT_EQ(slices[2], 3000);
}

}  // namespace
}  // namespace lockstep
