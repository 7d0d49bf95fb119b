// Tests: graph/run/observer.cpp, graph/run/run_context.cpp
#include "lockstep/graph/run/observer.h"

#include <latch>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "lockstep/core/store_at_rest.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/transform/pass.h"
#include "lockstep/strategies/passes/place.h"
#include "lockstep/testing/fake_gpu.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::vec;
using testing::with_lanes;

const CompileOptions kWays[] = {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)};

class Recorder : public Observer {
 public:
  void on_run_begin(const RunEvent&) noexcept override { ++run_begins; }
  void on_run_end(const RunEvent&) noexcept override {
    ++run_ends;
    const std::lock_guard<std::mutex> lock(mutex_);
    open_at_end += open_.size();
  }
  void on_node_begin(const NodeEvent& event) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++begins[{event.node.name(), event.shard}];
    open_.insert({event.node.name(), event.shard, event.worker});
    workers.insert(event.worker);
    shards[event.node.name()] = event.shards;
  }
  void on_node_end(const NodeEvent& event) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++ends[{event.node.name(), event.shard}];
    const auto found = open_.find({event.node.name(), event.shard, event.worker});
    if (found == open_.end()) {
      ++ends_without_begin;
    } else {
      open_.erase(found);
    }
  }

  std::atomic<int> run_begins{0}, run_ends{0};
  std::map<std::pair<std::string, std::int64_t>, int> begins, ends;
  std::map<std::string, std::int64_t> shards;
  std::set<int> workers;
  std::size_t open_at_end = 0;
  int ends_without_begin = 0;

 private:
  std::mutex mutex_;
  std::multiset<std::tuple<std::string, std::int64_t, int>> open_;  // node, shard, worker
};

RunOptions watched_by(Recorder& recorder) {
  RunOptions options;
  options.observer = &recorder;
  return options;
}

TEST(Observer, SeesEveryNodeThatRunsOnce) {
  for (const CompileOptions& way : kWays) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    const VariableRef v = b.variable("v", vec({1, 2}));
    const Value y = relu(x * b.read(v));
    b.call("lambda", [] {});
    b.assign(v, y);
    b.result(y + 1.0F);
    const Program program = compile(b.finish(), Runtime({.threads = 2}), way);
    Recorder recorder;
    program.run({{"x", vec({1, 2})}}, watched_by(recorder));
    EXPECT_EQ(recorder.run_begins, 1);
    EXPECT_EQ(recorder.run_ends, 1);
    EXPECT_EQ(recorder.open_at_end, 0U);
    EXPECT_EQ(recorder.ends_without_begin, 0);
    EXPECT_EQ(recorder.begins, recorder.ends);
    std::set<std::string> names;
    for (const auto& [key, count] : recorder.begins) {
      EXPECT_EQ(count, 1) << key.first;
      names.insert(key.first);
    }
    EXPECT_EQ(names, (std::set<std::string>{"mul", "relu", "lambda", "v/assign", "add"}));
  }
}

TEST(Observer, SeesEveryShardAndTheFinishingCall) {
  for (const CompileOptions& way : kWays) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {200'000});
    b.result(sum(x + 1.0F));
    const Program program = compile(b.finish(), Runtime({.threads = 2}), way);
    Recorder recorder;
    program.run({{"x", Tensor::zeros({200'000})}}, watched_by(recorder));
    EXPECT_EQ(recorder.shards.at("add"), 4);
    EXPECT_EQ(recorder.shards.at("sum"), 4);
    for (std::int64_t shard = 0; shard < 4; ++shard) {
      EXPECT_EQ((recorder.begins[{"add", shard}]), 1);
      EXPECT_EQ((recorder.begins[{"sum", shard}]), 1);
    }
    EXPECT_EQ((recorder.begins[{"sum", 4}]), 1) << "the finishing call";
    EXPECT_EQ(recorder.begins.size(), 9U);
    EXPECT_EQ(recorder.begins, recorder.ends);
  }
}

TEST(Observer, KnowsTheWorker) {
  const Runtime runtime({.threads = 2});
  GraphBuilder b;
  for (int i = 0; i < 50; ++i) b.call("node", [] {});
  const Graph graph = b.finish();
  Recorder here;
  compile(graph, runtime).run({}, watched_by(here));
  EXPECT_EQ(here.workers, std::set<int>{-1}) << "inline, on the calling thread";
  Recorder lanes;
  compile(graph, runtime, with_lanes(Clustering::kOff)).run({}, watched_by(lanes));
  for (const int worker : lanes.workers) EXPECT_TRUE(worker >= -1 && worker < 2) << worker;
  Recorder there;
  compile(graph, runtime).run_async({}, watched_by(there)).get();
  ASSERT_EQ(there.workers.size(), 1U);
  EXPECT_GE(*there.workers.begin(), 0);
  EXPECT_LT(*there.workers.begin(), 2);
}

TEST(Observer, SeesTheEndOfWhatFails) {
  for (const CompileOptions& way : kWays) {
    GraphBuilder b;
    const NodeId first = b.call("first", [] {});
    const NodeId bad = b.call("bad", [] { throw std::domain_error("no"); }, {}, {&first, 1});
    b.call("never", [] {}, {}, {&bad, 1});
    const Program program = compile(b.finish(), Runtime({.threads = 2}), way);
    Recorder recorder;
    caught([&] { program.run({}, watched_by(recorder)); });
    EXPECT_EQ(recorder.run_begins, 1);
    EXPECT_EQ(recorder.run_ends, 1);
    EXPECT_EQ(recorder.begins, recorder.ends);
    EXPECT_EQ((recorder.begins[{"bad", 0}]), 1);
    EXPECT_EQ(recorder.begins.count({"never", 0}), 0U);
    EXPECT_EQ(recorder.open_at_end, 0U);
  }
}

TEST(Observer, SeesARunThatIsStopped) {
  for (const CompileOptions& way : kWays) {
    GraphBuilder b;
    std::stop_source stop;
    const NodeId first = b.call("first", [&] { stop.request_stop(); });
    b.call("never", [] {}, {}, {&first, 1});
    const Program program = compile(b.finish(), Runtime({.threads = 2}), way);
    Recorder recorder;
    RunOptions options = watched_by(recorder);
    options.cancel = stop.get_token();
    caught([&] { program.run({}, options); });
    EXPECT_EQ(recorder.run_begins, 1);
    EXPECT_EQ(recorder.run_ends, 1);
    EXPECT_EQ((recorder.ends[{"first", 0}]), 1);
    EXPECT_EQ(recorder.begins.size(), 1U);
  }
}

TEST(Observer, KnowsTheRunItsProgramAndWhatNodesMove) {
  struct Seen final : Observer {
    void on_run_begin(const RunEvent& event) noexcept override {
      runs.insert(event.run);
      programs.insert(event.program);
      graph = &event.graph;
    }
    void on_node_begin(const NodeEvent& event) noexcept override {
      in_known_run = in_known_run && runs.contains(event.run.run);
      if (event.node.name() == "add") read = event.bytes_read, written = event.bytes_written;
    }
    void on_node_end(const NodeEvent&) noexcept override {}
    std::set<std::uint64_t> runs, programs;
    const Graph* graph = nullptr;
    bool in_known_run = true;
    std::int64_t read = 0, written = 0;
  } seen;
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  b.result(cond(
      sum(x) < 3.0F, [&]() -> std::vector<Value> { return {x + x}; },
      [&]() -> std::vector<Value> { return {x}; })[0]);
  const Program program = compile(b.finish(), Runtime({.threads = 2}));
  for (int i = 0; i < 2; ++i) program.run({{"x", vec({1, 1})}}, {.observer = &seen});
  EXPECT_EQ(seen.runs.size(), 2U);
  EXPECT_EQ(seen.programs.size(), 1U);
  EXPECT_EQ(seen.graph, &program.graph());
  EXPECT_TRUE(seen.in_known_run) << "nodes of regions belong to the run around them";
  EXPECT_EQ(seen.read, 16) << "two inputs of two floats, known when feeds arrive";
  EXPECT_EQ(seen.written, 8);
}

// What is told of each node: bytes that must move, multiply-adds.
class Figures final : public Observer {
 public:
  void on_node_begin(const NodeEvent&) noexcept override {}
  void on_node_end(const NodeEvent& event) noexcept override { add(event); }
  void on_span(const SpanEvent& event) noexcept override { add(event); }

  std::map<std::string, std::pair<double, double>> of;

 private:
  template <class Event>
  void add(const Event& event) {
    if (event.copies) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    of[event.node.name()] = {event.bytes_moved, event.multiply_adds};
  }
  std::mutex mutex_;
};

Graph figured_graph() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 4});
  const VariableRef table = b.variable("table", Tensor::zeros({100, 4}));
  const Value square = x * x;
  const Value product = matmul(square, b.read(b.variable("w", Tensor::zeros({4, 8}))));
  const Value rows = gather(b.read(table), b.constant(Tensor::from<std::int64_t>({2}, {3, 7})));
  const Value total = sum(product);
  b.result(cond(
      total + sum(rows) < 3.0F, [&]() -> std::vector<Value> { return {relu(product)}; },
      [&]() -> std::vector<Value> { return {product}; })[0]);
  return b.finish();
}

void expect_figures(const Figures& told) {
  using Pair = std::pair<double, double>;
  EXPECT_EQ(told.of.at("mul"), Pair(2 * 4 * 12, 0)) << "an input that is given twice is read once";
  EXPECT_EQ(told.of.at("matmul"), Pair(4 * (12 + 32 + 24), 3 * 4 * 8)) << "by the shape of the feed";
  EXPECT_EQ(told.of.at("gather"), Pair(4 * (8 + 8) + 16, 0)) << "two rows of the table";
  EXPECT_EQ(told.of.at("sum"), Pair(4 * (24 + 1), 0));
  EXPECT_EQ(told.of.at("relu"), Pair(4 * (24 + 24), 0)) << "in a region";
  EXPECT_EQ(told.of.at("cond"), Pair(0, 0)) << "its region's nodes count";
}

TEST(Observer, KnowsWhatNodesHaveToMoveAndToMultiply) {
  for (const CompileOptions& way : kWays) {
    Figures told;
    const Program program = compile(figured_graph(), Runtime({.threads = 2}), way);
    program.run({{"x", Tensor::full(DType::kF32, {3, 4}, 0)}}, {.observer = &told});
    expect_figures(told);
  }
}

// Kernels of other devices say nothing of their work: the op does.
TEST(Observer, KnowsTheSameOfCallsOnStreams) {
  const Runtime runtime({.threads = 2, .backends = {std::make_shared<testing::FakeGpu>()}});
  Graph graph = figured_graph();
  PassContext context{.topology = &runtime.topology()};
  make_place({.devices = {"gpu:0"}})->run(graph, context);
  Figures told;
  const Program program = compile(std::move(graph), runtime);
  for (int i = 0; i < 3; ++i) program.run({{"x", Tensor::full(DType::kF32, {3, 4}, 0)}}, {.observer = &told});
  expect_figures(told);
}

// A run that holds variable "v" (1, 2) until somebody else is seen waiting, and then doubles it.
class Holder {
 public:
  explicit Holder(const Runtime& runtime) : program_(compile(graph(), runtime)) {}

  // Returns when the variable is held.
  std::jthread run() {
    std::jthread thread([this] { program_.run(); });
    held_.wait();
    return thread;
  }
  void somebody_waits() { seen_waiting_.count_down(); }

 private:
  Graph graph() {
    GraphBuilder b;
    const VariableRef v = b.variable("v", vec({1, 2}));
    b.call("holds", [this] {
      held_.count_down();
      seen_waiting_.wait();
    });
    b.assign(v, b.read(v) * 2.0F);
    return b.finish();
  }

  std::latch held_{1}, seen_waiting_{1};
  Program program_;
};

// Tells the holder of the first wait it sees.
struct Waits : Observer {
  explicit Waits(Holder& told) : holder(told) {}
  void on_wait_begin(const WaitEvent& event) noexcept override {
    if (variables.empty()) holder.somebody_waits();
    variables.emplace_back(event.variable);
  }
  void on_wait_end(const WaitEvent& event) noexcept override { ended = event.run.run; }
  void on_run_begin(const RunEvent& event) noexcept override { ran_after_wait = ended == event.run; }
  void on_node_begin(const NodeEvent&) noexcept override {}
  void on_node_end(const NodeEvent&) noexcept override {}
  Holder& holder;
  std::vector<std::string> variables;
  std::uint64_t ended = 0;
  bool ran_after_wait = false;
};

// Adds (1, 1) to a variable that begins with (1, 2).
Program adding_to(std::string_view variable, const Runtime& runtime) {
  GraphBuilder b;
  b.assign_add(b.variable(variable, vec({1, 2})), b.constant(vec({1, 1})));
  return compile(b.finish(), runtime);
}

TEST(Observer, SeesARunWaitForAVariableThatAnotherHolds) {
  const Runtime runtime({.threads = 2});
  Holder holder(runtime);
  Waits waits(holder);
  const Program waiter = adding_to("v", runtime);
  const std::jthread other = holder.run();
  waiter.run({}, {.observer = &waits});
  EXPECT_EQ(waits.variables, std::vector<std::string>{"v"});
  EXPECT_TRUE(waits.ran_after_wait);
  EXPECT_EQ(runtime.variables()->value("v").data<float>()[1], 5) << "2 * 2 + 1";
}

// While a store comes to rest, runs wait that need nothing which others hold.
TEST(Observer, SeesARunWaitForACheckpoint) {
  const Runtime runtime({.threads = 2});
  Holder holder(runtime);
  Waits waits(holder);
  const Program waiter = adding_to("u", runtime);
  const std::jthread runs = holder.run();
  const std::jthread saves([&] { const StoreAtRest rest(*runtime.variables(), StoreAtRest::Access::kRead); });
  while (waits.variables.empty()) waiter.run({}, {.observer = &waits});  // once the other has begun to wait
  EXPECT_EQ(waits.variables[0], "*");
}

TEST(Observer, SeesEachStepOfRunN) {
  GraphBuilder b;
  b.call("node", [] {});
  Recorder recorder;
  compile(b.finish(), Runtime()).run_n(7, {}, watched_by(recorder));
  EXPECT_EQ(recorder.run_begins, 7);
  EXPECT_EQ(recorder.run_ends, 7);
  EXPECT_EQ((recorder.begins[{"node", 0}]), 7);
}

}  // namespace
}  // namespace lockstep
