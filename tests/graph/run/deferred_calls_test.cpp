// Tests: graph/run/run_context.cpp graph/run/drain.cpp graph/ir/deferral.cpp
#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "support/deferred_ops.h"
#include "support/program_test.h"
#include "support/sanitizers.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& what) {
  const auto begin = Clock::now();
  what();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double cpu_seconds_of_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// One lane, two, and every call by itself.
struct Way {
  std::size_t threads;
  CompileOptions options;
};
std::vector<Way> ways() {
  std::vector<Way> list(3);
  list[0].threads = 1;
  list[1].threads = list[2].threads = 2;
  list[1].options.inline_seconds = 0;
  list[2].options.clustering = Clustering::kOff;
  return list;
}

// ((x + 1) held) * 2, at a door.
Graph held_graph(const std::string& door) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  b.result(held(x + 1.0F, door) * 2.0F);
  return b.finish();
}

TEST(DeferredCalls, GiveTheInterpretersResults) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3});
  const Value a = slept(x, 2), c = slept(a * 2.0F, 1);
  b.result(c + slept(x, 3));
  b.result(a);              // a deferred output as a result
  b.result(slept(a, 0.1));  // nobody else reads it
  b.result(reshape(c, {3, 1}));
  const Graph graph = b.finish();
  const Tensor fed = vec({1, 2, 3});
  const std::vector<Tensor> expected = Interpreter(graph).run(list({fed}));
  for (const Way& way : ways()) {
    const Program program = compile(graph, Runtime({.threads = way.threads}), way.options);
    for (int i = 0; i < 3; ++i) {
      const std::vector<Tensor> results = program.run(list({fed}));
      for (std::size_t k = 0; k < expected.size(); ++k) EXPECT_TRUE(results[k].bit_equal(expected[k])) << k;
    }
    EXPECT_EQ(program.plan(list({fed})).lanes, way.threads);
  }
}

// Two branches of sleeps: the time is that of the longer one, on one lane too.
TEST(DeferredCalls, BranchesOverlap) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value left = slept(slept(x, 50) + 1.0F, 50);
  const Value right = slept(slept(x, 80) + 1.0F, 20);
  b.result(left + right + slept(x, 100));
  const Graph graph = b.finish();
  for (const Way& way : ways()) {
    const Program program = compile(graph, Runtime({.threads = way.threads}), way.options);
    program.run(list({vec({1, 2})}));
    const double wanted = kSanitized ? 0.15 : 0.105;
    double best = 1;
    for (int i = 0; i < 100 && best > wanted; ++i)  // other tests run at the same time
      best = std::min(best, seconds_of([&] { program.run(list({vec({1, 2})})); }));
    EXPECT_GE(best, 0.0999);
    EXPECT_LE(best, wanted);
  }
}

// What runs meanwhile must not keep a call that has ended from starting the next one: each third of the computation ends when the
// next of three calls in a row stands before its door.
TEST(DeferredCalls, OverlapWithComputationOnOneLane) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  Value busy = x;
  const TensorSpec spec{DType::kF32, {2}};
  int opened = 0;
  for (int i = 0; i < 80; ++i) {
    busy = b.call("busy", {&busy, 1}, {&spec, 1},
                  [&, i](KernelContext& c) {
                    if (i % 20 == 19 && opened < 3) {
                      const std::string door = "third " + std::to_string(opened);
                      if (HeldCalls::wait_for(door, 1, 30s)) ++opened;
                      HeldCalls::open(door);
                    }
                    std::copy_n(c.input<float>(0).data(), 2, c.output<float>(0).data());
                  },
                  {.seconds = 1e-3})[0];
  }
  b.result(busy + held(held(held(x, "third 0"), "third 1"), "third 2"));
  CompileOptions options;
  options.inline_seconds = 10;
  const Program program = compile(b.finish(), Runtime({.threads = 1}), options);
  RunOptions run;
  run.deadline = Clock::now() + 60s;
  EXPECT_EQ(floats(program.run(list({vec({1, 2})}), run)[0]), (std::vector<float>{2, 4}));
  EXPECT_EQ(opened, 3);
}

TEST(DeferredCalls, AParkedCallerUsesNoProcessor) {
  GraphBuilder b;
  b.result(slept(b.placeholder("x", DType::kF32, {2}), 400));
  const Program program = compile(b.finish(), Runtime({.threads = 1}));
  const double before = cpu_seconds_of_thread();
  program.run(list({vec({1, 2})}));
  EXPECT_LT(cpu_seconds_of_thread() - before, kSanitized ? 0.1 : 0.01);
}

TEST(DeferredCalls, AFailureNamesTheNode) {
  for (const Way& way : ways()) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    b.result(held(x, "fails") + 1.0F);
    const Program program = compile(b.finish(), Runtime({.threads = way.threads}), way.options);
    std::thread other([] {
      HeldCalls::wait_for("fails");
      HeldCalls::fail("fails", std::make_exception_ptr(std::runtime_error("the other side hung up")));
    });
    const Caught error = caught([&] { program.run(list({vec({1, 2})})); });
    other.join();
    EXPECT_THAT(error.what, HasSubstr("the other side hung up"));
    EXPECT_EQ(error.place.op, "test.hold");
    std::thread opens([] {
      HeldCalls::wait_for("fails");
      HeldCalls::open("fails");
    });
    EXPECT_EQ(floats(program.run(list({vec({1, 2})}))[0]), (std::vector<float>{2, 3}));
    opens.join();
  }
}

TEST(DeferredCalls, DeadlinesAndCancellationsReturnAtOnce) {
  for (const Way& way : ways()) {
    const Program program = compile(held_graph("late"), Runtime({.threads = way.threads}), way.options);
    RunOptions options;
    options.deadline = Clock::now() + 20ms;
    const double late = seconds_of([&] {
      EXPECT_EQ(caught([&] {
                  program.run(list({vec({1, 2})}), options);
                }).code,
                ErrorCode::kDeadlineExceeded);
    });
    EXPECT_LT(late, 1.0);
    std::stop_source stop;
    RunOptions cancelled;
    cancelled.cancel = stop.get_token();
    std::thread other([&] {
      HeldCalls::wait_for("late", 2);
      stop.request_stop();
    });
    EXPECT_EQ(caught([&] { program.run(list({vec({1, 2})}), cancelled); }).code, ErrorCode::kCancelled);
    other.join();
    const std::vector<LaterCopy> left = HeldCalls::take("late");
    EXPECT_EQ(left.size(), 2U);
    // While those two are in flight, another run is not disturbed.
    std::thread opens([] {
      HeldCalls::wait_for("late");
      HeldCalls::open("late");
    });
    EXPECT_EQ(floats(program.run(list({vec({1, 2})}))[0]), (std::vector<float>{4, 6}));
    opens.join();
    for (const LaterCopy& call : left) call.complete();
  }
}

// Another node fails while a call is in flight: the run ends at once, what the call uses stays.
TEST(DeferredCalls, AFailureElsewhereDoesNotWait) {
  for (const Way& way : ways()) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    const TensorSpec spec{DType::kF32, {2}};
    const Value slow = held(x * 3.0F, "slow");
    const Value later = x + 1.0F + 1.0F + 1.0F;  // behind the start of the other branch, on one lane too
    const Value bad = b.call("bad", {&later, 1}, {&spec, 1}, [](KernelContext&) {
      HeldCalls::wait_for("slow");
      throw std::runtime_error("no");
    })[0];
    b.result(slow + bad);
    CompileOptions options = way.options;
    const Program program = compile(b.finish(), Runtime({.threads = way.threads}), options);
    EXPECT_THAT(caught([&] { program.run(list({vec({1, 2})})); }).what, HasSubstr("no"));
    HeldCalls::open("slow");
  }
}

// The variables that a call in flight may read stay locked until it has ended.
TEST(DeferredCalls, LocksComeBackWithTheLastCall) {
  GraphBuilder b;
  const Value v = b.read(b.variable("v", vec({1, 2})));
  b.result(held(v, "locks"));
  const Runtime runtime({.threads = 2});
  const Program program = compile(b.finish(), runtime);
  GraphBuilder writer;
  writer.assign(writer.variable("v", vec({1, 2})), writer.constant(vec({5, 6})));
  const Program write = compile(writer.finish(), runtime);
  RunOptions options;
  options.deadline = Clock::now() + 10ms;
  EXPECT_EQ(caught([&] { program.run({}, options); }).code, ErrorCode::kDeadlineExceeded);
  RunOptions soon;
  soon.deadline = Clock::now() + 30ms;
  EXPECT_EQ(caught([&] { write.run({}, soon); }).code, ErrorCode::kDeadlineExceeded);
  std::future<std::vector<Tensor>> waits = write.run_async();
  HeldCalls::open("locks");
  waits.get();
  EXPECT_EQ(floats(runtime.variables()->value("v")), (std::vector<float>{5, 6}));
}

// A call that ends after its program, its runtime and the tensors that it was fed are gone.
TEST(DeferredCalls, OutliveTheirProgram) {
  for (const Way& way : ways()) {
    std::weak_ptr<VariableStore> store;
    const auto captured = std::make_shared<int>(1);
    const std::weak_ptr<int> lambda = captured;
    {
      GraphBuilder b;
      const Value x = b.placeholder("x", DType::kF32, {1000});
      const Value v = b.read(b.variable("v", Tensor::full(DType::kF32, {1000}, 2)));
      const TensorSpec spec{DType::kF32, {1000}};
      const Value y = b.call("mine", {&x, 1}, {&spec, 1}, [captured](KernelContext& c) {
        std::ranges::fill(c.output<float>(0), static_cast<float>(*captured));
      })[0];
      b.result(held(y, "gone") + held(x, "gone") + held(v, "gone"));
      Runtime runtime({.threads = way.threads});
      store = runtime.variables();
      const Program program = compile(b.finish(), runtime, way.options);
      RunOptions options;
      options.deadline = Clock::now() + 50ms;
      std::vector<Tensor> results = list({Tensor::empty(DType::kF32, {1000})});
      EXPECT_EQ(caught([&] {
                  program.run_into(list({Tensor::full(DType::kF32, {1000}, 1)}), results, options);
                }).code,
                ErrorCode::kDeadlineExceeded);
    }
    HeldCalls::wait_for("gone", 3);
    EXPECT_FALSE(store.expired());
    HeldCalls::open("gone");
    for (int i = 0; i < 1000 && !store.expired(); ++i) std::this_thread::sleep_for(5ms);
    EXPECT_TRUE(store.expired());
    EXPECT_EQ(captured.use_count(), 1);
  }
}

// In a region too: the run around it ends, and keeps what the region's call uses.
TEST(DeferredCalls, InRegions) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  const std::vector<Value> loop = while_loop(
      {&x, 1}, [](std::span<const Value> v) { return less(sum(v[0]), 100.0F); },
      [](std::span<const Value> v) { return std::vector<Value>{held(v[0] * 2.0F, "inside")}; });
  b.result(loop[0] + 1.0F);
  const Graph graph = b.finish();
  for (const Way& way : ways()) {
    const Program program = compile(graph, Runtime({.threads = way.threads}), way.options);
    std::atomic<bool> over{false};
    std::thread opens([&] {
      while (!over) {
        HeldCalls::open("inside");
        std::this_thread::sleep_for(1ms);
      }
    });
    EXPECT_EQ(program.run(list({Tensor::full(DType::kF32, {4}, 1)}))[0].data<float>()[0], 33);
    over = true;
    opens.join();
    RunOptions options;
    options.deadline = Clock::now() + 20ms;
    EXPECT_EQ(caught([&] { program.run(list({Tensor::full(DType::kF32, {4}, 1)}), options); }).code,
              ErrorCode::kDeadlineExceeded);
    HeldCalls::open("inside");
  }
}

// A kernel that ends its call before it returns, and one that does not defer at all.
const OpDef& early_op(const char* name, bool defers) {
  OpDef def;
  def.name = name;
  def.inputs = Arity::exactly(1);
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.kernels["cpu"] = [defers](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [defers](KernelContext& c) {
      std::copy_n(c.input<float>(0).data(), c.input<float>(0).size(), c.output<float>(0).data());
      if (defers) c.defer().done();
    };
  };
  def.kernels["cpu"].deferred = true;
  return OpRegistry::global().add(std::move(def));
}

TEST(DeferredCalls, MayEndBeforeTheKernelReturns) {
  static const OpDef& early = early_op("test.early", true);
  static const OpDef& never = early_op("test.never", false);
  for (const Way& way : ways()) {
    GraphBuilder b;
    Value x = b.placeholder("x", DType::kF32, {2});
    for (int i = 0; i < 10; ++i)
      x = b.op1(early.name, {b.op1(never.name, {x})}) + 1.0F + b.op1(early.name, {x});
    b.result(x);
    const Graph graph = b.finish();
    const std::vector<Tensor> expected = Interpreter(graph).run(list({vec({1, 2})}));
    const Program program = compile(graph, Runtime({.threads = way.threads}), way.options);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(program.run(list({vec({1, 2})}))[0].bit_equal(expected[0]));
  }
}

TEST(DeferredCalls, BadKernelsAreRefused) {
  OpDef def;
  def.name = "test.defers_without_leave";
  def.inputs = Arity::exactly(1);
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) { c.defer().done(); };
  };
  OpRegistry::global().add(def);
  def.name = "test.defers_twice";
  def.kernels["cpu"].deferred = true;
  def.kernels["cpu"].make = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) {
      c.defer();
      c.defer();
    };
  };
  OpRegistry::global().add(def);
  def.name = "test.defers_shards";
  def.kernels["cpu"].split = [](const NodeView&, std::span<const TensorSpec>) { return Split{2, 0, false}; };
  OpRegistry::global().add(def);
  const auto run = [](const char* op) {
    return caught([&] {
             GraphBuilder b;
             b.result(b.op1(op, {b.placeholder("x", DType::kF32, {2})}));
             compile(b.finish(), Runtime({.threads = 1})).run(list({vec({1, 2})}));
           })
        .what;
  };
  EXPECT_THAT(run("test.defers_without_leave"), HasSubstr("set KernelDef::deferred"));
  EXPECT_THAT(run("test.defers_twice"), HasSubstr("defers one call twice"));
  EXPECT_THAT(run("test.defers_shards"), HasSubstr("has one shard and no finishing call"));
}

}  // namespace
}  // namespace lockstep::testing
