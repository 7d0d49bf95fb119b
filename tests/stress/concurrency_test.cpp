// Tests: core/variable_store.cpp, graph/run/program.cpp
// Programs from many threads at once, inside tasks, and at the end of their lives. Runs under
// ThreadSanitizer.
#include <array>
#include <atomic>
#include <future>
#include <latch>
#include <thread>

#include <taskflow/taskflow.hpp>

#include "lockstep/core/taskflow.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "support/program_test.h"
#include "support/random_graph.h"
#include "support/sanitizers.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::compile_here;
using testing::expect_same_tensors;
using testing::feeds_for;
using testing::random_graph;
using testing::repeats;
using testing::vec;
using testing::with_lanes;

// Adds one to "count" and gives the sum of what it was fed.
Graph counting_graph(int width = 4) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {16});
  const VariableRef count = b.variable("count", Tensor::scalar(0.0F));
  std::vector<Value> parts;
  for (int i = 0; i < width; ++i) {
    const Value scaled = x * static_cast<float>(i + 1);
    const TensorSpec spec = scaled.spec();
    const KernelFn copy = [](KernelContext& c) {
      std::ranges::copy(c.input<float>(0), c.output<float>(0).begin());
    };
    // Said to be dear, so that each is worth a task.
    parts.push_back(b.call("part", {&scaled, 1}, {&spec, 1}, copy, {.seconds = 1e-5})[0]);
  }
  Value total = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) total = total + parts[i];
  b.assign_add(count, b.constant(1.0F));
  b.result(sum(total));
  return b.finish();
}

const Tensor kOnes = Tensor::full(DType::kF32, {16}, 1);
constexpr double kSumOfFour = 16 * (1 + 2 + 3 + 4);

template <class F>
void on_threads(std::size_t threads, F&& body) {
  std::vector<std::thread> all;
  for (std::size_t i = 0; i < threads; ++i) all.emplace_back([&, i] { body(i); });
  for (std::thread& thread : all) thread.join();
}

const CompileOptions kWays[] = {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)};

TEST(Concurrency, TheseProgramsDoUseLanes) {
  const std::vector<Tensor> feeds = {kOnes};
  const Runtime runtime({.threads = 2});
  EXPECT_EQ(compile_here(counting_graph(), runtime).plan(feeds).lanes, 1U);
  EXPECT_EQ(compile_here(counting_graph(), runtime, with_lanes()).plan(feeds).lanes, 2U);
  EXPECT_EQ(compile_here(counting_graph(), runtime, with_lanes(Clustering::kOff)).plan(feeds).lanes, 2U);
}

// --- one program, many threads

TEST(Concurrency, APureProgramRunsFromManyThreads) {
  const Graph graph = random_graph({.seed = 3, .nodes = 30, .variables = 0, .random = false});
  std::vector<std::vector<Tensor>> expected;
  Interpreter interpreter(graph);
  for (std::uint64_t i = 0; i < 4; ++i) expected.push_back(interpreter.run(feeds_for(graph, i)));
  for (const CompileOptions& way : kWays) {
    const Program program = compile_here(graph, Runtime({.threads = 2}), way);
    if (testing::on_card()) {  // its functions have bits of their own
      for (std::uint64_t i = 0; i < 4; ++i) expected[i] = program.run(feeds_for(graph, i));
    }
    on_threads(4, [&](std::size_t thread) {
      const std::vector<Tensor> feeds = feeds_for(graph, thread);
      for (std::size_t run = 0; run < repeats(2000); ++run)
        expect_same_tensors(program.run(feeds), expected[thread]);
    });
  }
}

TEST(Concurrency, NoUpdateOfASharedVariableIsLost) {
  for (const CompileOptions& way : kWays) {
    const Program program = compile_here(counting_graph(), Runtime({.threads = 2}), way);
    const std::size_t runs = repeats(2000);
    on_threads(4, [&](std::size_t) {
      for (std::size_t run = 0; run < runs; ++run)
        EXPECT_EQ(program.run({{"x", kOnes}})[0].item(), kSumOfFour);
    });
    EXPECT_EQ(program.variables().value("count").item(), static_cast<double>(4 * runs));
    EXPECT_EQ(program.variables().step(), 4 * runs);
  }
}

TEST(Concurrency, NoTwoRunsDrawTheSameNumbers) {
  GraphBuilder b;
  b.result(b.random_uniform({DType::kF64, {2}}));
  const Program program = compile_here(b.finish(), Runtime({.threads = 2}));
  const std::size_t runs = repeats(2000);
  std::vector<std::vector<double>> drawn(4);
  on_threads(4, [&](std::size_t thread) {
    for (std::size_t run = 0; run < runs; ++run)
      drawn[thread].push_back(program.run()[0].host().data<double>()[0]);
  });
  std::vector<double> all;
  for (const auto& list : drawn) all.insert(all.end(), list.begin(), list.end());
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
  EXPECT_EQ(program.variables().step(), 4 * runs);
}

TEST(Concurrency, NewShapesFromManyThreads) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  b.result(sum(x * 2.0F));
  CompileOptions options = with_lanes();
  options.max_plans = 3;  // plans go while others run them
  const Program program = compile_here(b.finish(), Runtime({.threads = 2}), options);
  on_threads(4, [&](std::size_t thread) {
    for (std::size_t run = 0; run < repeats(2000); ++run) {
      const auto n = static_cast<std::int64_t>(1 + (run * 5 + thread) % 9);
      EXPECT_EQ(program.run({{"x", Tensor::full(DType::kF32, {n}, 1)}})[0].item(),
                2.0 * static_cast<double>(n));
    }
  });
  EXPECT_EQ(program.cached_plans(), 3U);
}

// --- many programs

TEST(Concurrency, ProgramsOfOneRuntimeRunAtOnce) {
  const Runtime runtime({.threads = 2});
  const Program writer = compile_here(counting_graph(), runtime, with_lanes());
  GraphBuilder b;
  const VariableRef count = b.variable("count", Tensor::scalar(0.0F));
  const VariableRef other = b.variable("other", Tensor::scalar(0.0F));
  b.result(b.read(count) - b.read(count));  // the same moment, twice
  b.assign_add(other, b.constant(1.0F));
  const Program reader = compile_here(b.finish(), runtime, with_lanes(Clustering::kOff));
  const Graph pure = random_graph({.seed = 5, .variables = 0, .random = false});
  const Program third = compile_here(pure, runtime);
  const std::vector<Tensor> feeds = feeds_for(pure, 1);
  const std::vector<Tensor> expected = third.run(feeds);
  const std::size_t runs = repeats(3000);
  on_threads(4, [&](std::size_t thread) {
    for (std::size_t run = 0; run < runs; ++run) {
      switch ((thread + run) % 3) {
        case 0: EXPECT_EQ(writer.run({{"x", kOnes}})[0].item(), kSumOfFour); break;
        case 1: EXPECT_EQ(reader.run()[0].item(), 0); break;
        default: expect_same_tensors(third.run(feeds), expected); break;
      }
    }
  });
  EXPECT_EQ(runtime.variables()->value("count").item() + runtime.variables()->value("other").item(),
            static_cast<double>(runtime.variables()->step()));
}

TEST(Concurrency, WritersOfOverlappingSetsOfVariablesDoNotBlockEachOtherForGood) {
  const Runtime runtime({.threads = 2});
  const auto writer = [&](std::initializer_list<const char*> names) {
    GraphBuilder b;
    for (const char* name : names) {
      const VariableRef v = b.variable(name, Tensor::scalar(0.0F));
      b.assign_add(v, b.constant(1.0F));
    }
    return compile_here(b.finish(), runtime, with_lanes());
  };
  const std::array<Program, 3> programs = {writer({"a", "b"}), writer({"b", "c"}), writer({"c", "a"})};
  const std::size_t runs = repeats(3000);
  on_threads(3, [&](std::size_t thread) {
    for (std::size_t run = 0; run < runs; ++run) programs[thread].run();
  });
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(runtime.variables()->value(name).item(), static_cast<double>(2 * runs));
  }
}

TEST(Concurrency, ValuesCanBeReadAndSetMeanwhile) {
  const Program program = compile_here(counting_graph(), Runtime({.threads = 2}), with_lanes());
  std::atomic<bool> done{false};
  std::thread outsider([&] {
    double last = 0;
    while (!done) {
      const double now = program.variables().value("count").item();
      EXPECT_GE(now, last);
      last = now;
    }
  });
  for (std::size_t run = 0; run < repeats(3000); ++run) program.run({{"x", kOnes}});
  done = true;
  outsider.join();
}

// --- the application's executor

TEST(Embedding, BorrowsAnExecutor) {
  tf::Executor executor(2);
  for (const CompileOptions& way : kWays) {
    const Runtime runtime({.scheduler = borrow(executor)});
    const Program program = compile_here(counting_graph(), runtime, way);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(program.run({{"x", kOnes}})[0].item(), kSumOfFour);
    EXPECT_EQ(program.run_async({kOnes}).get()[0].item(), kSumOfFour);
  }
  executor.wait_for_all();
}

TEST(Embedding, IsATaskOfTheApplicationsOwnTaskflow) {
  tf::Executor executor(2);
  const Runtime runtime({.scheduler = borrow(executor)});
  for (const CompileOptions& way : kWays) {
    const Program program = compile_here(counting_graph(), runtime, way);
    Tensor feed = Tensor::zeros({16});
    double result = 0;
    tf::Taskflow flow;
    tf::Task before = flow.emplace([&] { feed.assign(kOnes); });
    tf::Task run = flow.emplace([&] { result = program.run({{"x", feed}})[0].item(); });
    tf::Task after = flow.emplace([&] { result *= 2; });
    before.precede(run);
    run.precede(after);
    for (int i = 0; i < 20; ++i) executor.run(flow).wait();
    EXPECT_EQ(result, 2 * kSumOfFour);
  }
}

class NestedRuns : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, NestedRuns, ::testing::Values(1, 2));

TEST_P(NestedRuns, ManyTasksOfTheExecutorWriteOneVariable) {
  tf::Executor executor(GetParam());
  const Runtime runtime({.scheduler = borrow(executor)});
  for (const Clustering clustering : {Clustering::kByCost, Clustering::kOff}) {
    CompileOptions options = with_lanes(clustering);
    options.variables = std::make_shared<VariableStore>();
    const Program program = compile_here(counting_graph(), runtime, options);
    tf::Taskflow flow;
    for (int i = 0; i < 200; ++i) {
      flow.emplace([&] { EXPECT_EQ(program.run({{"x", kOnes}})[0].item(), kSumOfFour); });
    }
    executor.run(flow).wait();
    EXPECT_EQ(options.variables->value("count").item(), 200);
  }
}

TEST_P(NestedRuns, InsideTasksAndOutsideAtOnce) {
  tf::Executor executor(GetParam());
  const Runtime runtime({.scheduler = borrow(executor)});
  const Program program = compile_here(counting_graph(), runtime, with_lanes());
  std::vector<std::future<std::vector<Tensor>>> futures;
  const std::size_t runs = repeats(500);
  for (std::size_t i = 0; i < runs; ++i) {
    futures.push_back(program.run_async({kOnes}));
    program.run({{"x", kOnes}});
  }
  for (auto& future : futures) EXPECT_EQ(future.get()[0].item(), kSumOfFour);
  EXPECT_EQ(program.variables().value("count").item(), static_cast<double>(2 * runs));
}

TEST_P(NestedRuns, RunsInsideNodesOfRunsInsideTasks) {
  tf::Executor executor(GetParam());
  const Runtime runtime({.scheduler = borrow(executor)});
  const Program inner = compile_here(counting_graph(), runtime, with_lanes(Clustering::kOff));
  GraphBuilder b;
  for (int i = 0; i < 5; ++i) b.call("nested", [&] { inner.run({{"x", kOnes}}); });
  const Program outer = compile_here(b.finish(), runtime, with_lanes(Clustering::kOff));
  tf::Taskflow flow;
  for (int i = 0; i < 20; ++i) flow.emplace([&] { outer.run(); });
  executor.run(flow).wait();
  EXPECT_EQ(runtime.variables()->value("count").item(), 100);
}

TEST_P(NestedRuns, AWorkerThatIsBusyElsewhereDoesNotHoldARunUp) {
  tf::Executor executor(GetParam());
  const Runtime runtime({.scheduler = borrow(executor)});
  CompileOptions options = with_lanes(Clustering::kOff);
  options.runs_ahead = 1;  // each run that is under way on a device has memory of its own
  const Program program = compile_here(counting_graph(), runtime, options);
  std::latch release(1);
  for (std::size_t i = 0; i < GetParam(); ++i) executor.silent_async([&] { release.wait(); });
  // No worker comes to help; memory must not pile up behind the helpers that were called.
  program.run({{"x", kOnes}});
  const auto& pool = *runtime.pool(runtime.devices()[0]);
  const std::int64_t live = pool.stats().live_bytes;
  for (std::size_t i = 0; i < repeats(3000); ++i)
    EXPECT_EQ(program.run({{"x", kOnes}})[0].item(), kSumOfFour);
  EXPECT_EQ(pool.stats().live_bytes, live);
  release.count_down();
  executor.wait_for_all();
}

// --- ends

TEST(Lifetime, AProgramMayGoWhileItsHelpersAreStillQueued) {
  tf::Executor executor(2);
  const Runtime runtime({.scheduler = borrow(executor)});
  for (std::size_t i = 0; i < repeats(500); ++i) {
    std::latch release(1);
    for (int worker = 0; worker < 2; ++worker) executor.silent_async([&] { release.wait(); });
    auto program =
        std::make_unique<Program>(compile_here(counting_graph(), runtime, with_lanes(Clustering::kOff)));
    program->run({{"x", kOnes}});
    std::thread end([&] { program.reset(); });  // while the workers come to the helpers
    release.count_down();
    end.join();
    executor.wait_for_all();  // the latch goes
  }
}

TEST(Lifetime, AProgramMayGoInsideATask) {
  for (const std::size_t workers : {1U, 2U}) {
    tf::Executor executor(workers);
    const Runtime runtime({.scheduler = borrow(executor)});
    tf::Taskflow flow;
    for (int i = 0; i < 30; ++i) {
      flow.emplace([&] {
        const Program program = compile_here(counting_graph(), runtime, with_lanes(Clustering::kOff));
        program.run({{"x", kOnes}});
      });
    }
    executor.run(flow).wait();
    EXPECT_EQ(runtime.variables()->value("count").item(), 30);
  }
}

TEST(Lifetime, EveryHandleMayGoBeforeAnAsynchronousRunEnds) {
  for (std::size_t i = 0; i < repeats(300); ++i) {
    std::future<std::vector<Tensor>> future;
    {
      const Program program = compile_here(counting_graph(), Runtime({.threads = 2}), kWays[i % 3]);
      future = program.run_async({kOnes});
    }
    if (i % 2 == 0) {
      EXPECT_EQ(future.get()[0].item(), kSumOfFour);
    }
  }
}

TEST(Lifetime, EveryHandleMayGoBeforeAnAsynchronousRunOnABorrowedExecutorEnds) {
  for (std::size_t i = 0; i < repeats(300); ++i) {
    tf::Executor executor(2);
    std::future<std::vector<Tensor>> future;
    {
      const Program program =
          compile_here(counting_graph(), Runtime({.scheduler = borrow(executor)}), kWays[i % 3]);
      future = program.run_async({kOnes});
    }
    if (i % 2 == 0) {
      EXPECT_EQ(future.get()[0].item(), kSumOfFour);
    }
    executor.wait_for_all();
  }
}

TEST(Lifetime, ResultsOutliveEverything) {
  Tensor result;
  {
    GraphBuilder b;
    b.result(b.constant(vec({1, 2})) + 1.0F);
    result = compile_here(b.finish(), Runtime()).run()[0];
  }
  EXPECT_TRUE(result.bit_equal(vec({2, 3})));
}

}  // namespace
}  // namespace lockstep
