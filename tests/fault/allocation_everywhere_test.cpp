// Tests: core/scheduler.cpp, graph/ir/graph.cpp, graph/ops/register.cpp, io/state/snapshot.cpp, io/state/logical_variables.cpp,
//        strategies/trace/step.cpp
// Each allocation fails once, of everything a program does but run in parallel (tests/fault/allocation_test.cpp). What
// failed has not happened: variables are as before, or committed as said; the process goes on, and the next try
// succeeds.
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lockstep/lockstep.h"
#include "lockstep/testing/fake_gpu.h"
#include "lockstep/testing/null_device.h"
#include "support/failing_allocations.h"
#include "support/forked.h"
#include "support/program_test.h"
#include "support/temporary_folder.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::exit_status_of_child;
using testing::expect_same_tensors;
using testing::expect_same_values;
using testing::FailingAllocations;
using testing::test_devices;
using testing::variables_of;

class EachAllocation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::kAllocationsFail) GTEST_SKIP() << "sanitizers have an allocator of their own";
  }

  // Does `task` with the first allocation failing, then with the second, until none is left to fail. `check` is told
  // after each whether the task was done. What comes out of a failure is std::bad_alloc or has the code of it.
  static void fail_each_of(
      const std::function<void()>& task, const std::function<void(bool)>& check = [](bool) {}) {
    for (std::int64_t n = 1;; ++n) {
      ASSERT_LT(n, 100'000) << "there is no end of it";
      bool done = false;
      bool reached = false;
      {
        const FailingAllocations failing({.nth = n});
        try {
          task();
          done = true;
        } catch (const std::bad_alloc&) {
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << n << ": " << error.what();
        }
        reached = failing.reached();
      }
      check(done);
      if (::testing::Test::HasFailure()) FAIL() << "allocation " << n;
      if (reached) continue;
      EXPECT_GT(n, 2) << "nothing failed";
      return;
    }
  }
};

Graph training_graph() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 4});
  const VariableRef w = b.variable("w", Tensor::full(DType::kF32, {4, 2}, 0.5));
  const Value loss = sum(square(matmul(x, b.read(w))));
  const Value gradient = gradients(loss, {w})[0];
  b.assign_add(w, gradient * -0.01F);
  b.result(loss, SourceSite::current());
  return b.finish();
}

std::vector<Tensor> feeds() { return {Tensor::full(DType::kF32, {3, 4}, 1)}; }

TEST_F(EachAllocation, OfBuildingAGraph) {
  fail_each_of([] { training_graph(); });
}

TEST_F(EachAllocation, OfAGraphThatIsEdited) {
  const Graph whole = training_graph();
  for (std::int64_t n = 1;; ++n) {
    Graph graph = whole;
    bool reached = false;
    {
      const FailingAllocations failing({.nth = n});
      try {
        NodeInit init;
        init.op = &whole.node(whole.results()[0].node).op();
        init.name = "one more node, whose name is long enough to be allocated";
        init.inputs.push_back(whole.node(whole.results()[0].node).inputs()[0]);
        init.device = "cpu:3";
        init.attributes = whole.node(whole.results()[0].node).attributes();
        graph.add(std::move(init));
      } catch (const std::bad_alloc&) {
      }
      reached = failing.reached();
    }
    const bool added = graph.size() > whole.size();
    EXPECT_EQ(graph.find("one more node, whose name is long enough to be allocated").valid(), added);
    if (!added) {
      EXPECT_TRUE(same_structure(graph, whole)) << n;
      NodeInit again;
      again.op = &whole.node(whole.parameters()[0]).op();
      again.name = "next";
      again.outputs.push_back({DType::kF32, {}});
      graph.add(std::move(again));
      EXPECT_TRUE(graph.find("next").valid());
    }
    if (!reached) break;
  }
}

TEST_F(EachAllocation, OfOptimizing) {
  const Graph graph = training_graph();
  fail_each_of([&] { optimize(graph); });
}

TEST_F(EachAllocation, OfCompiling) {
  const Runtime runtime({.threads = 1});
  const Graph graph = training_graph();
  fail_each_of([&] { compile(graph, runtime, {.variables = std::make_shared<VariableStore>()}); });
}

TEST_F(EachAllocation, OfTheFirstRunOfAShape) {
  const Runtime runtime({.threads = 1});
  const std::vector<Tensor> fed = feeds();
  fail_each_of([&] {
    // A program of its own each time, made while nothing fails would need another thread: so its making fails too.
    compile(training_graph(), runtime, {.variables = std::make_shared<VariableStore>()}).run(fed);
  });
}

TEST_F(EachAllocation, OfARunCommitsOrDidNotHappen) {
  const Runtime runtime({.threads = 1});
  const Program program = compile(training_graph(), runtime);
  const std::vector<Tensor> fed = feeds();
  Interpreter expected(training_graph());
  program.run(fed);
  expected.run(fed);
  fail_each_of([&] { program.run(fed); },
               [&](bool done) {
                 if (done) expected.run(fed);
                 EXPECT_TRUE(program.variables().value("w").bit_equal(expected.variables().at("w")));
                 EXPECT_EQ(program.variables().step(), expected.step());
               });
}

// The host's part of it: a device that allocates nothing, and computes nothing. Its first run puts calls on streams one by one,
// its second one records them, later ones replay them.
TEST_F(EachAllocation, OfARunOnADeviceCommitsOrDidNotHappen) {
  const Runtime runtime({.threads = 1, .backends = {std::make_shared<testing::NullBackend>()}});
  Graph graph = training_graph();
  PassContext context{.topology = &runtime.topology()};
  make_place({.devices = {"gpu:0"}})->run(graph, context);
  const std::vector<Tensor> fed = feeds();
  for (const int before : {0, 1, 2, 5}) {
    const auto store = std::make_shared<VariableStore>();
    std::optional<Program> program;
    std::uint64_t steps = 0;
    const auto prepare = [&] {
      program.emplace(compile(graph, runtime, {.variables = store}));
      for (int i = 0; i < before; ++i) program->run(fed);
      program->wait();
      steps = store->step();
    };
    prepare();
    fail_each_of([&] { program->run(fed); },
                 [&](bool done) {
                   program->wait();
                   EXPECT_EQ(store->step(), steps + (done ? 1 : 0)) << "after " << before << " runs";
                   prepare();
                 });
  }
}

// And with what is computed, on a fake GPU: every value that a step leaves behind is that of the steps which happened, and the fake
// refuses whatever a failure has left without an order.
class EachAllocationOnAGpu : public EachAllocation {
 protected:
  // `feeds` are made for each program: those of a device are read where they are if they come again.
  void fail_each_of_a_run(const Graph& graph, const std::function<std::vector<Tensor>()>& feeds) {
    for (const std::uint64_t before : {0U, 1U, 2U, 3U, 6U}) {
      std::optional<Program> program;
      std::shared_ptr<VariableStore> store;
      std::vector<Tensor> fed;
      const auto prepare = [&] {
        store = std::make_shared<VariableStore>();
        program.emplace(compile(graph, runtime_, {.variables = store}));
        fed = feeds();
        for (std::uint64_t i = 0; i < before; ++i) program->run(fed);
        program->wait();
      };
      prepare();
      fail_each_of([&] { program->run(fed); },
                   [&](bool done) {
                     program->wait();
                     Interpreter expected(graph, {.seed = 7});
                     std::vector<Tensor> given;
                     for (const Tensor& feed : fed) given.push_back(feed.host());
                     // And the next run is right.
                     const std::vector<Tensor> results = program->run(fed);
                     program->wait();
                     const std::uint64_t steps = before + (done ? 2 : 1);
                     EXPECT_EQ(store->step(), steps) << "after " << before << " runs";
                     std::vector<Tensor> last;
                     for (std::uint64_t i = 0; i < steps; ++i) last = expected.run(given);
                     expect_same_tensors(results, last);
                     expect_same_values(variables_of(*store), expected.variables());
                     prepare();
                   });
      if (HasFailure()) return;
    }
  }

  std::shared_ptr<testing::FakeGpu> gpus_ =
      std::make_shared<testing::FakeGpu>(testing::FakeGpuOptions{.devices = 2});
  const Runtime runtime_{{.threads = 1, .seed = 7, .backends = {gpus_}}};
};

TEST_F(EachAllocationOnAGpu, OfAStepWithABatchOfTheHost) {
  Graph graph = training_graph();
  PassContext context{.topology = &runtime_.topology()};
  make_place({.devices = {"gpu:0"}})->run(graph, context);
  fail_each_of_a_run(graph, feeds);
}

// Two devices, random numbers, data that may be refused, and a batch on a device.
TEST_F(EachAllocationOnAGpu, OfAStepOnTwoDevicesThatDecideAboutIt) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI64, {3});
  Value y;
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", Tensor::from({3}, {1.F, 2.F, 3.F}));
    y = dropout(gather(b.read(w), x), 0.5);
    b.assign_add(w, y);
  }
  {
    const auto there = b.device("gpu:1");
    const VariableRef v = b.variable("v", Tensor::from({3}, {4.F, 5.F, 6.F}));
    b.result(tanh(y) * b.read(v));
    b.assign(v, y + b.read(v));
  }
  fail_each_of_a_run(b.finish(), [&] {
    return std::vector<Tensor>{
        Tensor::from<std::int64_t>({3}, {2, 0, 1}).to(Device::parse("gpu:0"), runtime_)};
  });
}

// The host computes in the middle of it, and awaits what it reads.
TEST_F(EachAllocationOnAGpu, OfAStepWithTheHostInTheMiddle) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  Value y;
  {
    const auto there = b.device("gpu:0");
    y = tanh(x) * 2.0F;
  }
  const Value z = exp(y);  // of the host
  {
    const auto there = b.device("gpu:0");
    const VariableRef w = b.variable("w", Tensor::zeros({4}));
    b.assign_add(w, z * y);
    b.result(b.read(w) + z);
  }
  fail_each_of_a_run(b.finish(), [] { return std::vector<Tensor>{Tensor::full(DType::kF32, {4}, 0.25)}; });
}

TEST_F(EachAllocation, OfSeveralStepsSaysHowManyCommitted) {
  const Runtime runtime({.threads = 1});
  const Program program = compile(training_graph(), runtime);
  const std::vector<Tensor> fed = feeds();
  for (std::int64_t n = 1;; ++n) {
    const std::uint64_t before = program.variables().step();
    const FailingAllocations failing({.nth = n});
    try {
      program.run_n(3, fed);
      EXPECT_EQ(program.variables().step(), before + 3);
    } catch (const RunError& error) {
      EXPECT_EQ(program.variables().step(), before + error.committed_steps());
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(program.variables().step(), before) << "after a commit the error says so";
    }
    if (!failing.reached()) break;
  }
}

TEST_F(EachAllocation, OfAStepOfAStrategyCommitsOrDidNotHappen) {
  MirroredStrategy strategy(
      {.devices = test_devices(2), .base = {.runtime = Runtime({.threads = 1, .cpu_devices = 2})}});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::full(DType::kF32, {4}, 1));
  const Sgd sgd(0.25);
  const auto step = strategy.function({InputSpec(DType::kF32, {4}, "x")}, [=](Value x) {
    const Value loss = sum(x * w);
    sgd.minimize(loss, {w});
    return std::pair(loss, x * 2.0F);
  });
  const PerReplica<Tensor> x(Tensor::full(DType::kF32, {4}, 1));
  const auto value = [&] { return w.value().data<float>()[0]; };
  step(x);
  const float before = value();
  step(x);
  float wanted = value();
  const float change = wanted - before;
  ASSERT_NE(change, 0);
  fail_each_of([&] { step(x); },
               [&](bool done) {
                 if (done) wanted += change;
                 EXPECT_EQ(value(), wanted);
               });
}

TEST_F(EachAllocation, OfWritingAndReadingGraphs) {
  const Graph graph = training_graph();
  for (const GraphFormat format : {GraphFormat::kText, GraphFormat::kBinary, GraphFormat::kJson}) {
    std::string bytes = write_graph(graph, format);
    fail_each_of([&] { write_graph(graph, format); });
    fail_each_of([&] { read_graph(bytes); });
    EXPECT_TRUE(same_structure(read_graph(bytes), graph));
  }
}

// Two variables whose copies are summed up, so that reading and writing them needs memory.
void make_variables(VariableStore& store, float value) {
  for (const char* name : {"a", "b"}) {
    for (int replica = 0; replica < 20; ++replica) {
      VariableRole role{replica == 0 ? "" : name, CopyRule::kSum};
      store.find_or_create(
          copy_name(name, replica), {DType::kF32, {8}}, [&] { return Tensor::full(DType::kF32, {8}, value); },
          role);
    }
  }
}

TEST_F(EachAllocation, OfASnapshotLeavesItWhole) {
  VariableStore store;
  make_variables(store, 1);
  Snapshot snapshot;
  snapshot.take(store);
  float step = 1;
  fail_each_of([&] { snapshot.take(store); },
               [&](bool) {
                 const float a = snapshot.find("a")->data<float>()[0];
                 EXPECT_EQ(a, snapshot.find("b")->data<float>()[0]) << "of two steps";
                 step += 1;
                 for (const std::string& name : store.names())
                   store.set(name, Tensor::full(DType::kF32, {8}, step));
               });
}

TEST_F(EachAllocation, OfARestoreRestoresAllOrNothing) {
  VariableStore old;
  make_variables(old, 7);
  Snapshot snapshot;
  snapshot.take(old);
  VariableStore store;
  make_variables(store, 1);
  fail_each_of([&] { snapshot.restore(store); },
               [&](bool done) {
                 for (const std::string& name : store.names())
                   EXPECT_EQ(store.value(name).data<float>()[0], done ? 7 : 1) << name;
                 for (const std::string& name : store.names())
                   store.set(name, Tensor::full(DType::kF32, {8}, 1));
               });
}

TEST_F(EachAllocation, OfCheckpoints) {
  const TemporaryFolder folder;
  VariableStore store;
  make_variables(store, 3);
  Snapshot snapshot;
  snapshot.take(store);
  const auto path = folder.path() / "a.lkc";
  write_checkpoint(snapshot, path);
  fail_each_of([&] { write_checkpoint(snapshot, path); },
               [&](bool) { EXPECT_EQ(read_checkpoint(path).variables().size(), 2U); });
  fail_each_of([&] { restore_checkpoint(store, path); },
               [&](bool) { EXPECT_EQ(store.value("a").data<float>()[0], 3); });
}

// A checkpoint that was written counts as written, and one that was restored as restored: what comes after that
// cannot fail any more.
TEST_F(EachAllocation, OfACheckpointThatIsReplaced) {
  VariableStore store;
  store.find_or_create("v", {DType::kF32, {}}, [] { return Tensor::scalar(0.0F); });
  const TemporaryFolder folder;
  const auto path = folder.path() / "state.lkc";
  save_checkpoint(store, path);
  float in_file = 0, next = 1;
  fail_each_of(
      [&] {
        store.set("v", Tensor::scalar(next));
        save_checkpoint(store, path);
      },
      [&](bool done) {
        VariableStore other;
        other.find_or_create("v", {DType::kF32, {}}, [] { return Tensor::scalar(0.0F); });
        restore_checkpoint(other, path);
        EXPECT_EQ(other.value("v").item(), done ? next : in_file);
        if (done) in_file = next;
        ++next;
      });
}

TEST_F(EachAllocation, OfASeriesThatIsRestored) {
  const TemporaryFolder folder;
  CheckpointSeries series(folder.path() / "series", {});
  VariableStore store;
  store.find_or_create("v", {DType::kF32, {}}, [] { return Tensor::scalar(7.0F); });
  series.save(store);
  series.wait();
  store.set("v", Tensor::scalar(2.0F));
  fail_each_of(
      [&] {
        store.set("v", Tensor::scalar(1.0F));
        series.restore_latest(store);
      },
      [&](bool done) {
        // Not done, and yet the value of the checkpoint: then a caller would be told of a failure that was none.
        if (!done) {
          EXPECT_NE(store.value("v").item(), 7.0F);
        }
        store.set("v", Tensor::scalar(2.0F));
      });
  EXPECT_EQ(series.list().size(), 1U);
}

// On all threads: the writing one too.
TEST_F(EachAllocation, OfASeriesThatIsSaved) {
  const TemporaryFolder folder;
  VariableStore store;
  store.find_or_create("v", {DType::kF32, {}}, [] { return Tensor::scalar(7.0F); });
  CheckpointSeries series(folder.path() / "series", {.keep = 2});
  series.save(store);
  series.wait();
  for (std::int64_t n = 1;; ++n) {
    ASSERT_LT(n, 100'000);
    bool reached = false;
    {
      const FailingAllocations failing({.nth = n, .of = FailingAllocations::Of::kProcess});
      try {
        series.save(store);
        series.wait();
      } catch (const std::bad_alloc&) {
      } catch (const Error&) {
      }
      reached = failing.reached();
    }
    series.save(store);
    series.wait();
    EXPECT_LE(series.list().size(), 3U);
    if (!reached) break;
  }
}

TEST_F(EachAllocation, OfTheFirstUseOfTheRegistry) {
  for (const std::int64_t n : {1, 2, 3, 10, 33, 100, 333, 1000, 2000}) {
    const int status = exit_status_of_child([&] {
      try {
        const FailingAllocations failing({.nth = n});
        OpRegistry::global();
        return 2;  // somebody used it before
      } catch (const std::bad_alloc&) {
      }
      return OpRegistry::global().names().size() > 100 ? 0 : 1;
    });
    EXPECT_TRUE(status == 0 || status == 2) << n << ": " << status;
  }
}

// The system lets this user start three threads, and the runtime wants sixteen.
TEST(Threads, ThatCannotBeStartedAreAnError) {
  if (!testing::kAllocationsFail) GTEST_SKIP() << "sanitizers start threads of their own";
  const int status = exit_status_of_child([] {
    if (::geteuid() == 0 && (::setgid(61234) != 0 || ::setuid(61234) != 0)) return 9;
    const rlimit limit{4, 4};
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0) return 9;
    try {
      const Runtime runtime({.threads = 16});
      return 1;
    } catch (const Error& error) {
      const std::string text = error.what();
      if (error.code() != ErrorCode::kUnavailable || text.find("of 16 (") == std::string::npos) return 2;
    }
    return ::geteuid() == 61234 && Runtime({.threads = 1}).scheduler().num_workers() != 1 ? 3 : 0;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(EachAllocation, OfAProgramThatEndsInsideANode) {
  const Runtime runtime({.threads = 2});
  for (std::int64_t n = 1; n < 20; ++n) {
    auto inner = std::make_shared<Program>(compile(training_graph(), runtime));
    GraphBuilder b;
    b.call("drop", [&] {
      const FailingAllocations failing({.nth = n, .times = 100});
      inner.reset();
    });
    compile(b.finish(), runtime).run(std::vector<Tensor>());
    EXPECT_EQ(inner, nullptr);
  }
}

}  // namespace
}  // namespace lockstep
