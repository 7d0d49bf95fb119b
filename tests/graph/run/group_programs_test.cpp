// Tests: graph/ops/group_collectives.cpp, graph/ir/group_rounds.cpp
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
#include "support/failing_members.h"
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
  const Value sum_there = group_all_reduce(ReduceOp::kSum, late.placeholder("x", DType::kF32, {2}));
  late.result(late.call("has_sum", {&sum_there, 1}, {&spec, 1}, [&](KernelContext& c) {
    summed.set_value();
    std::copy_n(c.input<float>(0).data(), 2, c.output<float>(0).data());
  })[0]);
  InProcessGroup room(2);
  Worker one(room, 0, b.finish()), two(room, 1, late.finish());
  std::thread other([&] {
    half.get_future().wait();
    EXPECT_EQ(floats(two.program.run(list({vec({1, 2})}))[0]), (std::vector<float>{2, 4}));
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

TEST(RunsOfMembers, AreCommittedByAllOrByNone) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    for (const int members : {2, 3}) {
      InProcessGroup room(members);
      expect_one_outcome(
          members, [&](int rank) { return room.join(rank); }, seed, 60);
    }
  }
}

// One member fails; the other hears why, though it has nothing to wait for any more.
TEST(RunsOfMembers, FailWithTheReasonOfTheOneThatFailed) {
  InProcessGroup room(2);
  FailingMember one(room.join(0), 1), two(room.join(1), 1);
  two.mishap = Mishap::kBehindAll;
  std::string its;
  std::thread other([&] { its = caught([&] { two.program.run({{"x", vec({1, 1})}}); }).what; });
  const Caught mine = caught([&] { one.program.run({{"x", vec({1, 1})}}); });
  other.join();
  EXPECT_THAT(its, HasSubstr("mishap at the end"));
  EXPECT_EQ(mine.code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(mine.what, HasSubstr("participant 1 gave it up: FailedPrecondition: mishap at the end"));
  EXPECT_THAT(mine.what, HasSubstr("may_fail_last"));
  EXPECT_EQ(mine.place.node, "");
  EXPECT_EQ(one.program.variables().step(), 0U);
}

TEST(RunsOfMembers, EndForAllIfOneIsGivenUpByItsCaller) {
  InProcessGroup room(2);
  FailingMember one(room.join(0), 1), two(room.join(1), 1);
  two.program.give_up(InvalidArgument("no such file"));  // waits for nobody
  EXPECT_THAT(caught([&] { one.program.run({{"x", vec({1, 1})}}); }).what, HasSubstr("no such file"));
  std::thread other([&] { two.program.run({{"x", vec({1, 1})}}); });
  EXPECT_EQ(floats(one.program.run({{"x", vec({1, 1})}})[0]), (std::vector<float>{8, 8}));
  other.join();
}

// The step that one member ends without having failed does not begin anew in the steps that follow in the same call.
TEST(RunsOfMembers, OfSeveralStepsEndAtTheSameOne) {
  InProcessGroup room(2);
  FailingMember one(room.join(0), 1), two(room.join(1), 1);
  two.mishap = Mishap::kBetween;
  two.since = 3;
  const auto committed = [](const Program& program) {
    const Tensor x = vec({1, 1});
    try {
      program.run_n(10, {&x, 1});
    } catch (const RunError& error) {
      return error.committed_steps();
    }
    return std::uint64_t{10};
  };
  std::uint64_t its = 0;
  std::thread other([&] { its = committed(two.program); });
  EXPECT_EQ(committed(one.program), 3U);
  other.join();
  EXPECT_EQ(its, 3U);
  EXPECT_EQ(one.program.variables().step(), two.program.variables().step());
}

TEST(RunsOfMembers, OfProgramsThatExchangeNothingMayBeCommittedTogether) {
  InProcessGroup room(2);
  const auto make = [&](int rank) {
    GraphBuilder b;
    const VariableRef v = b.variable("v", Tensor::scalar(0.F));
    b.assign(v, check_finite(b.placeholder("x", DType::kF32, {})));
    return compile(b.finish(),
                   Runtime({.threads = 1, .groups = {{"world", std::make_shared<Group>(room.join(rank))}}}),
                   {.groups = {"world"}});
  };
  const Program one = make(0), two = make(1);
  const auto run = [](const Program& program, float value) {
    return caught([&] { program.run({{"x", Tensor::scalar(value)}}); }).what;
  };
  std::string its;
  std::thread other([&] { its = run(two, std::numeric_limits<float>::quiet_NaN()); });
  EXPECT_THAT(run(one, 1), HasSubstr("nan"));
  other.join();
  EXPECT_THAT(its, HasSubstr("nan"));
  EXPECT_EQ(one.variables().find("v")->storage().item(), 0);
  EXPECT_THAT(
      caught([&] { compile(GraphBuilder().finish(), Runtime({.threads = 1}), {.groups = {"mars"}}); }).what,
      HasSubstr("no group 'mars'"));
}

}  // namespace
}  // namespace lockstep::testing
