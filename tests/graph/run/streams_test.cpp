// Tests: graph/run/segments.cpp, graph/run/memory_plan.cpp, graph/run/run_context.cpp, graph/run/phase_plan.cpp
// Programs on devices that work by themselves: the interpreter's bits, whatever the streams do first.
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/testing/fake_gpu.h"
#include "support/program_test.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class Streams : public ::testing::Test {
 protected:
  Streams() : gpus_(std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 3, .memories = {0, 1, 0}})) {}
  static Runtime on(const std::shared_ptr<FakeGpu>& gpus, std::size_t threads = 2) {
    return Runtime({.threads = threads, .cpu_devices = 2, .backends = {gpus}});
  }
  Runtime runtime(std::size_t threads = 2) const { return on(gpus_, threads); }

  std::shared_ptr<FakeGpu> gpus_;
};

struct Way {
  std::size_t threads;
  CompileOptions options;
};
std::vector<Way> ways() {
  return {{1, {}},
          {2, {}},
          {1, with_lanes(Clustering::kOff)},
          {2, with_lanes()},
          {2, with_lanes(Clustering::kOff)}};
}

// A value that crosses the host and two devices, with a variable on each of them.
Graph crossing_graph() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  const auto at = [&](const char* device, const std::function<Value()>& make) {
    const auto scope = b.device(device);
    return make();
  };
  const Value a = at("gpu:0", [&] { return x * 2.0F + 1.0F; });
  const Value c = at("gpu:1", [&] { return relu(a - x); });
  const Value d = at("cpu:0", [&] { return exp(a) + c; });
  const Value e = at("gpu:2", [&] { return tanh(d) * a; });
  at("gpu:0", [&] {
    const VariableRef w = b.variable("w", Tensor::from({4}, {1.F, 2.F, 3.F, 4.F}));
    b.assign_add(w, e);
    return b.read(w);
  });
  at("cpu:0", [&] {
    const VariableRef v = b.variable("v", Tensor::zeros(DType::kF32, {4}));
    b.assign(v, c * 3.0F);
    return b.read(v);
  });
  b.result(e + c);
  b.result(a);
  return b.finish();
}

TEST_F(Streams, GiveTheInterpretersBits) {
  const Graph graph = crossing_graph();
  const std::vector<Tensor> fed = list({vec({1, -2, 3, 0.5})});
  for (const std::uint64_t seed : {0U, 1U, 2U, 3U, 4U}) {
    gpus_->set_delays(seed == 0 ? 0us : 300us, seed);
    for (const Way& way : ways()) {
      Interpreter interpreter(graph);
      CompileOptions options = way.options;
      options.variables = std::make_shared<VariableStore>();
      const Program program = compile(graph, runtime(way.threads), options);
      for (int step = 0; step < 3; ++step) {
        expect_same_tensors(program.run(fed), interpreter.run(fed));
        expect_same_values(variables_of(*options.variables), interpreter.variables());
      }
    }
  }
  EXPECT_GT(gpus_->calls(), 0U);
}

// Nothing but the gate says that what else reads a variable comes before the commit.
TEST_F(Streams, AVariableIsReadEverywhereBeforeItIsWritten) {
  GraphBuilder b;
  VariableRef w;
  {
    const auto there = b.device("gpu:0");
    w = b.variable("w", vec({1, 2}));
  }
  for (const char* device : {"gpu:1", "gpu:2", "cpu:0"}) {
    const auto there = b.device(device);
    b.result(b.read(w) * 2.0F);
  }
  {
    const auto there = b.device("gpu:0");
    b.assign_add(w, b.constant(vec({10, 20})));
  }
  const Graph graph = b.finish();
  for (const std::uint64_t seed : {0U, 1U, 2U}) {
    gpus_->set_delays(seed == 0 ? 0us : 200us, seed);
    for (const Way& way : ways()) {
      Interpreter interpreter(graph);
      CompileOptions options = way.options;
      options.variables = std::make_shared<VariableStore>();
      const Program program = compile(graph, runtime(way.threads), options);
      for (int step = 0; step < 5; ++step) expect_same_tensors(program.run(), interpreter.run({}));
      expect_same_values(variables_of(*options.variables), interpreter.variables());
    }
  }
}

// An op that may write over its input does not, while another stream copies that.
TEST_F(Streams, NothingIsWrittenOverWhatAnotherStreamReads) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  const auto at = [&](const char* device, const std::function<Value()>& make) {
    const auto scope = b.device(device);
    return make();
  };
  const Value made = at("gpu:0", [&] { return exp(x); });
  b.result(at("gpu:1", [&] { return tanh(made); }));
  b.result(at("gpu:0", [&] { return neg(made) * 2.0F; }));
  const Graph graph = b.finish();
  for (const std::uint64_t seed : {0U, 1U}) {
    gpus_->set_delays(seed == 0 ? 0us : 300us, seed);
    for (const Way& way : ways()) {
      const Program program = compile(graph, runtime(way.threads), way.options);
      for (int step = 0; step < 3; ++step) {
        const std::vector<Tensor> fed = list({vec({1, -2, 3, static_cast<float>(step)})});
        expect_same_tensors(program.run(fed), Interpreter(graph).run(fed));
      }
    }
  }
}

// Calls that a segment puts on streams count as calls, the segment and the awaits do not.
TEST_F(Streams, SummariesCountTheCallsOfDevices) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  {
    const auto there = b.device("gpu:0");
    b.result(relu(x) + 1.0F);
  }
  const Program program = compile(b.finish(), runtime(1));
  const std::vector<Tensor> fed = list({vec({1, 2, 3, 4})});
  EXPECT_EQ(program.plan(fed).calls, 4U) << "a copy in, relu, add, and a copy to the result";
  const std::uint64_t before = gpus_->calls();
  program.run(fed);
  EXPECT_EQ(gpus_->calls() - before, 4U);
}

// --- recordings

// A step of which everything is on devices: dropout draws from the step, so that a recording that kept it would show.
Graph recorded_graph() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  Value y;
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", Tensor::from({4}, {1.F, 2.F, 3.F, 4.F}));
    y = dropout(x * b.read(w), 0.5);
    b.assign_add(w, y);
  }
  {
    const auto there = b.device("gpu:1");
    b.result(tanh(y) + x);
  }
  b.result(y);
  return b.finish();
}

TEST_F(Streams, ReplaysGiveTheSameBits) {
  const Graph graph = recorded_graph();
  for (const std::uint64_t seed : {0U, 1U, 2U}) {
    gpus_->set_delays(seed == 0 ? 0us : 200us, seed);
    for (const Way& way : ways()) {
      Interpreter interpreter(graph);
      CompileOptions options = way.options;
      options.variables = std::make_shared<VariableStore>();
      const Program program = compile(graph, runtime(way.threads), options);
      const std::uint64_t before = gpus_->replays();
      for (int step = 0; step < 6; ++step) {
        // Feeds and results are somewhere else in each run.
        const std::vector<Tensor> fed = list({vec({1, -2, 3, static_cast<float>(step)})});
        expect_same_tensors(program.run(fed), interpreter.run(fed));
        expect_same_values(variables_of(*options.variables), interpreter.variables());
      }
      EXPECT_GE(gpus_->replays() - before, 5U) << "from the second run on";
      for (const SegmentSummary& segment : program.plan(list({vec({1, 2, 3, 4})})).segments)
        EXPECT_TRUE(segment.records) << segment.why_not;
    }
  }
}

// Two runs at the same time have two contexts, which take turns with the one of the region: the variable that it writes is
// somewhere else each time.
TEST_F(Streams, RegionsAreRecordedAnewWhereTheirVariablesHaveMoved) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value yes = b.placeholder("yes", DType::kBool, {});
  std::function<void()> meanwhile;
  b.call("meanwhile", [&] { meanwhile(); });
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", vec({0, 0}));
    const Value y = x * 2.0F;
    const auto taken = [&] {
      b.assign_add(w, y * 0.5F);
      return std::vector{y + 1.0F};
    };
    const auto other = [&] { return std::vector{y}; };
    b.result(cond(yes, taken, other)[0]);
  }
  CompileOptions options;
  options.variables = std::make_shared<VariableStore>();
  const Program program = compile(b.finish(), runtime(), options);
  const std::vector<Tensor> fed = list({vec({1, 2}), Tensor::scalar(true)});
  std::atomic<bool> first = false;
  std::thread second;
  meanwhile = [&] {
    if (!first.exchange(false)) return;
    second = std::thread([&] { program.run(fed); });
    // It has taken a context when it waits for the variable.
    while (!options.variables->find("w")->is_reserved(false)) std::this_thread::yield();
  };
  constexpr int kAlone = 3, kRounds = 4;
  for (int i = 0; i < kAlone; ++i) program.run(fed);  // recorded
  for (int i = 0; i < kRounds; ++i) {
    first = true;
    EXPECT_EQ(floats(program.run(fed)[0].host()), (std::vector<float>{3, 5}));
    second.join();
  }
  constexpr float kRuns = kAlone + 2 * kRounds;
  EXPECT_EQ(floats(options.variables->value("w")), (std::vector<float>{kRuns, 2 * kRuns}));
  EXPECT_GT(gpus_->replays(), 0U);
}

TEST_F(Streams, FeedsOfADeviceAreReadWhereTheyAre) {
  const Graph graph = recorded_graph();
  Interpreter interpreter(graph);
  const Runtime here = runtime();
  const Program program = compile(graph, here, {.variables = std::make_shared<VariableStore>()});
  for (int step = 0; step < 5; ++step) {
    const Tensor fed = vec({1, -2, 3, static_cast<float>(step)});
    expect_same_tensors(program.run(list({fed.to(Device::parse("gpu:0"), here)})),
                        interpreter.run(list({fed})));
  }
  EXPECT_GT(gpus_->replays(), 0U);
}

TEST_F(Streams, WhatIsNotRecordedSaysWhy) {
  CompileOptions options;
  options.record = false;
  const Program plain = compile(recorded_graph(), runtime(), options);
  const std::vector<Tensor> fed = list({vec({1, 2, 3, 4})});
  for (int i = 0; i < 3; ++i) plain.run(fed);
  EXPECT_EQ(gpus_->replays(), 0U);
  for (const SegmentSummary& segment : plain.plan(fed).segments)
    EXPECT_THAT(segment.why_not, HasSubstr("CompileOptions::record is false"));

  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  const Value yes = b.placeholder("yes", DType::kBool, {});
  {
    const auto there = b.device("gpu:0");
    const Value a = x * 2.0F;
    b.result(a + 1.0F);
    const auto twice = [&] { return std::vector{a * 2.0F}; };
    const auto thrice = [&] { return std::vector{a * 3.0F}; };
    b.result(cond(yes, twice, thrice)[0]);  // run by the host
  }
  const Program awaited = compile(b.finish(), runtime());
  const std::vector<Tensor> both = list({vec({1, 2, 3, 4}), Tensor::scalar(true)});
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(floats(awaited.run(both)[1].host()), (std::vector<float>{4, 8, 12, 16}));
  EXPECT_THAT(awaited.plan(both).segments.at(0).why_not,
              HasSubstr("the host awaits 'mul' in the middle of it"));
}

// The host waits for what it reads, not for what else runs there: the call lets the other device go on.
TEST_F(Streams, TheHostAwaitsSingleValues) {
  for (const Way& way : ways()) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    Value slow, quick;
    {
      const auto there = b.device("gpu:1");
      slow = x * 3.0F;
    }
    {
      const auto there = b.device("gpu:0");
      quick = x + 1.0F;
    }
    const TensorSpec spec{DType::kF32, {2}};
    const Value looked = b.call("look", {&quick, 1}, {&spec, 1}, [&](KernelContext& c) {
      std::copy_n(c.input<float>(0).data(), 2, c.output<float>(0).data());
      gpus_->release(1, StreamRole::kCompute);
    })[0];
    b.result(looked);
    b.result(slow);
    const Program program = compile(b.finish(), runtime(way.threads), way.options);
    gpus_->hold(1, StreamRole::kCompute);
    RunOptions options;
    options.deadline = Clock::now() + 60s;
    const std::vector<Tensor> results = program.run(list({vec({1, 2})}), options);
    EXPECT_EQ(floats(results[0].host()), (std::vector<float>{2, 3}));
    EXPECT_EQ(floats(results[1].host()), (std::vector<float>{3, 6}));
  }
}

// What devices do is put on their streams before the host computes, and both devices work at the same time: each
// waits until all have come.
std::atomic<std::latch*> meeting{nullptr};
void add_meet_op() {
  OpRegistry& registry = OpRegistry::global();
  if (registry.find("test_meet") != nullptr) return;
  OpDef def;
  def.name = "test_meet";
  def.summary = "waits for the others";
  def.inputs = {1, 1};
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) {
      meeting.load()->arrive_and_wait();
      std::copy_n(c.input<float>(0).data(), 2, c.output<float>(0).data());
    };
  };
  registry.add(std::move(def));
  FakeGpu::add_kernels();
}

TEST_F(Streams, BranchesOnDevicesAndTheHostOverlap) {
  add_meet_op();
  for (const Way& way : ways()) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    for (const char* device : {"cpu:0", "gpu:0", "gpu:1"}) {
      const auto there = b.device(device);
      b.result(b.op1("test_meet", {x}));
    }
    const Program program = compile(b.finish(), runtime(way.threads), way.options);
    for (int i = 0; i < 4; ++i) {
      std::latch all(3);
      meeting = &all;
      for (const Tensor& result : program.run(list({vec({1, 2})})))
        EXPECT_EQ(floats(result.host()), (std::vector<float>{1, 2}));
    }
  }
}

// How many calls of this op have begun.
std::atomic<int> told{0};
void add_tell_op() {
  OpRegistry& registry = OpRegistry::global();
  if (registry.find("test_tell") != nullptr) return;
  OpDef def;
  def.name = "test_tell";
  def.summary = "says that it runs";
  def.inputs = {1, 1};
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) {
      ++told;
      std::copy_n(c.input<float>(0).data(), 2, c.output<float>(0).data());
    };
  };
  registry.add(std::move(def));
  FakeGpu::add_kernels();
}

// What reads no feed begins before the feed is there, also in a recording: on another device, and in front of what reads it.
TEST_F(Streams, OnlyWhatReadsAFeedWaitsForIt) {
  add_tell_op();
  for (const bool updates : {false, true}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    Value y;
    {
      const auto there = b.device("gpu:0");
      const VariableRef w = b.variable("w", vec({10, 20}));
      const Value early = b.op1("test_tell", {b.read(w)});
      y = early + x;
      if (updates) b.assign(w, early + 1.0F);
    }
    b.result(y);
    {
      const auto there = b.device("gpu:1");
      const VariableRef v = b.variable("v", vec({3, 4}));
      b.result(b.op1("test_tell", {b.read(v)}) * 2.0F);
    }
    const Program program = compile(b.finish(), runtime(1), {.variables = std::make_shared<VariableStore>()});
    const std::uint64_t before = gpus_->replays();
    for (int i = 0; i < 6; ++i) {
      told = 0;
      gpus_->hold(0, StreamRole::kCopyIn);
      const auto step = static_cast<float>(i);
      const std::vector<Tensor> results = program.run(list({vec({step, 2})}));
      const auto latest = Clock::now() + 20s;
      while (told < 2 && Clock::now() < latest) std::this_thread::yield();
      EXPECT_EQ(told, 2) << "run " << i;
      EXPECT_FALSE(results[0].is_ready());
      gpus_->release(0, StreamRole::kCopyIn);
      const float more = updates ? step : 0;
      EXPECT_EQ(floats(results[0].host()), (std::vector<float>{10 + more + step, 22 + more}));
      EXPECT_EQ(floats(results[1].host()), (std::vector<float>{6, 8}));
    }
    EXPECT_GE(gpus_->replays() - before, 4U);
  }
}

// The host computes beside the last segment in front of the commit, which must not wait for that.
TEST_F(Streams, AStepThatIsReplayedOverlapsWithTheHost) {
  add_tell_op();
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", vec({0, 0}));
    b.assign_add(w, b.op1("test_tell", {x}));
  }
  int waited = 0;
  b.call("host", [&] {
    const auto latest = Clock::now() + 20s;
    while (told == 0 && Clock::now() < latest) std::this_thread::yield();
    waited += told > 0 ? 1 : 0;
  });
  const auto store = std::make_shared<VariableStore>();
  const Program program = compile(b.finish(), runtime(1), {.variables = store});
  for (int i = 1; i < 6; ++i) {
    told = 0;
    program.run(list({vec({1, 2})}));
    program.wait();
    ASSERT_EQ(waited, i);
  }
  EXPECT_EQ(floats(store->value("w")), (std::vector<float>{5, 10}));
  EXPECT_GT(gpus_->replays(), 0U);
}

// What a recording reads of one before it is waited for in front: its events are set by the replay. The host awaits other things.
TEST_F(Streams, RecordingsFollowEachOther) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  Value y, z, h;
  {
    const auto there = b.device("gpu:2");
    const VariableRef v = b.variable("v", vec({3, 4}));
    y = exp(b.read(v) * 0.25F);
    b.assign(v, y * 0.5F);
  }
  {
    const auto here = b.device("cpu:0");
    h = tanh(x);
  }
  {
    const auto there = b.device("gpu:0");  // in the memory of gpu:2
    z = relu(h * y + y);
    b.result(z);
  }
  {
    const auto here = b.device("cpu:0");
    h = tanh(z);
  }
  {
    const auto there = b.device("gpu:1");
    b.result(h * y);
  }
  const Graph graph = b.finish();
  for (const std::uint64_t seed : {0U, 1U, 2U}) {
    gpus_->set_delays(seed == 0 ? 0us : 300us, seed);
    for (const std::size_t ahead : {1U, 2U}) {
      Interpreter interpreter(graph);
      const Runtime here = runtime();
      const Program program =
          compile(graph, here, {.variables = std::make_shared<VariableStore>(), .runs_ahead = ahead});
      std::vector<Tensor> fed;
      for (int i = 0; i < 6; ++i) {
        const Tensor given = vec({static_cast<float>(i), 1});
        fed = list({given.to(Device::parse("gpu:1"), here)});
        const std::vector<Tensor> results = program.run(fed), expected = interpreter.run(list({given}));
        if (i % 2 == 0) expect_same_tensors(results, expected);
      }
      program.wait();
      expect_same_values(variables_of(program.variables()), interpreter.variables());
      const std::vector<SegmentSummary> segments = program.plan(fed).segments;
      EXPECT_GE(segments.size(), 3U);
      for (const SegmentSummary& segment : segments) EXPECT_TRUE(segment.records) << segment.why_not;
    }
  }
}

// Each run has results of its own: what a recording reads does not lie in one.
TEST_F(Streams, RecordingsReadNoResults) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  Value h;
  {
    const auto here = b.device("cpu:0");
    h = tanh(x);
    b.result(h);
  }
  {
    const auto there = b.device("gpu:0");
    const VariableRef v = b.variable("v", vec({3, 4}));
    b.assign(v, exp(h) * 0.5F);
  }
  const Graph graph = b.finish();
  const Program program = compile(graph, runtime(), {.variables = std::make_shared<VariableStore>()});
  Interpreter interpreter(graph);
  std::vector<std::vector<Tensor>> kept;  // so that each has memory of its own
  for (int i = 0; i < 5; ++i) {
    const std::vector<Tensor> fed = list({vec({static_cast<float>(i), -1})});
    kept.push_back(program.run(fed));
    expect_same_tensors(kept.back(), interpreter.run(fed));
    expect_same_values(variables_of(program.variables()), interpreter.variables());
  }
  for (const SegmentSummary& segment : program.plan(list({vec({0, 0})})).segments)
    EXPECT_TRUE(segment.records) << segment.why_not;
}

// Of a backend whose recordings cannot wait they begin when their feeds are there.
TEST_F(Streams, RecordingsThatCannotWaitBeginWithTheirFeeds) {
  const auto gpus = std::make_shared<FakeGpu>(
      FakeGpuOptions{.devices = 3, .memories = {0, 1, 0}, .recordings_wait = false});
  const Graph graph = recorded_graph();
  for (const std::uint64_t seed : {0U, 1U}) {
    gpus->set_delays(seed == 0 ? 0us : 200us, seed);
    Interpreter interpreter(graph);
    const Program program = compile(graph, on(gpus), {.variables = std::make_shared<VariableStore>()});
    for (int step = 0; step < 6; ++step) {
      const std::vector<Tensor> fed = list({vec({1, -2, 3, static_cast<float>(step)})});
      expect_same_tensors(program.run(fed), interpreter.run(fed));
    }
  }
  EXPECT_GT(gpus->replays(), 0U);
}

TEST_F(Streams, DeadlinesAndCancellationsDoNotWaitForADevice) {
  for (const Way& way : ways()) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    {
      const auto there = b.device("gpu:0");
      const VariableRef w = b.variable("w", vec({1, 1}));
      b.assign_add(w, x * 2.0F);
    }
    CompileOptions compiled = way.options;
    compiled.variables = std::make_shared<VariableStore>();
    compiled.runs_ahead = 1;  // else the runs return at once
    const Program program = compile(b.finish(), runtime(way.threads), compiled);
    const Tensor fed = vec({1, 2});
    gpus_->hold(0, StreamRole::kCompute);
    RunOptions options;
    options.deadline = Clock::now() + 10ms;
    EXPECT_EQ(caught([&] { program.run(list({fed}), options); }).code, ErrorCode::kDeadlineExceeded);
    std::stop_source stop;
    RunOptions cancelled;
    cancelled.cancel = stop.get_token();
    std::thread stops([&] {
      std::this_thread::sleep_for(5ms);
      stop.request_stop();
    });
    EXPECT_EQ(caught([&] { program.run(list({fed}), cancelled); }).code, ErrorCode::kCancelled);
    stops.join();
    gpus_->release(0, StreamRole::kCompute);
    program.run(list({fed}));
    EXPECT_EQ(floats(compiled.variables->value("w")), (std::vector<float>{3, 5}))
        << "the others did not commit";
  }
}

// Call k fails, for every k: nothing is committed, the error says where, and the other device goes on.
TEST_F(Streams, AFailingCallEndsTheRunAndLosesTheDevice) {
  const Graph graph = crossing_graph();
  const std::vector<Tensor> fed = list({vec({1, -2, 3, 0.5})});
  for (const Way& way : ways()) {
    for (std::uint64_t k = 0;; ++k) {
      const auto gpus = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 3, .memories = {0, 1, 2}});
      CompileOptions options = way.options;
      options.variables = std::make_shared<VariableStore>();
      const Program program = compile(graph, on(gpus, way.threads), options);
      const std::uint64_t calls = gpus->calls();
      gpus->fail_call(k);
      try {
        program.run(fed);
        ASSERT_GT(k, 4U);
        EXPECT_LE(gpus->calls() - calls, k) << "all calls were tried";
        break;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("the device failed in"));
        const bool committing = error.code() == ErrorCode::kInternal;
        EXPECT_TRUE(committing || error.code() == ErrorCode::kUnavailable) << error.what();
        if (committing) {
          EXPECT_THAT(error.what(), HasSubstr("variables may be changed"));
        }
      }
    }
  }
}

TEST_F(Streams, ACallThatIsRefusedEndsTheRunAlone) {
  const Graph graph = crossing_graph();
  const std::vector<Tensor> fed = list({vec({1, -2, 3, 0.5})});
  for (const Way& way : ways()) {
    CompileOptions options = way.options;
    options.variables = std::make_shared<VariableStore>();
    const Program program = compile(graph, runtime(way.threads), options);
    for (std::uint64_t k = 0; k < 5; ++k) {
      gpus_->refuse_call(k);
      const Caught error = caught([&] { program.run(fed); });
      EXPECT_EQ(error.code, ErrorCode::kUnavailable);
      EXPECT_THAT(error.what, HasSubstr("could not be put on its stream"));
      EXPECT_NE(error.place.node, "");
    }
    Interpreter interpreter(graph);
    expect_same_tensors(program.run(fed), interpreter.run(fed));
    expect_same_values(variables_of(*options.variables), interpreter.variables());
  }
}

// A card says that there is no memory by an Error.
TEST_F(Streams, WithoutMemoryForARecordingARunGoesCallByCall) {
  const Graph graph = crossing_graph();
  const std::vector<Tensor> fed = list({vec({1, -2, 3, 0.5})});
  const Program program = compile(graph, runtime(1), {.variables = std::make_shared<VariableStore>()});
  Interpreter interpreter(graph);
  gpus_->refuse_recordings(true);
  for (int i = 0; i < 6; ++i) {
    if (i == 4) {
      EXPECT_EQ(gpus_->replays(), 0U);
      gpus_->refuse_recordings(false);
    }
    expect_same_tensors(program.run(fed), interpreter.run(fed));
  }
  EXPECT_GT(gpus_->replays(), 0U);
}

TEST_F(Streams, MemoryThatIsTooSmallIsAnError) {
  const auto gpus = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 1, .memory_bytes = 1 << 16});
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1 << 16});
  {
    const auto there = b.device("gpu:0");
    b.result(sum(x * 2.0F));
  }
  const Program program = compile(b.finish(), on(gpus));
  const Caught error = caught([&] { program.run(list({Tensor::zeros(DType::kF32, {1 << 16})})); });
  EXPECT_EQ(error.code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(error.what, HasSubstr("out of gpu memory"));
  EXPECT_NE(error.place.node, "");
}

}  // namespace
}  // namespace lockstep::testing
