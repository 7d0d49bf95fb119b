// Tests: graph/ops/group_collectives.cpp
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/communicators/group.h"
#include "lockstep/core/communicators/in_process_group.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "support/program_test.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Two threads as two workers, each with a runtime and a program of its own.
struct Worker {
  Worker(InProcessGroup& room, int rank, const Graph& graph, std::size_t threads = 1)
      : program(compile(graph, Runtime({.threads = threads,
                                        .groups = {{"world", std::make_shared<Group>(room.join(rank))}}}))) {}
  Program program;
};

std::vector<float> run_both(const Graph& graph, const Tensor& first, const Tensor& second, int times = 1) {
  InProcessGroup room(2);
  Worker one(room, 0, graph), two(room, 1, graph, 2);
  std::vector<float> mine, theirs;
  std::thread other([&] {
    for (int i = 0; i < times; ++i) theirs = floats(two.program.run(list({second}))[0]);
  });
  for (int i = 0; i < times; ++i) mine = floats(one.program.run(list({first}))[0]);
  other.join();
  EXPECT_EQ(mine, theirs);
  return mine;
}

TEST(GroupPrograms, AllReduceAndBroadcast) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3});
  const Value total = group_all_reduce(ReduceOp::kSum, x * 2.0F);
  const Value most = group_all_reduce(ReduceOp::kMax, x);
  b.result(total + most * 100.0F + group_broadcast(x, 1) * 10000.0F);
  EXPECT_EQ(run_both(b.finish(), vec({1, 2, 3}), vec({3, 1, 1}), 20),
            (std::vector<float>{30308, 10206, 10308}));
}

// Many calls that nothing orders but the nodes: both workers make them in one order, whatever their lanes.
TEST(GroupPrograms, CallsKeepTheOrderOfTheNodes) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3});
  Value all = x * 0.0F;
  for (int i = 0; i < 30; ++i) all = all + group_all_reduce(ReduceOp::kSum, x * static_cast<float>(i));
  b.result(all);
  const std::vector<float> sums = run_both(b.finish(), vec({1, 0, 2}), vec({1, 1, 1}), 20);
  EXPECT_EQ(sums, (std::vector<float>{870, 435, 1305}));
}

TEST(GroupPrograms, SumsHaveGradients) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value y = sum(group_all_reduce(ReduceOp::kSum, square(x)));
  b.result(gradients(y, {&x, 1})[0].dense());
  EXPECT_EQ(run_both(b.finish(), vec({1, 2}), vec({1, 2})), (std::vector<float>{4, 8}));
}

// A worker computes on its one lane while the other is late: the other comes when half of the calls are done, and has its sum before
// the last of them is. A worker that waited with its one lane, before the calls or after them, would never get there.
TEST(GroupPrograms, OverlapWithComputationOnOneLane) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const TensorSpec spec{DType::kF32, {2}};
  std::promise<void> half, summed;
  const std::shared_future<void> was_summed = summed.get_future().share();
  bool in_time = false;
  Value busy = x;
  for (int i = 0; i < 10; ++i) {
    busy = b.call("busy", {&busy, 1}, {&spec, 1},
                  [&, i](KernelContext& c) {
                    if (i == 5) half.set_value();
                    if (i == 9) in_time = was_summed.wait_for(30s) == std::future_status::ready;
                    std::copy_n(c.input<float>(0).data(), 2, c.output<float>(0).data());
                  },
                  {.seconds = 1e-2})[0];
  }
  b.result(busy + group_all_reduce(ReduceOp::kSum, x));
  GraphBuilder late;
  late.result(group_all_reduce(ReduceOp::kSum, late.placeholder("x", DType::kF32, {2})));
  InProcessGroup room(2);
  Worker one(room, 0, b.finish()), two(room, 1, late.finish());
  std::thread other([&] {
    half.get_future().wait();
    EXPECT_EQ(floats(two.program.run(list({vec({1, 2})}))[0]), (std::vector<float>{2, 4}));
    summed.set_value();
  });
  EXPECT_EQ(floats(one.program.run(list({vec({1, 2})}))[0]), (std::vector<float>{3, 6}));
  other.join();
  EXPECT_TRUE(in_time);
}

TEST(GroupPrograms, AMissingMemberIsAnError) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  b.result(group_all_reduce(ReduceOp::kSum, x));
  InProcessGroup room(2);
  Worker one(room, 0, b.finish());
  RunOptions options;
  options.deadline = Clock::now() + 30ms;
  EXPECT_EQ(caught([&] {
              one.program.run(list({vec({1, 2})}), options);
            }).code,
            ErrorCode::kDeadlineExceeded);
  room.declare_lost(1, "it was never started");
  const Caught lost = caught([&] { one.program.run(list({vec({1, 2})})); });
  EXPECT_EQ(lost.code, ErrorCode::kUnavailable);
  EXPECT_EQ(lost.place.op, "group_all_reduce");
}

TEST(GroupPrograms, AGroupThatIsNotThere) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  b.result(group_all_reduce(ReduceOp::kSum, x, "mars"));
  const Graph graph = b.finish();
  const Caught none = caught([&] { compile(graph, Runtime({.threads = 1})); });
  EXPECT_EQ(none.code, ErrorCode::kNotFound);
  EXPECT_THAT(none.what, HasSubstr("has no group 'mars'"));
  EXPECT_EQ(none.place.op, "group_all_reduce");
  EXPECT_THAT(caught([&] {
                Interpreter(graph).run(list({vec({1, 2})}));
              }).what,
              HasSubstr("compile the graph"));
  GraphBuilder bad;
  bad.result(group_broadcast(bad.placeholder("x", DType::kF32, {2}), 5));
  InProcessGroup room(2);
  EXPECT_THAT(caught([&] { Worker(room, 0, bad.finish()); }).what, HasSubstr("root 5 is no member"));
}

}  // namespace
}  // namespace lockstep::testing
