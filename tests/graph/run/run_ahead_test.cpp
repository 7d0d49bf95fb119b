// Tests: graph/run/stream_run.cpp, core/work_in_flight.cpp, graph/run/earlier_runs.cpp, graph/run/program.cpp
// Runs that return while devices work: what is read waits, what shares memory keeps its order, errors come later.
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/work_in_flight.h"
#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/testing/fake_gpu.h"
#include "support/program_test.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class RunAhead : public ::testing::Test {
 protected:
  Program compiled(Graph graph, CompileOptions options = {}) const {
    options.variables = store_;
    return compile(std::move(graph), runtime_, options);
  }
  void hold() { gpus_->hold(0, StreamRole::kCompute); }
  void release() { gpus_->release(0, StreamRole::kCompute); }

  std::shared_ptr<FakeGpu> gpus_ = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 2});
  Runtime runtime_{{.threads = 2, .cpu_devices = 2, .backends = {gpus_}}};
  std::shared_ptr<VariableStore> store_ = std::make_shared<VariableStore>();
};

// w += x, and w as it was.
Graph counting(const char* device = "gpu:0") {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const auto there = b.device(device);
  const VariableRef w = b.variable("w", vec({0, 0}));
  const Value before = b.read(w) * 1.0F;
  b.assign_add(w, x);
  b.result(before);
  return b.finish();
}

TEST_F(RunAhead, RunsReturnWhileTheDeviceWorks) {
  const Program program = compiled(counting());
  Tensor fed = vec({1, 2});
  hold();
  std::vector<Tensor> results;
  for (int i = 0; i < 2; ++i) {
    results.push_back(program.run(list({fed}))[0]);
    fed.data<float>()[0] += 10;  // it is the caller's again
    EXPECT_FALSE(results.back().is_ready());
  }
  RunOptions options;
  options.deadline = Clock::now() + 5ms;
  EXPECT_EQ(caught([&] { program.run(list({fed}), options); }).code, ErrorCode::kDeadlineExceeded)
      << "two are under way";
  release();
  program.wait();
  EXPECT_TRUE(results[0].is_ready());
  EXPECT_EQ(floats(results[0].host()), (std::vector<float>{0, 0}));
  EXPECT_EQ(floats(results[1].host()), (std::vector<float>{1, 2}));
  EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{12, 4}));
}

TEST_F(RunAhead, AsManyAsTheOptionSays) {
  for (const std::size_t ahead : {1U, 3U}) {
    const Program program = compiled(counting(), {.runs_ahead = ahead});
    const Tensor fed = vec({1, 2});
    program.run(list({fed}));
    program.wait();
    hold();
    RunOptions options;
    options.deadline = Clock::now() + 100ms;
    std::size_t returned = 0;
    try {
      for (; returned < 5; ++returned) program.run(list({fed}), options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
    }
    EXPECT_EQ(returned, ahead == 1 ? 0 : ahead);
    release();
    program.wait();
  }
}

// Everything that looks at the contents waits for them.
TEST_F(RunAhead, ResultsWaitWhenTheyAreRead) {
  gpus_->set_delays(2ms, 7);
  const Program program = compiled(counting());
  const auto next = [&] { return program.run(list({vec({1, 2})}))[0]; };
  EXPECT_EQ(floats(next().host()), (std::vector<float>{0, 0}));
  std::ostringstream out;
  out << next();
  EXPECT_EQ(out.str(), "f32[2] {1, 2}");
  EXPECT_TRUE(next().bit_equal(vec({2, 4})));
  EXPECT_EQ(floats(next().clone().host()), (std::vector<float>{3, 6}));
  EXPECT_EQ(next().slice(0, 1).item(), 4);
  Tensor copy = vec({0, 0});
  copy.assign(next());
  EXPECT_EQ(floats(copy), (std::vector<float>{5, 10}));
  EXPECT_EQ(floats(next().to(Device::parse("gpu:1"), runtime_).host()), (std::vector<float>{6, 12}));
  const Tensor waited = next();
  waited.wait();
  EXPECT_TRUE(waited.is_ready());
}

TEST_F(RunAhead, VariablesAreReadAndAssignedAfterTheRun) {
  gpus_->set_delays(1ms, 3);
  const Program program = compiled(counting());
  for (float step = 1; step < 6; ++step) {
    program.run(list({vec({1, 2})}));
    EXPECT_EQ(floats(store_->committed("w")), (std::vector<float>{step, 2 * step}));
    program.run(list({vec({1, 2})}));
    EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{step + 1, 2 * (step + 1)}));
    program.run(list({vec({1, 2})}));
    store_->set("w", vec({step, 2 * step}));
  }
}

// Feeds of the device are read where they are: whoever changes them waits.
TEST_F(RunAhead, FeedsOfADeviceStayUntilTheyWereRead) {
  const Program program = compiled(counting());
  const Device device = Device::parse("gpu:0");
  Tensor fed = vec({1, 2}).to(device, runtime_);
  hold();
  program.run(list({fed}));
  std::atomic<bool> assigned = false;
  std::thread assigns([&] {
    fed.assign(vec({100, 100}));
    assigned = true;
  });
  program.run(list({vec({1, 2}).to(device, runtime_)}));  // its last share goes with this statement
  EXPECT_FALSE(assigned);
  release();
  assigns.join();
  EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{2, 4}));
}

// A result is a feed of the next run, of the same program and of one on another device.
TEST_F(RunAhead, ResultsAreFedBeforeTheyAreThere) {
  gpus_->set_delays(1ms, 5);
  const auto doubles = [](const char* device) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    const auto there = b.device(device);
    b.result(x * 2.0F);
    return b.finish();
  };
  const Program first = compiled(doubles("gpu:0")), second = compiled(doubles("gpu:1")),
                third = compiled(doubles("cpu:0"));
  Tensor value = vec({1, 3});
  for (int i = 0; i < 5; ++i) {
    value = first.run(list({value}))[0];
    value = second.run(list({value}))[0];
    value = first.run(list({value}))[0];
  }
  value = third.run(list({value}))[0];
  EXPECT_EQ(floats(value), (std::vector<float>{65536, 3 * 65536}));
}

// On another stream of the same memory, where nothing but the feed says that there is an order.
TEST(RunAheadInOneMemory, AResultIsReadOnAnotherStreamOnceItIsThere) {
  const auto gpus = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 2, .memories = {0, 0}});
  const Runtime runtime({.threads = 2, .backends = {gpus}});
  const auto doubles = [&](const char* device) {
    GraphBuilder b;
    const auto there = b.device(device);
    b.result(b.placeholder("x", DType::kF32, {2}) * 2.0F);
    return compile(b.finish(), runtime);
  };
  const Program first = doubles("gpu:0"), second = doubles("gpu:1");
  gpus->hold(0, StreamRole::kCompute);
  const Tensor made = first.run(list({vec({1, 3})}))[0];
  const Tensor read = second.run(list({made}))[0];
  EXPECT_FALSE(read.is_ready());
  gpus->release(0, StreamRole::kCompute);
  EXPECT_EQ(floats(read.host()), (std::vector<float>{4, 12}));
}

// Streams of a region follow nobody: the run around it waits. The region copies what it reads to another device.
TEST(RunAheadInOneMemory, RegionsComeAfterWhatIsUnderWay) {
  const auto gpus = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 3, .memories = {0, 0, 1}});
  const Runtime runtime({.threads = 2, .backends = {gpus}});
  const auto store = std::make_shared<VariableStore>();
  const auto first = [&] {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    const auto there = b.device("gpu:0");
    b.assign_add(b.variable("w", vec({1, 1})), x);
    b.result(x * 2.0F);
    return compile(b.finish(), runtime, {.variables = store});
  }();
  const auto second = [&](const char* device, bool reads_feed) {
    GraphBuilder b;
    const Value yes = b.placeholder("yes", DType::kBool, {}), x = b.placeholder("x", DType::kF32, {2});
    VariableRef w;
    {
      const auto home = b.device("gpu:0");
      w = b.variable("w", vec({1, 1}));
    }
    const auto there = b.device(device);
    const auto taken = [&] { return std::vector{(reads_feed ? x : b.read(w)) + 1.0F}; };
    const auto other = [&] { return std::vector{(reads_feed ? x : b.read(w)) - 1.0F}; };
    b.result(cond(yes, taken, other)[0]);
    return compile(b.finish(), runtime, {.variables = store});
  };
  const Tensor idle = vec({0, 0}).to(Device::parse("gpu:2"), runtime);
  std::vector<float> w = {1, 1};
  for (const char* device : {"gpu:1", "gpu:2"}) {
    for (const bool reads_feed : {true, false}) {
      const Program region = second(device, reads_feed);
      for (int i = 0; i < 3; ++i) {
        gpus->hold(0, StreamRole::kCompute);
        const Tensor made = first.run(list({vec({2, 3})}))[0];
        w = {w[0] + 2, w[1] + 3};
        std::thread releases([&] {
          std::this_thread::sleep_for(2ms);
          gpus->release(0, StreamRole::kCompute);
        });
        const Tensor result = region.run(list({Tensor::scalar(true), reads_feed ? made : idle}))[0];
        releases.join();
        EXPECT_EQ(floats(result.host()),
                  reads_feed ? std::vector<float>({5, 7}) : (std::vector{w[0] + 1, w[1] + 1}));
      }
    }
  }
}

// The other way round: what still reads a tensor comes before what writes it.
TEST(RunAheadInOneMemory, ATensorIsWrittenOnAnotherStreamOnceItWasRead) {
  const auto gpus = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 2, .memories = {0, 0}});
  const Runtime runtime({.threads = 2, .backends = {gpus}});
  const auto doubles = [&](const char* device) {
    GraphBuilder b;
    const auto there = b.device(device);
    b.result(b.placeholder("x", DType::kF32, {2}) * 2.0F);
    return compile(b.finish(), runtime);
  };
  const Program first = doubles("gpu:0"), second = doubles("gpu:1");
  for (int i = 0; i < 4; ++i) {
    std::vector<Tensor> tensor = list({vec({1, 3}).to(Device::parse("gpu:0"), runtime)});
    gpus->hold(0, StreamRole::kCompute);
    const Tensor made = first.run(tensor)[0];
    second.run_into(list({vec({5, 6})}), tensor);
    EXPECT_FALSE(tensor[0].is_ready());
    gpus->release(0, StreamRole::kCompute);
    EXPECT_EQ(floats(made.host()), (std::vector<float>{2, 6}));
    EXPECT_EQ(floats(tensor[0].host()), (std::vector<float>{10, 12}));
  }
}

// Programs on two devices and the host that read and write the same variables, in any order, with delays: what the
// interpreter gives. The fake refuses whatever is not ordered.
TEST_F(RunAhead, ProgramsThatShareVariablesKeepTheirOrder) {
  const auto mixing = [](const char* device, float factor, bool writes_v) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    VariableRef w, v;
    {
      const auto there = b.device("gpu:0");
      w = b.variable("w", vec({1, 2}));
    }
    {
      const auto there = b.device("gpu:1");
      v = b.variable("v", vec({3, 4}));
    }
    const auto there = b.device(device);
    const Value both = b.read(w) * factor + b.read(v) + x;
    if (writes_v) {
      b.assign(v, both * 0.5F);
    } else {
      b.assign(w, both * 0.25F);
    }
    b.result(both);
    return b.finish();
  };
  const auto looking = [](const char* device) {
    GraphBuilder b;
    VariableRef w;
    {
      const auto there = b.device("gpu:0");
      w = b.variable("w", vec({1, 2}));
    }
    const auto there = b.device(device);
    b.result(exp(b.read(w)));
    return b.finish();
  };
  std::vector<Graph> graphs;
  for (const char* device : {"gpu:0", "gpu:1", "cpu:0"}) {
    graphs.push_back(mixing(device, 0.5F, false));
    graphs.push_back(mixing(device, -0.25F, true));
    graphs.push_back(looking(device));
  }
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    gpus_->set_delays(seed % 3 == 0 ? 0us : 300us, seed);
    store_ = std::make_shared<VariableStore>();
    std::vector<Program> programs;
    for (const Graph& graph : graphs) programs.push_back(compiled(graph));
    std::map<std::string, Tensor> now = {{"w", vec({1, 2})}, {"v", vec({3, 4})}};
    std::minstd_rand random(seed + 1);
    std::vector<std::pair<Tensor, Tensor>> results;  // what came, and what should
    for (int step = 0; step < 40; ++step) {
      const std::size_t which = random() % graphs.size();
      std::vector<Tensor> fed;
      if (!graphs[which].parameters().empty()) fed.push_back(vec({static_cast<float>(step), 1}));
      Interpreter interpreter(graphs[which]);
      for (const auto& [name, value] : interpreter.variables()) interpreter.set_variable(name, now.at(name));
      results.emplace_back(programs[which].run(fed)[0], interpreter.run(fed)[0]);
      for (const auto& [name, value] : interpreter.variables()) now.at(name) = value.clone();
      if (step % 11 == 10) expect_same_tensors(list({store_->value("w")}), list({now.at("w")}));
    }
    for (const auto& [came, expected] : results) expect_same_tensors(list({came.host()}), list({expected}));
    expect_same_tensors(list({store_->value("v")}), list({now.at("v")}));
  }
}

TEST_F(RunAhead, StepsOfOneCallRunAheadToo) {
  const Program program = compiled(counting());
  program.run_n(3, list({vec({1, 2})}));
  program.wait();
  hold();
  const Tensor last = program.run_n(2, list({vec({1, 2})}))[0];
  EXPECT_FALSE(last.is_ready());
  release();
  EXPECT_EQ(floats(last.host()), (std::vector<float>{4, 8}));
  EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{5, 10}));
}

// Threads that run one program, read its results and look at its variable.
TEST_F(RunAhead, ThreadsShareAProgram) {
  gpus_->set_delays(100us, 11);
  const Program program = compiled(counting());
  constexpr int kRuns = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Tensor before;
      for (int i = 0; i < kRuns; ++i) {
        const Tensor result = program.run(list({vec({1, 2})}))[0];
        if (i % 3 == t) {
          const std::vector<float> seen = floats(result.host());
          EXPECT_EQ(seen[1], 2 * seen[0]);
        }
        if (i % 5 == t) {
          const std::vector<float> now = floats(store_->committed("w"));
          EXPECT_EQ(now[1], 2 * now[0]) << "never half of a step";
        }
        before = result;
      }
      before.wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  program.wait();
  EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{3 * kRuns, 6 * kRuns}));
}

TEST_F(RunAhead, WhatIsInFlightOutlivesItsProgram) {
  Tensor result;
  {
    const Program program = compiled(counting());
    gpus_->set_delays(20ms, 1);
    program.run(list({vec({1, 2})}));
    result = program.run(list({vec({1, 2})}))[0];
  }
  EXPECT_EQ(floats(result.host()), (std::vector<float>{1, 2}));
  EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{2, 4}));
}

// A device is lost after the run has returned: whoever asks next is told, and others go on.
TEST_F(RunAhead, ErrorsComeToWhoeverAsksNext) {
  const auto broken = [&](const auto& ask) {
    gpus_ = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 2});
    runtime_ = Runtime({.threads = 2, .backends = {gpus_}});
    store_ = std::make_shared<VariableStore>();
    const Program program = compiled(counting());
    const Program other = compiled([] {
      GraphBuilder b;
      const auto there = b.device("gpu:1");
      const VariableRef u = b.variable("u", vec({0, 0}));
      b.result(b.assign_add(u, b.constant(vec({1, 1}))));
      return b.finish();
    }());
    hold();
    const Tensor result = program.run(list({vec({1, 2})}))[0];
    gpus_->lose(0);
    release();
    const Caught error = caught([&] { ask(program, result); });
    EXPECT_EQ(error.code, ErrorCode::kUnavailable) << error.what;
    EXPECT_THAT(error.what, HasSubstr("lost"));
    EXPECT_EQ(floats(other.run()[0].host()), (std::vector<float>{1, 1}));
    return error.what;
  };
  EXPECT_THAT(broken([](const Program& program, const Tensor&) { program.wait(); }),
              HasSubstr("a run that had returned failed on its device"));
  broken([](const Program& program, const Tensor&) {
    for (int i = 0; i < 3; ++i) program.run(list({vec({1, 2})}));
  });
  broken([](const Program&, const Tensor& result) { result.host(); });
  broken([&](const Program&, const Tensor&) { store_->value("w"); });
}

// Whatever call of a device fails, the run that waits for each of them knows whose it was.
TEST_F(RunAhead, SynchronousRunsNameTheNodeThatFailed) {
  std::vector<std::string> named;
  for (std::uint64_t failing = 0; failing < 12; ++failing) {
    gpus_ = std::make_shared<FakeGpu>();
    runtime_ = Runtime({.threads = 2, .backends = {gpus_}});
    store_ = std::make_shared<VariableStore>();
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    const auto there = b.device("gpu:0");
    const Value one = b.op1("exp", {x}, {}, "one"), two = b.op1("neg", {one}, {}, "two");
    b.result(b.op1("tanh", {two}, {}, "three"));
    const Program program = compiled(b.finish());
    for (int i = 0; i < 3; ++i) program.run(list({vec({1, 2})}), {.synchronous = true});
    EXPECT_EQ(gpus_->replays(), 0U);
    gpus_->fail_call(failing);
    try {
      program.run(list({vec({1, 2})}), {.synchronous = true});
    } catch (const RunError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
      named.push_back(error.place().node);
    }
  }
  EXPECT_THAT(named, ::testing::IsSupersetOf({"one", "two", "three"}));
}

// --- one recording for a step

TEST_F(RunAhead, AStepIsReplayedAsOne) {
  const Program program = compiled(counting());
  const Tensor fed = vec({1, 2});
  // Two under way at a time, so that each of the two that take turns has run once, and then recorded.
  const auto two_runs = [&] {
    hold();
    for (int i = 0; i < 2; ++i) program.run(list({fed}));
    release();
    program.wait();
  };
  two_runs();
  EXPECT_EQ(gpus_->replays(), 0U) << "the first run warms libraries up";
  two_runs();
  for (std::uint64_t i = 0; i < 6; ++i) {
    const std::uint64_t before = gpus_->replays();
    const Tensor result = program.run(list({fed}))[0];
    EXPECT_EQ(gpus_->replays() - before, 1U);
    const auto step = static_cast<float>(i + 4);
    EXPECT_EQ(floats(result.host()), (std::vector<float>{step, 2 * step}));
  }
  EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{10, 20}));
}

// Feeds of a device are read where they are if they come again. `next` gives the feed of a run; returns how many calls the last run
// put on its stream, of which one copies the feed, if it is copied.
template <class Next>
std::uint64_t calls_of_last_run(FakeGpu& gpus, const Program& program, const Next& next) {
  const Tensor nothing = vec({0, 0}).to(Device::parse("gpu:0"), program.runtime());
  gpus.hold(0, StreamRole::kCompute);  // so that two runs are under way, and take turns from then on
  for (int i = 0; i < 2; ++i) program.run(list({nothing}));
  gpus.release(0, StreamRole::kCompute);
  std::uint64_t calls = 0;
  std::vector<float> expected = {0, 0};
  for (int i = 0; i < 24; ++i) {
    const Tensor fed = next(i);
    const std::vector<float> added = floats(fed.host());
    const std::uint64_t before = gpus.calls();
    const Tensor result = program.run(list({fed}))[0];
    calls = gpus.calls() - before;
    if (i % 3 == 0) {
      EXPECT_EQ(floats(result.host()), expected) << i;
    }
    for (std::size_t n = 0; n < 2; ++n) expected[n] += added[n];
  }
  return calls;
}

TEST_F(RunAhead, FeedsThatComeAgainAreNotCopied) {
  const Device device = Device::parse("gpu:0");
  constexpr std::uint64_t kCalls = 3;  // a product, an update, a copy of the result
  const auto calls = [&](const auto& next) {
    store_ = std::make_shared<VariableStore>();
    return calls_of_last_run(*gpus_, compiled(counting()), next);
  };
  for (const auto delay : {0us, 200us}) {
    gpus_->set_delays(delay, 5);
    std::vector<Tensor> batches;
    for (int i = 0; i < 24; ++i) batches.push_back(vec({static_cast<float>(i), 2}).to(device, runtime_));
    EXPECT_EQ(calls([&](int) { return batches[1]; }), kCalls);
    EXPECT_EQ(calls([&](int i) { return batches[static_cast<std::size_t>(i % 3)]; }), kCalls);
    EXPECT_EQ(calls([&](int i) { return batches[static_cast<std::size_t>(i)]; }), kCalls + 1);
    EXPECT_EQ(calls([&](int i) {  // what lies there is another batch
                batches[0].assign(vec({static_cast<float>(i), 3}));
                return batches[0];
              }),
              kCalls);
    // After many others.
    EXPECT_EQ(calls([&](int i) { return batches[static_cast<std::size_t>(std::min(i, 12))]; }), kCalls);
    const Tensor two = Tensor::zeros({4}).to(device, runtime_);
    EXPECT_EQ(calls([&](int) { return two.slice(1, 3); }), kCalls + 1)
        << "no kernel counts on such an address";
  }
}

// Any of the feeds may come again, each has several readers, and one of these is not recorded.
TEST_F(RunAhead, WhicheverFeedsComeAgainTheBitsAreTheSame) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2}), y = b.placeholder("y", DType::kF32, {2}),
              z = b.placeholder("z", DType::kF32, {2});
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", vec({1, 2}));
    const Value product = x * y + b.read(w);
    b.assign(w, (product - x) * 0.25F);
    b.result(product + y * z);
    b.result(z);
  }
  const Graph graph = b.finish();
  std::vector<Tensor> given, there;
  for (int i = 0; i < 8; ++i) {
    given.push_back(vec({static_cast<float>(i), static_cast<float>(3 - i)}));
    there.push_back(given.back().to(Device::parse("gpu:0"), runtime_));
  }
  const auto nth = [](int i) { return static_cast<std::size_t>(i); };
  using Pick = std::function<std::pair<std::size_t, std::size_t>(int)>;
  // Two runs under way take turns with what was recorded: each of the two has to see every pair.
  const Pick picks[] = {[](int) { return std::pair(0, 1); },
                        [&](int i) { return std::pair(0, nth(1 + i / 2 % 2)); },  // the second changes
                        [&](int i) { return std::pair(nth(1 + i / 2 % 2), 0); },  // the first does
                        [&](int i) { return std::pair(nth(i % 3), nth(i % 2)); },
                        [&](int i) { return std::pair(nth(i / 2 % 2), nth(i / 2 % 2)); },  // one for both
                        [&](int i) { return std::pair(nth(i % 8), nth(i / 2 % 8)); }};
  for (const Pick& pick : picks) {
    store_ = std::make_shared<VariableStore>();
    const Program program = compiled(graph);
    Interpreter interpreter(graph);
    for (int i = 0; i < 20; ++i) {
      const auto [first, second] = pick(i);
      const std::vector<Tensor> results = program.run(list({there[first], there[second], there[7]}));
      const std::vector<Tensor> expected = interpreter.run(list({given[first], given[second], given[7]}));
      if (i % 3 != 0) continue;  // else two runs are under way
      for (std::size_t r = 0; r < results.size(); ++r) EXPECT_TRUE(results[r].bit_equal(expected[r])) << i;
    }
    EXPECT_TRUE(store_->value("w").bit_equal(interpreter.variables().at("w")));
  }
}

// Two runs are on streams before anything of the first was read.
TEST_F(RunAhead, RunsUnderWayKeepWhatTheyWereGiven) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  for (const char* device : {"gpu:0", "gpu:1"}) {
    const auto there = b.device(device);
    const VariableRef w = b.variable(str("w", device), Tensor::full(DType::kF32, {4}, 1));
    const Value y = dropout(x * b.read(w), 0.5);
    b.assign_add(w, y * 0.125F);
    b.result(y);
  }
  const Graph graph = b.finish();
  Interpreter interpreter(graph);
  const Program program = compiled(graph);
  for (int round = 0; round < 5; ++round) {
    for (const int device : {0, 1}) {
      for (const StreamRole role : {StreamRole::kCopyIn, StreamRole::kCompute}) gpus_->hold(device, role);
    }
    std::vector<std::vector<Tensor>> results, expected;
    for (int i = 0; i < 2; ++i) {
      const auto step = static_cast<float>(2 * round + i);
      const std::vector<Tensor> fed = list({vec({1, step, -step, 2})});
      results.push_back(program.run(fed));
      expected.push_back(interpreter.run(fed));
    }
    for (const int device : {0, 1}) {
      for (const StreamRole role : {StreamRole::kCopyIn, StreamRole::kCompute}) gpus_->release(device, role);
    }
    for (std::size_t i = 0; i < 2; ++i) expect_same_tensors(results[i], expected[i]);
  }
  expect_same_values(variables_of(*store_), interpreter.variables());
  EXPECT_GT(gpus_->replays(), 0U);
}

// What a run that was given up has left on streams keeps its memory, and its variables, until it is over.
TEST_F(RunAhead, ARunThatWasGivenUpKeepsWhatItUses) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", vec({1, 1}));
    const Value y = x * b.read(w);
    b.assign_add(w, y);
    b.result(y);
  }
  const Program program = compiled(b.finish(), {.runs_ahead = 1});
  const Device device = Device::parse("gpu:0");
  for (int i = 0; i < 3; ++i) {
    hold();
    RunOptions options;
    options.deadline = Clock::now() + 10ms;
    // The last shares of its feed and its result go with this statement.
    EXPECT_EQ(caught([&] {
                program.run(list({vec({1, 2}).to(device, runtime_)}), options);
              }).code,
              ErrorCode::kDeadlineExceeded);
    std::atomic<bool> is_set = false;
    std::thread sets([&] {
      store_->set("w", vec({3, 4}));
      is_set = true;
    });
    options.deadline = Clock::now() + 10ms;
    EXPECT_EQ(caught([&] { program.run(list({vec({1, 2})}), options); }).code, ErrorCode::kDeadlineExceeded);
    EXPECT_FALSE(is_set);
    release();
    sets.join();
    EXPECT_EQ(floats(program.run(list({vec({1, 2})}))[0].host()), (std::vector<float>{3, 8}));
    EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{6, 12}));
  }
}

// Four sets of feeds are remembered; one that has not come for long makes room.
TEST_F(RunAhead, FeedsThatComeNoMoreMakeRoom) {
  const Program program = compiled(counting());
  const Device device = Device::parse("gpu:0");
  std::vector<Tensor> batches;
  for (int i = 0; i < 5; ++i) batches.push_back(vec({1, 2}).to(device, runtime_));
  const auto calls_of = [&](std::size_t batch) {
    const std::uint64_t before = gpus_->calls();
    program.run(list({batches[batch]}));
    program.wait();  // so that one set of recordings is enough
    return gpus_->calls() - before;
  };
  for (std::size_t i = 0; i < 16; ++i) calls_of(i % 4);
  const std::uint64_t without_copy = calls_of(0);
  EXPECT_EQ(calls_of(3), without_copy);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(calls_of(4), without_copy + 1) << "the others may come again";
  for (int i = 0; i < 30; ++i) calls_of(4);
  EXPECT_EQ(calls_of(4), without_copy);
  EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{52, 104}));
}

// A run that is observed goes call by call, with the feeds that it was given and in its order, whatever was recorded before.
TEST_F(RunAhead, RunsThatAreObservedGoCallByCallBetweenReplays) {
  gpus_->set_delays(300us, 3);
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  Value y;
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", vec({0, 0}));
    y = tanh(x + b.read(w)) * x;
    b.assign(w, y);
  }
  {
    const auto there = b.device("gpu:1");
    b.result(exp(y) - 1.0F);
  }
  const Graph graph = b.finish();
  const Program program = compiled(graph);
  Interpreter interpreter(graph);
  class Quiet final : public Observer {
    void on_node_begin(const NodeEvent& /*event*/) noexcept override {}
    void on_node_end(const NodeEvent& /*event*/) noexcept override {}
  } observer;
  std::vector<Tensor> given, there;
  for (int i = 0; i < 4; ++i) {
    given.push_back(vec({static_cast<float>(i) * 0.5F, 1}));
    there.push_back(given.back().to(Device::parse("gpu:0"), runtime_));
  }
  for (int i = 0; i < 24; ++i) {
    const bool observed = i > 10 && i % 3 == 0;
    const std::size_t which =
        observed ? static_cast<std::size_t>(2 + i % 2) : static_cast<std::size_t>(i % 2);
    RunOptions options;
    if (observed) options.observer = &observer;
    const std::uint64_t before = gpus_->replays();
    const std::vector<Tensor> results = program.run(list({there[which]}), options);
    if (observed) {
      EXPECT_EQ(gpus_->replays(), before);
    }
    const std::vector<Tensor> expected = interpreter.run(list({given[which]}));
    if (i % 4 != 1) expect_same_tensors(results, expected);
  }
  EXPECT_TRUE(store_->value("w").bit_equal(interpreter.variables().at("w")));
  EXPECT_GT(gpus_->replays(), 0U);
}

// Results that go to the host, or to another device, are copied there once what is replayed has come to its end.
TEST_F(RunAhead, ResultsAreCopiedAwayAfterTheReplay) {
  gpus_->set_delays(300us, 9);
  for (const bool updates : {false, true}) {
    store_ = std::make_shared<VariableStore>();
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    {
      const auto there = b.device("gpu:0");
      const VariableRef w = b.variable("w", vec({3, 4}));
      const Value y = exp(x) * b.read(w);
      if (updates) b.assign(w, y * 0.125F);
      b.result(y);
      b.result(y + 1.0F);
    }
    const Graph graph = b.finish();
    const Program program = compiled(graph);
    Interpreter interpreter(graph);
    for (int i = 0; i < 8; ++i) {
      const std::vector<Tensor> fed = list({vec({static_cast<float>(i) * 0.125F, 1})});
      std::vector<Tensor> results = list({vec({0, 0}), vec({0, 0})});
      if (i % 2 == 0) results[1] = results[1].to(Device::parse("gpu:1"), runtime_);
      program.run_into(fed, results);
      expect_same_tensors(results, interpreter.run(fed));
    }
    EXPECT_GT(gpus_->replays(), 0U);
  }
}

// What one stream alone uses is there once, however many runs are under way: a run comes after the one before it there. Runs that
// may be put on streams at the same time have memory of their own.
TEST_F(RunAhead, RunsOfAStepShareTheirMemory) {
  constexpr std::int64_t kLength = 1 << 16, kBytes = 4 * kLength;
  const auto peak_of = [&](bool updates) {
    store_ = std::make_shared<VariableStore>();
    GraphBuilder b;
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", Tensor::full(DType::kF32, {kLength}, 0.5));
    Value y = b.read(w);
    for (int i = 0; i < 4; ++i) y = exp(neg(y)) + tanh(y);
    if (updates) b.assign(w, y);
    b.result(sum(y));
    const Program program = compiled(b.finish());
    MemoryPool& pool = *runtime_.pool(Device::parse("gpu:0"));
    const std::int64_t before = pool.stats().live_bytes;  // the variable
    pool.reset_peak();
    for (int round = 0; round < 4; ++round) {
      hold();
      for (int i = 0; i < 2; ++i) program.run();
      release();
      program.wait();
    }
    EXPECT_GT(gpus_->replays(), 0U);
    const std::int64_t planned = program.plan(std::span<const Tensor>()).planned_bytes;
    EXPECT_GT(planned, kBytes);
    return static_cast<double>(pool.stats().peak_bytes - before) / static_cast<double>(planned);
  };
  EXPECT_LT(peak_of(true), 1.1);
  EXPECT_GT(peak_of(false), 1.9);
}

// A feed that the step changes is read as it was.
TEST_F(RunAhead, AFeedThatIsTheVariableIsCopied) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const auto there = b.device("gpu:0");
  const VariableRef w = b.variable("w", vec({1, 2}));
  b.assign_add(w, x);
  const VariableRef v = b.variable("v", vec({0, 0}));
  b.assign(v, x);
  b.assign(b.variable("u", vec({0, 0})), x * 3.0F);  // so that a recording begins before the commit
  const Program program = compiled(b.finish());
  float factor = 1;
  for (int i = 0; i < 8; ++i, factor *= 2) {
    program.run(list({store_->find("w")->storage()}));
    EXPECT_EQ(floats(store_->value("v")), (std::vector<float>{factor, 2 * factor}));
    EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{2 * factor, 4 * factor}));
  }
  EXPECT_GT(gpus_->replays(), 0U);
}

// A recording is put on its stream as a whole, or not at all: also the part that is before the commit.
TEST_F(RunAhead, AReplayThatIsRefusedDidNotHappen) {
  const Program program = compiled(counting());
  const Tensor fed = vec({1, 2});
  std::uint64_t steps = 0;
  for (const std::uint64_t k : {0U, 1U, 2U}) {  // the copy of the feed, what is before the gate, what commits
    for (int i = 0; i < 6; ++i, ++steps) program.run(list({fed}));
    program.wait();
    gpus_->refuse_call(k);
    const Caught error = caught([&] { program.run(list({fed})); });
    EXPECT_EQ(error.code, ErrorCode::kUnavailable) << error.what;
    EXPECT_NE(error.place.node, "");
    EXPECT_EQ(floats(store_->value("w")),
              (std::vector<float>{static_cast<float>(steps), 2 * static_cast<float>(steps)}));
    EXPECT_EQ(store_->step(), steps);
  }
}

// A result is written after the commit, unless it is what the commit changes.
TEST_F(RunAhead, AVariableThatAStepChangesIsAResult) {
  gpus_->set_delays(200us, 3);
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const auto there = b.device("gpu:0");
  const VariableRef w = b.variable("w", vec({0, 0}));
  const Value before = b.read(w);
  b.assign_add(w, x * 2.0F);
  b.result(before);
  b.result(x * 3.0F);
  const Program program = compiled(b.finish());
  for (int i = 0; i < 8; ++i) {
    const std::vector<Tensor> results = program.run(list({vec({1, 2})}));
    const auto step = static_cast<float>(i);
    EXPECT_EQ(floats(results[0].host()), (std::vector<float>{2 * step, 4 * step}));
    EXPECT_EQ(floats(results[1].host()), (std::vector<float>{3, 6}));
  }
}

// --- data that a device refuses

Graph looking_up(bool twice) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {3});
  const auto there = b.device("gpu:0");
  const VariableRef table = b.variable("table", vec({5, 6, 7}));
  const VariableRef w = b.variable("w", vec({0, 0, 0}));
  const Value first = gather(b.read(table), x);
  Value second = first;
  if (twice) {
    const auto other = b.device("gpu:1");
    second = gather(first * 2.0F, x);
  }
  b.assign_add(w, second);
  b.result(second);
  return b.finish();
}
Tensor ints(std::initializer_list<std::int32_t> values) { return Tensor::from<std::int32_t>({3}, values); }

// With one run at a time the host decides.
TEST_F(RunAhead, RefusedDataEndsTheRunBeforeItsCommit) {
  for (const bool twice : {false, true}) {
    store_ = std::make_shared<VariableStore>();
    const Program program = compiled(looking_up(twice), {.runs_ahead = 1});
    for (int i = 0; i < 4; ++i) {  // eager, recorded, replayed
      const Caught error = caught([&] { program.run(list({ints({0, 3, -1})})); });
      EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << error.what;
      EXPECT_THAT(error.what, HasSubstr("was refused its data"));
      EXPECT_EQ(error.place.node, "gather") << "the same one each time";
      const std::vector<float> before(3, static_cast<float>(i) * (twice ? 12 : 6));
      EXPECT_EQ(floats(store_->value("w")), before) << "it did not happen";
      const std::vector<Tensor> results = program.run(list({ints({1, 1, 1})}));
      EXPECT_EQ(floats(results[0].host()), std::vector<float>(3, twice ? 12 : 6)) << "the device goes on";
    }
  }
}

void fuse(Graph& graph, const Runtime& runtime) {
  PassContext context{.topology = &runtime.topology()};
  PassRegistry::global().parse_pipeline("fuse-elementwise").run(graph, context);
  EXPECT_TRUE(std::ranges::any_of(graph.nodes(), [](const Node& node) { return node.op().name == "fused"; }));
}

// Of the data that was refused, among what the error nests.
std::int64_t refused_position(const std::exception& error) {
  if (const auto* refused = dynamic_cast<const RefusedData*>(&error)) return refused->position();
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& inner) {
    return refused_position(inner);
  }
  return -1;
}

// Whatever shard, tile or row of a broadcast finds it, on a device as on the CPU.
TEST_F(RunAhead, RefusalsNameTheFirstPosition) {
  struct Case {
    const char* name;
    std::int64_t position;
    std::vector<Tensor> feeds;
    std::function<Value(const std::vector<Value>&)> make;
    bool fuses = false;
  };
  const auto whole = [](std::int64_t count, std::initializer_list<std::int64_t> zeros) {
    Tensor values = Tensor::full(DType::kI64, {count}, 3);
    for (const std::int64_t zero : zeros) values.data<std::int64_t>()[static_cast<std::size_t>(zero)] = 0;
    return values;
  };
  const auto divided = [](const std::vector<Value>& x) { return x[0] / x[1]; };
  Tensor indices = Tensor::zeros(DType::kI64, {300'000});
  for (const std::size_t bad : {150'001U, 299'999U}) indices.data<std::int64_t>()[bad] = 3;
  Tensor numbers = Tensor::zeros(DType::kF32, {200'000});
  for (const std::size_t bad : {170'000U, 199'999U})
    numbers.data<float>()[bad] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Case> cases = {
      {"gather", 2, list({vec({5, 6, 7}), Tensor::from<std::int64_t>({4}, {0, 2, 3, -1})}),
       [](const auto& x) { return gather(x[0], x[1]); }},
      {"gather in shards", 150'001, list({vec({5, 6, 7}), indices}),
       [](const auto& x) { return gather(x[0], x[1]); }},
      {"div in shards", 170'000, list({whole(200'000, {}), whole(200'000, {199'999, 170'000})}), divided},
      {"div of short rows", 1, list({Tensor::full(DType::kI64, {5, 3}, 6), whole(3, {1})}), divided},
      {"div of long rows", 39, list({Tensor::full(DType::kI64, {5, 40}, 6), whole(40, {39})}), divided},
      {"div by a column", 80,
       list({Tensor::full(DType::kI64, {5, 40}, 6), Tensor::from<std::int64_t>({5, 1}, {1, 2, 0, 3, 0})}),
       divided},
      {"pow", 1, list({whole(3, {}), Tensor::from<std::int64_t>({3}, {1, -1, -2})}),
       [](const auto& x) { return pow(x[0], x[1]); }},
      {"mod inside a fused node", 5'000, list({whole(9'000, {}), whole(9'000, {8'000, 5'000})}),
       [](const auto& x) { return mod(x[0] + 1, x[1] * 2) + x[1]; }, true},
      {"class numbers", 2, list({Tensor::zeros({4, 3}), Tensor::from<std::int64_t>({4}, {0, 2, 3, 7})}),
       [](const auto& x) { return softmax_cross_entropy(x[0], x[1]); }},
      {"a piece", 0, list({Tensor::zeros({4, 3}), Tensor::scalar(std::int64_t{3})}),
       [](const auto& x) { return slice_at(x[0], x[1], 2); }},
      {"numbers", 170'000, list({numbers}), [](const auto& x) { return check_finite(x[0]); }}};
  for (const Case& one : cases) {
    for (const char* device : {"cpu:0", "gpu:0"}) {
      GraphBuilder b;
      std::vector<Value> values;
      for (const Tensor& feed : one.feeds)
        values.push_back(b.placeholder(str("x", values.size()), feed.dtype(), feed.shape()));
      {
        const auto there = b.device(device);
        b.result(one.make(values));
      }
      Graph graph = b.finish();
      if (one.fuses) fuse(graph, runtime_);
      // With one thread the CPU comes to the first shard first.
      const Program program = compile(std::move(graph), Runtime({.threads = 1, .backends = {gpus_}}));
      for (int i = 0; i < 3; ++i) {  // call by call, recorded, replayed
        try {
          program.run(one.feeds);
          program.wait();
          ADD_FAILURE() << one.name << " on " << device << " refuses nothing";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
          EXPECT_EQ(refused_position(error), one.position) << one.name << " on " << device;
        }
      }
    }
  }
}

// Else the devices do: the run and those after it do nothing, until someone is told.
TEST_F(RunAhead, RunsAfterARefusedOneDoNothing) {
  struct Case {
    bool twice, records;
    std::uint64_t delays;
  };
  for (const auto [twice, records, delays] : {Case{false, true, 0}, Case{true, true, 0}, Case{false, true, 1},
                                              Case{true, true, 1}, Case{true, false, 1}}) {
    gpus_->set_delays(delays == 0 ? 0us : 500us, delays);
    store_ = std::make_shared<VariableStore>();
    CompileOptions options;
    options.record = records;
    const Program program = compiled(looking_up(twice), options);
    const float each = twice ? 12 : 6;
    const Tensor good = ints({1, 1, 1}), bad = ints({0, 3, -1});
    for (int i = 0; i < 4; ++i) {
      const float before = static_cast<float>(2 * i) * each;
      const std::uint64_t step = store_->step();
      program.run(list({good}));
      program.wait();
      hold();  // else the third run may come late enough to be told
      const Tensor refused = program.run(list({bad}))[0];
      const Tensor skipped = program.run(list({good}))[0];
      release();
      const Caught error = caught([&] { program.run(list({good})); });
      EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << error.what;
      EXPECT_THAT(error.what, HasSubstr("did not happen, nor 1 run after it"));
      EXPECT_EQ(error.place.node, "gather");
      EXPECT_EQ(floats(store_->value("w")), std::vector<float>(3, before + each));
      EXPECT_EQ(store_->step(), step + 1);
      EXPECT_EQ(floats(program.run(list({good}))[0].host()), std::vector<float>(3, each));
      program.wait();
      EXPECT_EQ(floats(store_->value("w")), std::vector<float>(3, before + 2 * each));
      for (const Tensor& nothing : {refused, skipped})
        EXPECT_EQ(caught([&] { nothing.host(); }).code, ErrorCode::kInvalidArgument);
    }
  }
}

// A result that was refused stays nothing, whoever was given it meanwhile.
TEST_F(RunAhead, ARefusedResultStaysRefused) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {3}), y = b.placeholder("y", DType::kF32, {3});
  {
    const auto there = b.device("gpu:0");
    const VariableRef table = b.variable("table", vec({5, 6, 7}));
    const Value picked = gather(b.read(table), x) + y;
    b.assign_add(b.variable("w", vec({0, 0, 0})), picked);
    b.result(picked);
  }
  const Program program = compiled(b.finish());
  const Program other = compiled([] {
    GraphBuilder c;
    const auto there = c.device("gpu:0");
    c.result(c.placeholder("x", DType::kF32, {3}) + 1.0F);
    return c.finish();
  }());
  const Tensor good = ints({0, 1, 2}), zeros = vec({0, 0, 0}).to(Device::parse("gpu:0"), runtime_);
  for (int i = 0; i < 3; ++i) {
    hold();
    const Tensor refused = program.run(list({ints({0, 3, 0}), zeros}))[0];
    program.run(list({good, zeros}));
    std::atomic<bool> released = false;
    std::thread releases([&] {
      std::this_thread::sleep_for(2ms);
      released = true;
      release();
    });
    EXPECT_THAT(caught([&] { other.run(list({refused})); }).what, HasSubstr("was refused its data"));
    EXPECT_TRUE(released);
    releases.join();
    program.wait();  // whoever asked for the result was told
    program.run(list({good, zeros}));
    program.run(list({good, refused}));  // of the same program, which knows
    program.wait();
    EXPECT_THAT(caught([&] { refused.host(); }).what, HasSubstr("was refused its data"));
  }
}

TEST_F(RunAhead, WhoeverReadsARefusedResultIsTold) {
  const Program program = compiled(looking_up(true));
  const Tensor refused = program.run(list({ints({0, 3, 0})}))[0];
  EXPECT_THAT(caught([&] { refused.wait(); }).what, HasSubstr("was refused its data"));
  // Nobody is told twice, and the next run happens.
  EXPECT_EQ(floats(program.run(list({ints({0, 0, 0})}))[0].host()), std::vector<float>(3, 10));
  program.wait();
  EXPECT_EQ(floats(store_->value("w")), std::vector<float>(3, 10));
  program.run(list({ints({0, 3, 0})}));
  EXPECT_THAT(caught([&] { program.wait(); }).what, HasSubstr("did not happen: 'gather'"));
  program.wait();
  EXPECT_EQ(floats(store_->value("w")), std::vector<float>(3, 10));
}

// Whichever device refuses its data, and however a variable is written: by a kernel or by a copy, on any device.
TEST_F(RunAhead, ARefusalOfOneDeviceHoldsForAll) {
  for (const int refuses : {0, 1}) {
    store_ = std::make_shared<VariableStore>();
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kI32, {3});
    const Value y = b.placeholder("y", DType::kF32, {3});
    for (const int device : {0, 1}) {
      const auto there = b.device("gpu:" + std::to_string(device));
      const std::string number = std::to_string(device);
      b.assign_add(b.variable("added" + number, vec({0, 0, 0})), y);
      const VariableRef copied = b.variable("copied" + number, vec({0, 0, 0}));
      b.assign(copied, y);
      b.result(b.read(copied) * 2.0F);  // before it is committed: from where it is copied then
      if (device == refuses) b.result(gather(y, x));
    }
    const Program program = compiled(b.finish());
    const Tensor good = ints({0, 1, 2}), bad = ints({0, 1, 3});
    for (float i = 1; i < 5; ++i) {
      program.run(list({good, vec({i, i, i})}));
      program.wait();
      // The other device is ready to commit long before the refusal is known.
      gpus_->hold(refuses, StreamRole::kCompute);
      program.run(list({bad, vec({100, 100, 100})}));
      std::this_thread::sleep_for(2ms);
      gpus_->release(refuses, StreamRole::kCompute);
      EXPECT_THAT(caught([&] { program.wait(); }).what, HasSubstr("did not happen"));
      for (const std::string number : {"0", "1"}) {
        EXPECT_EQ(floats(store_->value("added" + number)), std::vector<float>(3, i * (i + 1) / 2));
        EXPECT_EQ(floats(store_->value("copied" + number)), std::vector<float>(3, i));
      }
    }
  }
}

// Another program, and another plan of the same one, wait for the decision before they take a variable over.
TEST_F(RunAhead, OthersWaitForTheDecision) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {kUnknown});
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", vec({1, 2, 3}));
    b.assign(w, b.read(w) + sum(gather(b.read(w), x)));
  }
  const Program program = compiled(b.finish());
  const Program other = compiled([] {
    GraphBuilder c;
    const auto there = c.device("gpu:0");
    const VariableRef w = c.variable("w", vec({1, 2, 3}));
    c.result(c.assign_add(w, c.read(w)));
    return c.finish();
  }());
  hold();
  program.run(list({ints({7, 7, 7})}));
  std::atomic<bool> released = false;
  std::thread releases([&] {
    std::this_thread::sleep_for(5ms);
    released = true;
    release();
  });
  const Tensor taken_over = other.run()[0];
  EXPECT_TRUE(released);
  EXPECT_EQ(floats(taken_over.host()), (std::vector<float>{2, 4, 6}));
  releases.join();
  EXPECT_THAT(caught([&] { program.wait(); }).what, HasSubstr("did not happen"));
  program.run(list({ints({0, 0, 0})}));
  program.run(list({Tensor::from<std::int32_t>({1}, {1})}));  // of another shape
  EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{18, 20, 22}));
}

// Steps that did not happen draw no random numbers.
TEST_F(RunAhead, RandomNumbersGoOnWhereTheyWere) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {3});
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", vec({1, 1, 1}));
    b.assign_add(w, dropout(gather(b.read(w), x), 0.5));
  }
  const Graph graph = b.finish();
  Interpreter interpreter(graph);
  const Program program = compiled(graph);
  for (int i = 0; i < 6; ++i) {
    const std::vector<Tensor> good = list({ints({i % 3, 1, 2})});
    program.run(good);
    interpreter.run(good);
    program.wait();
    hold();
    program.run(list({ints({9, 9, 9})}));
    program.run(good);
    release();
    EXPECT_THAT(caught([&] { program.wait(); }).what, HasSubstr("nor 1 run after it"));
    expect_same_tensors(list({store_->value("w")}), list({interpreter.variables().at("w")}));
  }
}

// What is fused computes with integers inside, and takes and gives none.
TEST_F(RunAhead, IntegersInsideAFusedNodeAreRefused) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", vec({0, 0}));
    const Value whole = cast(x, DType::kI32);
    b.assign_add(w, cast(whole / whole, DType::kF32));
  }
  Graph graph = b.finish();
  fuse(graph, runtime_);
  const Program program = compiled(std::move(graph));
  program.run(list({vec({1, 2})}));
  program.run(list({vec({0, 2})}));
  EXPECT_EQ(caught([&] { program.wait(); }).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(floats(store_->value("w")), (std::vector<float>{1, 1}));
}

TEST_F(RunAhead, OnlyIntegersAreRefused) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const auto there = b.device("gpu:0");
  b.result(x / x);
  const Program program = compiled(b.finish());
  hold();
  const Tensor result = program.run(list({vec({0, 4})}))[0];  // returns: nothing has to be looked at
  release();
  EXPECT_EQ(floats(result.host())[1], 1.0F);
}

}  // namespace
}  // namespace lockstep::testing
