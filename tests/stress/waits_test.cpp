// Tests: core/variable_store.cpp, core/scheduler.cpp, graph/run/program.cpp, graph/run/run_context.cpp
// Nothing waits for a worker to become free, and nobody waits for a variable for ever. What hangs here fails by
// the test's timeout. Runs under ThreadSanitizer.
#include <atomic>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <taskflow/taskflow.hpp>

#include "lockstep/core/taskflow.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "support/forked.h"
#include "support/program_test.h"
#include "support/sanitizers.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::compile_here;
using testing::exit_status_of_child;
using testing::kSanitized;
using testing::repeats;
using testing::with_lanes;

// An executor whose workers are all inside tasks of the application.
class BusyExecutor {
 public:
  explicit BusyExecutor(std::size_t workers)
      : executor_(workers), busy_(static_cast<std::ptrdiff_t>(workers)) {
    for (std::size_t i = 0; i < workers; ++i) {
      executor_.silent_async([this] {
        busy_.count_down();
        release_.wait();
      });
    }
    busy_.wait();
  }
  ~BusyExecutor() { release_.count_down(); }
  BusyExecutor(const BusyExecutor&) = delete;
  BusyExecutor& operator=(const BusyExecutor&) = delete;
  tf::Executor& get() { return executor_; }

 private:
  std::latch release_{1};
  tf::Executor executor_;
  std::latch busy_;
};

Graph wide_graph() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  b.result(sum(relu(x) + x * 2.0F));
  return b.finish();
}

double run_wide(const Program& program, std::int64_t n) {
  return program.run({{"x", Tensor::full(DType::kF32, {n}, 1)}})[0].item();
}

TEST(BusyWorkers, NewFeedShapesDoNotWaitForThem) {
  BusyExecutor busy(2);
  const Runtime runtime({.scheduler = borrow(busy.get())});
  const Program program = compile_here(wide_graph(), runtime, with_lanes(Clustering::kOff));
  for (std::int64_t n = 1; n <= 40; ++n) {
    EXPECT_EQ(run_wide(program, n), 3.0 * static_cast<double>(n));
  }
  EXPECT_EQ(program.cached_plans(), CompileOptions().max_plans);
}

TEST(BusyWorkers, TheEndOfProgramAndRuntimeDoNotWaitForThem) {
  BusyExecutor busy(2);
  for (std::size_t i = 0; i < repeats(200); ++i) {
    const Program program =
        compile_here(wide_graph(), Runtime({.scheduler = borrow(busy.get())}), with_lanes(Clustering::kOff));
    EXPECT_EQ(run_wide(program, 8), 24.0);
  }
}

TEST(BusyWorkers, AProgramMayEndInsideANodeMeanwhile) {
  BusyExecutor busy(2);
  const Runtime runtime({.scheduler = borrow(busy.get())});
  GraphBuilder b;
  b.call("make and drop", [&runtime] {
    const Program program = compile_here(wide_graph(), runtime, with_lanes(Clustering::kOff));
    for (std::int64_t n = 1; n <= 20; ++n) run_wide(program, n);
  });
  compile_here(b.finish(), runtime).run();
}

TEST(BusyWorkers, AProgramMayEndWhileTheyBecomeFree) {
  for (std::size_t i = 0; i < repeats(300); ++i) {
    tf::Executor executor(2);
    std::latch release(1);
    for (int worker = 0; worker < 2; ++worker) executor.silent_async([&] { release.wait(); });
    std::optional<Program> program(
        compile_here(wide_graph(), Runtime({.scheduler = borrow(executor)}), with_lanes(Clustering::kOff)));
    run_wide(*program, 8);
    std::thread end([&] { program.reset(); });
    release.count_down();
    end.join();
    executor.wait_for_all();  // the latch goes
  }
}

// --- who waits for a variable

Program reader_of(const char* name, const Runtime& runtime) {
  GraphBuilder b;
  b.result(b.read(b.variable(name, Tensor::scalar(0.0F))) * 1.0F);
  return compile_here(b.finish(), runtime);
}

// Lets other threads go while it holds the variable: of several of them one always holds it.
Program slow_reader_of(const char* name, const Runtime& runtime) {
  GraphBuilder b;
  b.result(b.read(b.variable(name, Tensor::scalar(0.0F))) * 1.0F);
  b.call("others", [] {
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
  });
  return compile_here(b.finish(), runtime);
}

Program adder_to(const char* name, const Runtime& runtime) {
  GraphBuilder b;
  b.assign_add(b.variable(name, Tensor::scalar(0.0F)), b.constant(1.0F));
  return compile_here(b.finish(), runtime);
}

// Calls `body` on some threads again and again, until it goes.
class Looping {
 public:
  template <class Body>
  Looping(std::size_t threads, Body body) {
    for (std::size_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this, body] {
        for (body(), begun_.fetch_add(1); !stop_;) body();
      });
    }
    while (begun_ < threads) std::this_thread::yield();
  }
  ~Looping() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Looping(const Looping&) = delete;
  Looping& operator=(const Looping&) = delete;

 private:
  std::atomic<std::size_t> begun_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TEST(Turns, ReadersLeaveWritersTheirs) {
  const Runtime runtime({.threads = 2});
  const Program reader = slow_reader_of("v", runtime);
  const Program writer = adder_to("v", runtime);
  const Looping readers(16, [reader] { reader.run(); });
  const std::size_t rounds = repeats(30);
  for (std::size_t i = 0; i < rounds; ++i) {
    runtime.variables()->set("v", Tensor::scalar(0.0F));
    writer.run();
    EXPECT_EQ(runtime.variables()->value("v").item(), 1.0);
  }
}

TEST(Turns, ReadersOfTheStoreLeaveWritersTheirs) {
  VariableStore store;
  store.find_or_create("v", {DType::kF32, {}}, [] { return Tensor::scalar(0.0F); });
  const Looping readers(16, [&store] { store.value("v"); });
  for (std::size_t i = 0; i < repeats(30); ++i) store.set("v", Tensor::scalar(static_cast<float>(i)));
}

TEST(Turns, WritersLeaveReadersTheirs) {
  const Runtime runtime({.threads = 2});
  const Program reader = slow_reader_of("v", runtime);
  const Program writer = adder_to("v", runtime);
  const Looping writers(8, [writer] { writer.run(); });
  for (std::size_t i = 0; i < repeats(30); ++i) reader.run();
}

// Each of the others leaves it one variable at a time, and never both.
TEST(Turns, AWriterOfTwoVariablesGetsBoth) {
  const Runtime runtime({.threads = 2});
  const Program a = slow_reader_of("a", runtime), b = slow_reader_of("b", runtime);
  GraphBuilder builder;
  builder.assign_add(builder.variable("a", Tensor::scalar(0.0F)), builder.constant(1.0F));
  builder.assign_add(builder.variable("b", Tensor::scalar(0.0F)), builder.constant(1.0F));
  const Program both = compile_here(builder.finish(), runtime);
  const Looping readers_of_a(8, [a] { a.run(); });
  const Looping readers_of_b(8, [b] { b.run(); });
  for (std::size_t i = 0; i < repeats(30); ++i) both.run();
}

// They go ahead of the line, and come from runs that nobody in line has anything against.
TEST(Turns, ReadersInsideNodesLeaveWritersTheirs) {
  const Runtime runtime({.threads = 2});
  const Program inner = slow_reader_of("v", runtime);
  GraphBuilder b;
  b.result(b.read(b.variable("u", Tensor::scalar(0.0F))) * 1.0F);
  b.call("inner", [inner] { inner.run(); });
  const Program outer = compile_here(b.finish(), runtime);
  const Looping readers(16, [outer] { outer.run(); });
  for (std::size_t i = 0; i < repeats(30); ++i) runtime.variables()->set("v", Tensor::scalar(1.0F));
}

// --- a run that reads what the run around it reads, while writers wait

enum class Way { kNested, kAsync, kNestedInAsync, kThread };

Program outer_of(const Program& inner, Way way, const Runtime& runtime, const CompileOptions& options) {
  GraphBuilder b;
  const std::vector inputs{b.read(b.variable("v", Tensor::scalar(0.0F)))};
  const std::vector outputs{TensorSpec{DType::kF32, {}}};
  const KernelFn kernel = [inner, way](KernelContext& c) {
    switch (way) {
      case Way::kNested: inner.run(); break;
      case Way::kAsync: inner.run_async().get(); break;
      case Way::kNestedInAsync: {
        GraphBuilder middle;  // holds nothing itself
        middle.call("inner", [inner] { inner.run(); });
        compile_here(middle.finish(), inner.runtime()).run_async().get();
        break;
      }
      case Way::kThread: std::thread([inner] { inner.run(); }).join(); break;
    }
    c.output<float>(0)[0] = c.input<float>(0)[0];
  };
  std::vector<Value> calls;
  for (int i = 0; i < 3; ++i)
    calls.push_back(b.call("nested", inputs, outputs, kernel, {.seconds = 1e-4})[0]);
  b.result(calls[0] + calls[1] + calls[2]);
  return compile_here(b.finish(), runtime, options);
}

const char* name_of(Way way) {
  constexpr const char* kNames[] = {"Nested", "Async", "NestedInAsync", "Thread"};
  return kNames[static_cast<int>(way)];
}

class NestedReads : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, NestedReads,
                         ::testing::Values(Way::kNested, Way::kAsync, Way::kNestedInAsync, Way::kThread),
                         [](const auto& about) { return name_of(about.param); });

TEST_P(NestedReads, GoOnWhileWritersWait) {
  const Runtime runtime({.threads = 2});
  const Program inner = reader_of("v", runtime);
  const Program writer = adder_to("v", runtime);
  for (const CompileOptions& options : {CompileOptions(), with_lanes(Clustering::kOff)}) {
    const Program outer = outer_of(inner, GetParam(), runtime, options);
    const Looping writers(2, [writer] { writer.run(); });
    // On a thread of its own they are let past the line, but only after a while.
    const std::size_t runs = GetParam() == Way::kThread ? 5 : repeats(200);
    for (std::size_t i = 0; i < runs; ++i) outer.run();
  }
}

// The locks are taken by a worker; the nodes run there and on others.
TEST_P(NestedReads, GoOnInsideAsynchronousRuns) {
  // The run's own lane, three helpers that wait in its nodes, and one for what these wait for.
  const Runtime runtime({.threads = 5});
  const Program inner = reader_of("v", runtime);
  const Program writer = adder_to("v", runtime);
  const Program outer = outer_of(inner, GetParam(), runtime, with_lanes(Clustering::kOff));
  const Looping writers(2, [writer] { writer.run(); });
  // One at a time: runs that wait for asynchronous ones keep workers from those.
  const std::size_t runs = GetParam() == Way::kThread ? 5 : repeats(200);
  for (std::size_t i = 0; i < runs; ++i) outer.run_async().get();
}

// --- fork()

TEST(Fork, ProgramsEndInTheChild) {
  const Graph graph = wide_graph();
  for (std::size_t i = 0; i < repeats(20); ++i) {
    std::optional<Runtime> runtime(RuntimeOptions{.threads = 2});
    std::optional<Program> program(compile_here(graph, *runtime, with_lanes(Clustering::kOff)));
    run_wide(*program, 8);  // its helper may still be there
    EXPECT_EQ(exit_status_of_child([&] {
                program.reset();
                runtime.reset();
                return 0;
              }),
              0);
    EXPECT_EQ(run_wide(*program, 9), 27.0);
  }
}

TEST(Fork, ARuntimeEndsInTheChildThoughAThreadOfTheParentWaitsForAVariable) {
  std::optional<Runtime> runtime(RuntimeOptions{.threads = 2});
  VariableStore& store = *runtime->variables();
  StoredVariable& v = store.find_or_create("v", {DType::kF32, {}}, [] { return Tensor::scalar(0.0F); });
  ASSERT_TRUE(v.try_lock_shared());
  std::thread writer([&] { store.set("v", Tensor::scalar(1.0F)); });
  while (!v.is_reserved(false)) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // it sleeps
  EXPECT_EQ(exit_status_of_child([&] {
              runtime.reset();
              return 0;
            }),
            0);
  v.unlock_shared();
  writer.join();
}

TEST(Fork, ProgramsOfABorrowedExecutorEndInTheChild) {
  tf::Executor executor(2);
  std::optional<Program> program(
      compile_here(wide_graph(), Runtime({.scheduler = borrow(executor)}), with_lanes(Clustering::kOff)));
  run_wide(*program, 8);
  EXPECT_EQ(exit_status_of_child([&] {
              program.reset();
              return 0;
            }),
            0);
}

TEST(Fork, TheChildRunsOnItsOwnThreadAlone) {
  const Runtime runtime({.threads = 2});
  const Program program = compile_here(wide_graph(), runtime, with_lanes(Clustering::kOff));
  run_wide(program, 8);
  EXPECT_EQ(exit_status_of_child([&] {
              for (std::int64_t n = 1; n <= 40; ++n) {
                if (run_wide(program, n) != 3.0 * static_cast<double>(n)) return 1;
              }
              try {
                program.run_async({Tensor::full(DType::kF32, {3}, 1)});
                return 2;
              } catch (const FailedPrecondition&) {
                return 0;
              }
            }),
            0);
}

}  // namespace
}  // namespace lockstep
