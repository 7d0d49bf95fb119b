// Tests: graph/run/exchange.cpp, testing/fake_participant.cpp, core/runtime.cpp
// Collectives between devices that something connects: values stay where they are, and the participants of a group combine them.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/communicators/device_group.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/testing/fake_gpu.h"
#include "support/program_test.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class Exchange : public ::testing::Test {
 protected:
  explicit Exchange(FakeGpuOptions options = {.devices = 3, .connected = true})
      : gpus_(std::make_shared<FakeGpu>(options)), runtime_({.threads = 2, .backends = {gpus_}}) {}

  std::shared_ptr<DeviceGroup> group_of(std::initializer_list<const char*> names) const {
    std::vector<Device> devices;
    for (const char* const name : names) devices.push_back(Device::parse(name));
    return runtime_.device_group(devices);
  }

  std::shared_ptr<FakeGpu> gpus_;
  Runtime runtime_;
};

// Two sums of three replicas; a variable of each takes its own up.
Graph step() {
  return parse(R"(
      var @w : f32[2] = f32[2] {0, 0} [device="gpu:0"]
      var @v : f32[2] = f32[2] {0, 0} [device="gpu:2"]
      %x0 = placeholder() : f32[2] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %x2 = placeholder() : f32[2] on "gpu:2"
      %y0 = mul(%x0, %x0) : f32[2] on "gpu:0"
      %y1 = mul(%x1, %x1) : f32[2] on "gpu:1"
      %y2 = mul(%x2, %x2) : f32[2] on "gpu:2"
      %s = all_reduce[by="nccl", reduce="sum", replicas=3](%x0, %y0, %x1, %y1, %x2, %y2) : f32[2], f32[2], f32[2], f32[2], f32[2], f32[2] on "gpu:0"
      %m = all_reduce[by="nccl", reduce="max", replicas=3](%y0, %y1, %y2) : f32[2], f32[2], f32[2] on "gpu:0"
      %a = add(%s, %m) : f32[2] on "gpu:0"
      %b = add(%s:2, %m:1) : f32[2] on "gpu:1"
      %c = add(%s:5, %m:2) : f32[2] on "gpu:2"
      %u = assign_add[variable=@w](%a) : f32[2] on "gpu:0"
      %t = assign_add[variable=@v](%c) : f32[2] on "gpu:2"
      return %a, %b, %c
    )");
}

std::vector<Tensor> feeds(float value) {
  return {vec({value, 2}), vec({value * 3, -4}), vec({-5, value * 7})};
}

TEST_F(Exchange, GivesTheBitsOfTheInterpreter) {
  gpus_->set_delays(200us, 5);
  const Graph graph = step();
  const Program program = compile(graph, runtime_);
  Interpreter interpreter(graph);
  for (int i = 0; i < 6; ++i) {  // call by call, recorded, replayed
    const std::vector<Tensor> expected = interpreter.run(feeds(static_cast<float>(i) + 0.1F));
    const std::vector<Tensor> results = program.run(feeds(static_cast<float>(i) + 0.1F));
    ASSERT_EQ(results.size(), expected.size());
    for (std::size_t r = 0; r < results.size(); ++r) {
      EXPECT_TRUE(results[r].bit_equal(expected[r])) << i << ", result " << r;
      EXPECT_EQ(results[r].memory(), gpus_->device(static_cast<int>(r))->facts().memory);
    }
  }
  EXPECT_TRUE(program.variables().value("v").bit_equal(interpreter.variables().at("v")));
  EXPECT_GT(gpus_->replays(), 0U);
}

// No value of one replica is copied to another: a run ends while nothing can be copied from one memory to another.
TEST_F(Exchange, NothingIsCopiedBetweenReplicas) {
  const Program program = compile(step(), runtime_);
  std::vector<Tensor> there = feeds(1);
  for (int r = 0; r < 3; ++r)
    there[static_cast<std::size_t>(r)] =
        there[static_cast<std::size_t>(r)].to(Device::parse(str("gpu:", r)), runtime_);
  program.run(there);
  program.wait();
  for (int r = 0; r < 3; ++r) {
    for (const StreamRole role : {StreamRole::kCopyIn, StreamRole::kCopyOut}) gpus_->hold(r, role);
  }
  RunOptions options;
  options.deadline = Clock::now() + 10s;
  EXPECT_NO_THROW(program.run(there, options));
  program.wait();  // also for what the run leaves on streams
  for (int r = 0; r < 3; ++r) {
    for (const StreamRole role : {StreamRole::kCopyIn, StreamRole::kCopyOut}) gpus_->release(r, role);
  }
}

TEST_F(Exchange, FeedsAndResultsTakePartDirectly) {
  const Graph graph = parse(R"(
      %x0 = placeholder() : f32[2] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %s = all_reduce[by="nccl", reduce="prod", replicas=2](%x0, %x1) : f32[2], f32[2] on "gpu:1"
      return %s, %s:1
    )");
  const Program program = compile(graph, runtime_);
  Tensor there = vec({3, 4}).to(Device::parse("gpu:1"), runtime_);
  for (int i = 0; i < 3; ++i) {
    const std::vector<Tensor> results = program.run(list({vec({5, 6}), there}));
    EXPECT_EQ(floats(results[0].host()), (std::vector<float>{15, 24}));
    EXPECT_EQ(floats(results[1].host()), (std::vector<float>{15, 24}));
  }
  EXPECT_EQ(floats(there.host()), (std::vector<float>{3, 4}));
}

TEST_F(Exchange, EmptyValuesAreCombinedByNobody) {
  const Program program = compile(parse(R"(
      %x0 = placeholder() : f32[0] on "gpu:0"
      %x1 = placeholder() : f32[0] on "gpu:1"
      %s = all_reduce[by="nccl", reduce="sum", replicas=2](%x0, %x1) : f32[0], f32[0] on "gpu:0"
      return %s:1
    )"),
                                  runtime_);
  EXPECT_EQ(program.run(list({vec({}), vec({})}))[0].host().spec().shape, Shape({0}));
}

TEST_F(Exchange, ProgramsOfSeveralThreadsKeepOneOrder) {
  gpus_->set_delays(50us, 9);
  const Graph graph = step();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const Program program = compile(graph, runtime_, {.variables = std::make_shared<VariableStore>()});
      Interpreter interpreter(graph);
      for (int i = 0; i < 10; ++i) {
        const std::vector<Tensor> given = feeds(static_cast<float>(t * 100 + i));
        EXPECT_TRUE(program.run(given)[2].bit_equal(interpreter.run(given)[2]));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A participant that does not come: the run ends by its deadline, at the node, and commits nothing. The next one works.
TEST_F(Exchange, ADeadlineEndsItAndTheNextRunWorks) {
  const Graph graph = step();
  const Program program = compile(graph, runtime_);
  Interpreter interpreter(graph);
  program.run(feeds(1));
  interpreter.run(feeds(1));
  program.wait();
  const Tensor before = program.variables().value("w").clone();
  gpus_->hold(1, StreamRole::kCommunication);
  RunOptions options;
  options.deadline = Clock::now() + 50ms;
  const Caught late = caught([&] { program.run(feeds(2), options); });
  EXPECT_EQ(late.code, ErrorCode::kDeadlineExceeded) << late.what;
  gpus_->release(1, StreamRole::kCommunication);
  program.wait();
  EXPECT_TRUE(program.variables().value("w").bit_equal(before));
  for (const float value : {1.F, 3.F})
    EXPECT_TRUE(program.run(feeds(value))[1].bit_equal(interpreter.run(feeds(value))[1])) << value;
  EXPECT_TRUE(program.variables().value("w").bit_equal(interpreter.variables().at("w")));
}

TEST_F(Exchange, ALostDeviceEndsTheRun) {
  const Program program = compile(step(), runtime_);
  program.run(feeds(1));
  program.wait();
  gpus_->lose(1);
  EXPECT_EQ(caught([&] {
              program.run(feeds(2));
              program.wait();
            }).code,
            ErrorCode::kUnavailable);
}

TEST_F(Exchange, GroupsAreOfDevicesThatSomethingConnects) {
  EXPECT_NE(group_of({"gpu:0", "gpu:2"}), nullptr);
  EXPECT_EQ(group_of({"gpu:0", "gpu:2"}), group_of({"gpu:0", "gpu:2"}));
  EXPECT_NE(group_of({"gpu:0", "gpu:2"}), group_of({"gpu:2", "gpu:0"}));
  EXPECT_EQ(group_of({"gpu:0"}), nullptr);
  EXPECT_EQ(group_of({"gpu:0", "cpu:0"}), nullptr);
  EXPECT_EQ(group_of({"gpu:0", "gpu:0"}), nullptr);
  EXPECT_EQ(caught([&] { group_of({"gpu:0", "gpu:7"}); }).code, ErrorCode::kNotFound);
}

class ExchangeUnconnected : public Exchange {
 protected:
  ExchangeUnconnected() : Exchange({.devices = 3}) {}
};

// Where nothing connects the devices it is a collective like others.
TEST_F(ExchangeUnconnected, IsComputedInOnePlace) {
  EXPECT_EQ(group_of({"gpu:0", "gpu:1"}), nullptr);
  const Graph graph = step();
  const Program program = compile(graph, runtime_);
  Interpreter interpreter(graph);
  for (int i = 0; i < 3; ++i) {
    const std::vector<Tensor> given = feeds(static_cast<float>(i));
    EXPECT_TRUE(program.run(given)[1].bit_equal(interpreter.run(given)[1]));
  }
}

class ExchangeInOneMemory : public Exchange {
 protected:
  ExchangeInOneMemory() : Exchange({.devices = 3, .memories = {0, 1, 0}, .connected = true}) {}
};

TEST_F(ExchangeInOneMemory, IsComputedInOnePlace) {
  EXPECT_EQ(group_of({"gpu:0", "gpu:2"}), nullptr);
  const Graph graph = step();
  const Program program = compile(graph, runtime_);
  Interpreter interpreter(graph);
  EXPECT_TRUE(program.run(feeds(3))[2].bit_equal(interpreter.run(feeds(3))[2]));
}

}  // namespace
}  // namespace lockstep::testing
