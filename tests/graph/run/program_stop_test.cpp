// Tests: graph/run/program.cpp, graph/run/run_context.cpp
// Deadlines, cancellation, and runs inside runs.
#include <atomic>
#include <chrono>
#include <stop_token>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::Caught;
using ::testing::HasSubstr;
using testing::with_lanes;
using Clock = std::chrono::steady_clock;

const CompileOptions kWays[] = {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)};

// A chain of two lambdas, then an update.
struct Stepper {
  std::function<void()> first = [] {};
  std::atomic<int> second_runs{0};
  Program program;

  explicit Stepper(const CompileOptions& options) {
    GraphBuilder b;
    const VariableRef v = b.variable("v", Tensor::scalar(0.0F));
    const NodeId one = b.call("first", [this] { first(); });
    b.call("second", [this] { ++second_runs; }, {}, {&one, 1});
    b.assign_add(v, b.constant(1.0F));
    program = compile(b.finish(), Runtime({.threads = 2}), options);
  }
  double value() const { return program.variables().value("v").item(); }
};

TEST(ProgramDeadline, ThatHasPassedStopsEverything) {
  for (const CompileOptions& way : kWays) {
    Stepper stepper(way);
    bool ran = false;
    stepper.first = [&] { ran = true; };
    RunOptions options;
    options.deadline = Clock::now();
    const Caught error = caught([&] { stepper.program.run({}, options); });
    EXPECT_TRUE(error.run_error);
    EXPECT_EQ(error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(error.what, HasSubstr("the deadline passed before the run could commit"));
    EXPECT_FALSE(ran);
    EXPECT_EQ(stepper.value(), 0);
    EXPECT_EQ(stepper.program.variables().step(), 0U);
    stepper.program.run();
    EXPECT_EQ(stepper.value(), 1);
  }
}

TEST(ProgramDeadline, ThatPassesDuringANodeStopsTheRestOfTheRun) {
  for (const CompileOptions& way : kWays) {
    Stepper stepper(way);
    RunOptions options;
    options.deadline = Clock::now() + std::chrono::milliseconds(2);
    stepper.first = [&] {
      while (Clock::now() < *options.deadline) {
      }
    };
    EXPECT_EQ(caught([&] { stepper.program.run({}, options); }).code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(stepper.second_runs, 0);
    EXPECT_EQ(stepper.value(), 0);
  }
}

TEST(ProgramDeadline, FarAwayChangesNothing) {
  for (const CompileOptions& way : kWays) {
    Stepper stepper(way);
    RunOptions options;
    options.deadline = Clock::now() + std::chrono::hours(1);
    stepper.program.run({}, options);
    EXPECT_EQ(stepper.value(), 1);
  }
}

TEST(ProgramCancel, BeforeTheRun) {
  for (const CompileOptions& way : kWays) {
    Stepper stepper(way);
    std::stop_source stop;
    stop.request_stop();
    RunOptions options;
    options.cancel = stop.get_token();
    const Caught error = caught([&] { stepper.program.run({}, options); });
    EXPECT_TRUE(error.run_error);
    EXPECT_EQ(error.code, ErrorCode::kCancelled);
    EXPECT_THAT(error.what, HasSubstr("no variable was changed"));
    EXPECT_EQ(stepper.second_runs, 0);
    EXPECT_EQ(stepper.value(), 0);
  }
}

TEST(ProgramCancel, DuringTheRun) {
  for (const CompileOptions& way : kWays) {
    Stepper stepper(way);
    std::stop_source stop;
    stepper.first = [&] { stop.request_stop(); };
    RunOptions options;
    options.cancel = stop.get_token();
    EXPECT_EQ(caught([&] { stepper.program.run({}, options); }).code, ErrorCode::kCancelled);
    EXPECT_EQ(stepper.second_runs, 0);
    EXPECT_EQ(stepper.value(), 0);
    stepper.first = [] {};
    stepper.program.run();
    EXPECT_EQ(stepper.value(), 1);
  }
}

TEST(ProgramCancel, AfterTheRunIsNothing) {
  for (const CompileOptions& way : kWays) {
    Stepper stepper(way);
    std::stop_source stop;
    RunOptions options;
    options.cancel = stop.get_token();
    stepper.program.run({}, options);
    stop.request_stop();
    EXPECT_EQ(stepper.value(), 1);
  }
}

TEST(ProgramCancel, WhileWaitingForAVariable) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", Tensor::scalar(0.0F));
  b.assign_add(v, b.constant(1.0F));
  const Program program = compile(b.finish(), Runtime());
  StoredVariable& held = *program.variables().find("v");
  ASSERT_TRUE(held.try_lock_exclusive());
  std::stop_source stop;
  RunOptions options;
  options.cancel = stop.get_token();
  std::future<std::vector<Tensor>> run = program.run_async({}, options);
  stop.request_stop();
  EXPECT_EQ(caught([&] { run.get(); }).code, ErrorCode::kCancelled);
  options.cancel = {};
  options.deadline = Clock::now() + std::chrono::milliseconds(1);
  EXPECT_EQ(caught([&] { program.run({}, options); }).code, ErrorCode::kDeadlineExceeded);
  held.unlock_exclusive();
  EXPECT_EQ(program.variables().value("v").item(), 0);
}

TEST(ProgramCancel, ReachesIntoALoop) {
  // Without a look at the stop token between the nodes of a region this never ends.
  std::stop_source stop;
  GraphBuilder b;
  const std::vector<Value> initial = {b.constant(0.0F)};
  int trips = 0;
  while_loop(
      initial, [](std::span<const Value> i) { return less(i[0], 1.0F); },
      [&](std::span<const Value> i) {
        b.call("trip", [&] {
          if (++trips == 3) stop.request_stop();
          if (trips > 1000) throw std::runtime_error("nobody stops this loop");
        });
        return std::vector<Value>{identity(i[0])};
      });
  const Program program = compile(b.finish(), Runtime());
  RunOptions options;
  options.cancel = stop.get_token();
  const Caught error = caught([&] { program.run({}, options); });
  EXPECT_EQ(error.code, ErrorCode::kCancelled);
  EXPECT_LE(trips, 4);
}

TEST(ProgramDeadline, ReachesIntoALoop) {
  GraphBuilder b;
  RunOptions options;
  const std::vector<Value> initial = {b.constant(0.0F)};
  while_loop(
      initial, [](std::span<const Value> i) { return less(i[0], 1.0F); },
      [&](std::span<const Value> i) {
        b.call("trip", [&] {
          if (Clock::now() > *options.deadline + std::chrono::seconds(10))
            throw std::runtime_error("too late");
        });
        return std::vector<Value>{identity(i[0])};
      });
  const Program program = compile(b.finish(), Runtime());
  options.deadline = Clock::now() + std::chrono::milliseconds(2);
  EXPECT_EQ(caught([&] { program.run({}, options); }).code, ErrorCode::kDeadlineExceeded);
}

// --- runs inside runs

TEST(ProgramNested, ANodeMayRunAnotherProgram) {
  const Runtime runtime({.threads = 2});
  for (const CompileOptions& way : kWays) {
    GraphBuilder inner;
    inner.result(inner.constant(20.0F) + 1.0F);
    const Program helper = compile(inner.finish(), runtime, way);
    GraphBuilder outer;
    const TensorSpec spec{DType::kF32, {}};
    outer.result(outer.call("nested", {}, {&spec, 1}, [&](KernelContext& c) {
      c.output<float>(0)[0] = static_cast<float>(helper.run()[0].item()) * 2;
    })[0]);
    EXPECT_EQ(compile(outer.finish(), runtime, way).run()[0].item(), 42);
  }
}

TEST(ProgramNested, ANodeThatNeedsAVariableOfItsOwnRunIsAnError) {
  const Runtime runtime({.threads = 2});
  for (const CompileOptions& way : kWays) {
    GraphBuilder inner;
    const VariableRef v = inner.variable("v", Tensor::scalar(0.0F));
    inner.assign_add(v, inner.constant(1.0F));
    const Program helper = compile(inner.finish(), runtime);
    GraphBuilder outer;
    const VariableRef same = outer.variable("v", Tensor::scalar(0.0F));
    outer.call("nested", [&] { helper.run(); });
    outer.assign_add(same, outer.constant(10.0F));
    const double before = runtime.variables()->value("v").item();
    const Caught error = caught([&] { compile(outer.finish(), runtime, way).run(); });
    EXPECT_EQ(error.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(error.place.node, "nested");
    EXPECT_THAT(error.what, HasSubstr("holds a variable"));
    EXPECT_EQ(runtime.variables()->value("v").item(), before);
  }
}

// The same through a program in between, whose node may run on a helper's thread: that thread holds nothing
// itself.
TEST(ProgramNested, SoIsOneThatNeedsItThroughAProgramInBetween) {
  const Runtime runtime({.threads = 2});
  for (int repeat = 0; repeat < 20; ++repeat) {
    GraphBuilder innermost;
    const VariableRef v = innermost.variable("v", Tensor::scalar(0.0F));
    innermost.assign_add(v, innermost.constant(1.0F));
    const Program helper = compile(innermost.finish(), runtime);
    GraphBuilder between;
    std::atomic<int> arrived{0};
    for (int i = 0; i < 2; ++i) {
      between.call("side_by_side", [&] {
        // Where a helper comes, the two run on two threads; where none does, one after the other.
        ++arrived;
        const auto until = Clock::now() + std::chrono::milliseconds(5);
        while (arrived < 2 && Clock::now() < until) {
        }
        helper.run();
      });
    }
    const Program middle = compile(between.finish(), runtime, with_lanes(Clustering::kOff));
    GraphBuilder outer;
    const VariableRef same = outer.variable("v", Tensor::scalar(0.0F));
    outer.call("nested", [&] { middle.run(); });
    outer.assign_add(same, outer.constant(10.0F));
    EXPECT_EQ(caught([&] { compile(outer.finish(), runtime).run(); }).code, ErrorCode::kFailedPrecondition);
  }
}

TEST(ProgramNested, TwoReadersOfOneVariableAreFine) {
  const Runtime runtime;
  const auto reader = [] {
    auto b = std::make_unique<GraphBuilder>();
    const VariableRef v = b->variable("v", Tensor::scalar(4.0F));
    b->result(b->read(v));
    return b;
  };
  const Program inner = compile(reader()->finish(), runtime);
  const auto b = reader();
  double seen = 0;
  b->call("nested", [&] { seen = inner.run()[0].item(); });
  compile(b->finish(), runtime).run();
  EXPECT_EQ(seen, 4);
}

TEST(ProgramNested, RandomInsideRandomIsAnError) {
  const Runtime runtime;
  GraphBuilder inner;
  inner.result(inner.random_uniform({DType::kF32, {1}}));
  const Program helper = compile(inner.finish(), runtime);
  GraphBuilder outer;
  outer.result(outer.random_uniform({DType::kF32, {1}}));
  outer.call("nested", [&] { helper.run(); });
  EXPECT_EQ(caught([&] { compile(outer.finish(), runtime).run(); }).code, ErrorCode::kFailedPrecondition);
}

TEST(ProgramNested, AProgramMayRunItselfWhereItIsPure) {
  const Runtime runtime({.threads = 2});
  for (const CompileOptions& way : kWays) {
    int depth = 0;
    Program program;
    GraphBuilder b;
    b.call("again", [&] {
      if (++depth < 5) program.run();
    });
    program = compile(b.finish(), runtime, way);
    program.run();
    EXPECT_EQ(depth, 5);
  }
}

}  // namespace
}  // namespace lockstep
