// Tests: graph/run/program.cpp, graph/run/variable_stages.cpp
// A step commits or did not happen: whatever throws, is cancelled or runs out of time before the commit stage
// leaves every variable as it was, bit by bit, and the next run is right.
#include <atomic>
#include <chrono>
#include <stop_token>
#include <thread>

#include "lockstep/graph/interpret/interpreter.h"
#include "support/program_test.h"
#include "support/random_graph.h"
#include "support/sanitizers.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::Caught;
using testing::compile_here;
using testing::expect_same_tensors;
using testing::expect_same_values;
using testing::FaultSwitch;
using testing::feeds_for;
using ::testing::HasSubstr;
using testing::random_graph;
using testing::repeats;
using testing::Values;
using testing::variables_of;
using testing::with_lanes;

struct Way {
  std::size_t threads;
  bool lanes;
  Clustering clustering;
};

CompileOptions options_of(const Way& way) {
  CompileOptions options = way.lanes ? with_lanes(way.clustering) : CompileOptions();
  options.replicas_in_turn = true;  // which random graphs have
  return options;
}

std::string name_of(const ::testing::TestParamInfo<Way>& info) {
  return str(info.param.threads, info.param.threads == 1 ? "thread" : "threads",
             !info.param.lanes                              ? "Inline"
             : info.param.clustering == Clustering::kByCost ? "Clustered"
                                                            : "CallByCall");
}

class Commit : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Ways, Commit,
                         ::testing::Values(Way{1, false, Clustering::kByCost},
                                           Way{2, false, Clustering::kByCost},
                                           Way{1, true, Clustering::kByCost},
                                           Way{2, true, Clustering::kByCost}, Way{2, true, Clustering::kOff}),
                         name_of);

TEST_P(Commit, AThrowInAnyNodeLeavesTheStepUndone) {
  std::size_t thrown = 0;
  std::size_t with_tasks = 0;
  for (std::uint64_t seed = 0; seed < repeats(30); ++seed) {
    FaultSwitch faults;
    const Graph graph =
        random_graph({.seed = seed, .nodes = 10, .regions = static_cast<int>(seed % 2), .faults = &faults});
    const std::vector<Tensor> feeds = feeds_for(graph, seed);
    Interpreter interpreter(graph, {.seed = 4});
    const Program program =
        compile_here(graph, Runtime({.threads = GetParam().threads, .seed = 4}), options_of(GetParam()));
    with_tasks += program.plan(feeds).lanes > 1 ? 1U : 0U;
    for (int which = 0; which < faults.count(); ++which) {
      const Values before = variables_of(program.variables());
      const std::uint64_t step = program.variables().step();
      faults.arm(which);
      const std::string name = "fault_" + std::to_string(which);
      // A fault in a branch that is not taken, or that nobody reads, does not run: then both just take a
      // step.
      bool throws = false;
      std::vector<Tensor> expected;
      try {
        expected = interpreter.run(feeds);
      } catch (const Error&) {
        throws = true;
      }
      if (throws) {
        const Caught error = caught([&] { program.run(feeds); });
        EXPECT_TRUE(error.run_error);
        EXPECT_EQ(error.place.node, name);
        EXPECT_EQ(error.place.op, "call");
        EXPECT_THAT(error.place.file, HasSubstr("random_graph.h"));
        EXPECT_GT(error.place.line, 0U);
        EXPECT_THAT(error.what, HasSubstr(str("fault ", which)));
        EXPECT_THAT(error.nested, HasSubstr(str("fault ", which)));
        expect_same_values(variables_of(program.variables()), before);
        EXPECT_EQ(program.variables().step(), step);
        ++thrown;
      } else {
        expect_same_tensors(program.run(feeds), expected);
      }
      faults.disarm();
      expect_same_tensors(program.run(feeds), interpreter.run(feeds));
      expect_same_values(variables_of(program.variables()), interpreter.variables());
      if (HasFailure()) FAIL() << "seed " << seed << ", fault " << which;
    }
  }
  EXPECT_GT(thrown, repeats(100)) << "the faults must happen";
  if (GetParam().lanes && GetParam().threads > 1) {
    EXPECT_GT(with_tasks, 0U);
  }
}

TEST_P(Commit, DevicesAreNamed) {
  FaultSwitch faults;
  GraphBuilder b;
  const auto device = b.device("cpu:1");
  const VariableRef v = b.variable("v", Tensor::scalar(1.0F));
  b.call("fails", [&] { faults.pass(0); });
  b.assign_add(v, b.constant(1.0F));
  faults.arm(0);
  const Program program = compile_here(b.finish(), Runtime({.threads = GetParam().threads, .cpu_devices = 2}),
                                       options_of(GetParam()));
  EXPECT_EQ(caught([&] { program.run(); }).place.device, "cpu:1");
  EXPECT_EQ(program.variables().value("v").item(), 1);
}

// One of two ends, nothing in between: v and w advance together or not at all.
struct Pair {
  explicit Pair(const Way& way) {
    GraphBuilder b;
    const Shape shape{200'000};  // several shards each
    const VariableRef v = b.variable("v", Tensor::zeros(shape));
    const VariableRef w = b.variable("w", Tensor::zeros(shape));
    const Value one = b.constant(Tensor::full(DType::kF32, shape, 1));
    Value x = b.read(v) + one;
    for (int i = 0; i < 6; ++i) {
      const TensorSpec spec = x.spec();
      x = b.call("copy", {&x, 1}, {&spec, 1}, [this](KernelContext& c) {
        ++nodes;
        std::ranges::copy(c.input<float>(0), c.output<float>(0).begin());
      })[0];
    }
    b.assign_add(w, one);  // in place
    b.assign(v, x);
    program = compile_here(b.finish(), Runtime({.threads = way.threads}), options_of(way));
  }

  // The count that all elements of both variables agree on.
  double value() const {
    const Tensor v = program.variables().value("v");
    const Tensor w = program.variables().value("w");
    EXPECT_TRUE(v.bit_equal(w));
    const float first = v.data<float>()[0];
    EXPECT_TRUE(std::ranges::all_of(v.data<float>(), [&](float element) { return element == first; }));
    return static_cast<double>(first);
  }

  std::atomic<int> nodes{0};
  Program program;
};

TEST_P(Commit, ACancellationAtAnyMomentIsAllOrNothing) {
  Pair pair(GetParam());
  double expected = 0;
  int cancelled = 0;
  for (std::size_t i = 0; i < repeats(120); ++i) {
    std::stop_source stop;
    RunOptions options;
    options.cancel = stop.get_token();
    std::atomic<bool> started{false};
    pair.nodes = 0;
    // The moment is when so many nodes have run, or so many turns later.
    std::thread canceller([&, wait = static_cast<int>(i % 8), turns = i * 7 % 50] {
      started = true;
      // By the clock: on a busy machine a single turn may take milliseconds.
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
      while (pair.nodes < wait && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      for (std::size_t turn = 0; turn < turns; ++turn) std::this_thread::yield();
      stop.request_stop();
    });
    while (!started) std::this_thread::yield();
    try {
      pair.program.run({}, options);
      ++expected;
    } catch (const RunError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCancelled);
      ++cancelled;
    }
    canceller.join();
    ASSERT_EQ(pair.value(), expected) << "run " << i;
  }
  EXPECT_GT(cancelled, 0);
  pair.program.run();
  EXPECT_EQ(pair.value(), expected + 1);
}

TEST_P(Commit, ADeadlineAtAnyMomentIsAllOrNothing) {
  Pair pair(GetParam());
  pair.program.run();
  double expected = 1;
  int late = 0;
  for (std::size_t i = 0; i < repeats(120); ++i) {
    RunOptions options;
    options.deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(i * 20);
    try {
      pair.program.run({}, options);
      ++expected;
    } catch (const RunError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
      ++late;
    }
    ASSERT_EQ(pair.value(), expected) << "run " << i;
  }
  EXPECT_GT(late, 0);
}

TEST_P(Commit, SeveralNodesMayFailAtOnce) {
  std::atomic<bool> bad{false};
  GraphBuilder b;
  const VariableRef v = b.variable("v", Tensor::scalar(0.0F));
  for (int i = 0; i < 20; ++i) {
    b.call("node", [&] {
      if (bad) throw std::domain_error("no");
    });
  }
  b.assign_add(v, b.constant(1.0F));
  const Program program =
      compile_here(b.finish(), Runtime({.threads = GetParam().threads}), options_of(GetParam()));
  for (int i = 0; i < 50; ++i) {
    bad = true;
    EXPECT_EQ(caught([&] { program.run(); }).nested, "no");
    EXPECT_EQ(program.variables().value("v").item(), i);
    bad = false;
    program.run();
  }
}

}  // namespace
}  // namespace lockstep
