// Tests: graph/run/program.cpp, graph/run/variable_stages.cpp
// Variables in programs: what a step reads, when it writes, who waits for whom.
#include <functional>
#include <mutex>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::Caught;
using ::testing::ElementsAre;
using testing::expect_same_tensors;
using testing::expect_same_values;
using testing::floats;
using ::testing::HasSubstr;
using testing::Values;
using testing::variables_of;
using testing::vec;
using testing::with_lanes;

// Runs a few steps inline, in lanes and call by call, and on the interpreter: all agree. Returns the last
// results.
std::vector<Tensor> run_everywhere(const std::function<void(GraphBuilder&)>& build, int steps = 3) {
  GraphBuilder b;
  build(b);
  const Graph graph = b.finish();
  Interpreter interpreter(graph);
  std::vector<std::vector<Tensor>> expected;
  std::vector<Values> values;
  for (int step = 0; step < steps; ++step) {
    expected.push_back(interpreter.run());
    values.push_back(interpreter.variables());
  }
  for (CompileOptions options : {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)}) {
    options.replicas_in_turn = true;
    const Program program = compile(graph, Runtime({.threads = 2}), options);
    for (std::size_t step = 0; step < static_cast<std::size_t>(steps); ++step) {
      expect_same_tensors(program.run(), expected[step]);
      expect_same_values(variables_of(program.variables()), values[step]);
    }
    EXPECT_EQ(program.variables().step(), interpreter.step());
  }
  return expected.back();
}

TEST(ProgramVariables, AReadBeforeAWriteSeesTheOldValue) {
  const auto results = run_everywhere([](GraphBuilder& b) {
    const VariableRef v = b.variable("v", vec({1, 2}));
    const Value old = b.read(v);
    b.assign(v, old * 2.0F);
    b.result(old);
    b.result(old + 0.0F);
  });
  EXPECT_THAT(floats(results[0]), ElementsAre(4, 8));
  EXPECT_THAT(floats(results[1]), ElementsAre(4, 8));
}

TEST(ProgramVariables, AReadAfterAWriteSeesTheShadow) {
  const auto results = run_everywhere([](GraphBuilder& b) {
    const VariableRef v = b.variable("v", vec({1, 2}));
    b.assign(v, b.read(v) * 2.0F);
    b.result(b.read(v));
    b.result(b.read(v) + 1.0F);
  });
  EXPECT_THAT(floats(results[0]), ElementsAre(8, 16));
  EXPECT_THAT(floats(results[1]), ElementsAre(9, 17));
}

TEST(ProgramVariables, SeveralWritesHappenInOrder) {
  const auto results = run_everywhere(
      [](GraphBuilder& b) {
        const VariableRef v = b.variable("v", Tensor::scalar(1.0F));
        b.result(b.read(v));
        b.assign_add(v, b.constant(2.0F));
        b.result(b.read(v));
        b.assign(v, b.read(v) * 10.0F);
        b.result(b.read(v));
        b.result(b.assign_add(v, b.read(v)));
      },
      1);
  EXPECT_EQ(results[0].item(), 1);
  EXPECT_EQ(results[1].item(), 3);
  EXPECT_EQ(results[2].item(), 30);
  EXPECT_EQ(results[3].item(), 60);
}

TEST(ProgramVariables, TwoSwapInOneStep) {
  const auto results = run_everywhere([](GraphBuilder& b) {
    const VariableRef v = b.variable("v", vec({1, 2}));
    const VariableRef w = b.variable("w", vec({3, 4}));
    const Value old_v = b.read(v);
    const Value old_w = b.read(w);
    b.assign(v, old_w);
    b.assign(w, old_v);
    b.result(old_v);
    b.result(old_w);
  });
  EXPECT_THAT(floats(results[0]), ElementsAre(1, 2));
  EXPECT_THAT(floats(results[1]), ElementsAre(3, 4));
}

TEST(ProgramVariables, TwoSwapThroughAliases) {
  run_everywhere([](GraphBuilder& b) {
    const VariableRef v = b.variable("v", vec({1, 2}));
    const VariableRef w = b.variable("w", vec({3, 4}));
    const Value old_v = identity(identity(b.read(v)));
    b.assign(v, identity(b.read(w)));
    b.assign(w, old_v);
  });
}

TEST(ProgramVariables, ThreeRotate) {
  run_everywhere(
      [](GraphBuilder& b) {
        std::vector<VariableRef> variables;
        std::vector<Value> old;
        for (const char* name : {"a", "b", "c"}) {
          variables.push_back(
              b.variable(name, Tensor::full(DType::kF32, {5}, static_cast<double>(variables.size()))));
          old.push_back(b.read(variables.back()));
        }
        for (std::size_t i = 0; i < 3; ++i) b.assign_add(variables[i], old[(i + 1) % 3]);
      },
      5);
}

TEST(ProgramVariables, MayAddThemselves) {
  const auto results = run_everywhere([](GraphBuilder& b) {
    const VariableRef v = b.variable("v", vec({1, -2}));
    b.result(b.assign_add(v, b.read(v)));
  });
  EXPECT_THAT(floats(results[0]), ElementsAre(8, -16));
}

TEST(ProgramVariables, AnAssignmentOfItselfChangesNothing) {
  run_everywhere([](GraphBuilder& b) {
    const VariableRef v = b.variable("v", vec({1, -2}));
    b.assign(v, b.read(v));
  });
}

TEST(ProgramVariables, TheValueOfAnUpdateCanBeFetchedAndUsed) {
  const auto results = run_everywhere(
      [](GraphBuilder& b) {
        const VariableRef v = b.variable("v", vec({1}));
        const VariableRef w = b.variable("w", vec({1}));
        const Value added = b.assign_add(v, b.constant(vec({1})));
        b.result(added);
        b.result(identity(added));
        b.assign(w, added * 2.0F);
      },
      2);
  EXPECT_THAT(floats(results[0]), ElementsAre(3));
  EXPECT_THAT(floats(results[1]), ElementsAre(3));
}

TEST(ProgramVariables, TheSameUpdateCanBeFetchedTwice) {
  run_everywhere([](GraphBuilder& b) {
    const VariableRef v = b.variable("v", vec({1}));
    const Value added = b.assign_add(v, b.constant(vec({1})));
    b.result(added);
    b.result(added);
  });
}

TEST(ProgramVariables, ChangeInsideACond) {
  run_everywhere(
      [](GraphBuilder& b) {
        const VariableRef v = b.variable("v", Tensor::scalar(0.0F));
        const VariableRef w = b.variable("w", Tensor::scalar(1.0F));
        const Value now = b.read(v);
        const auto results = cond(
            less(now, 2.0F),
            [&] {
              b.assign_add(v, b.constant(1.0F));
              return std::vector<Value>{b.read(v) * 1.0F};
            },
            [&] {
              b.assign(w, now + b.read(w));
              return std::vector<Value>{b.read(w) * 1.0F};
            });
        b.result(results[0]);
        b.result(b.read(v));
        b.result(b.read(w));
      },
      5);
}

TEST(ProgramVariables, ChangeInsideALoop) {
  const auto results = run_everywhere(
      [](GraphBuilder& b) {
        const VariableRef v = b.variable("v", Tensor::scalar(0.0F));
        const std::vector<Value> initial = {b.constant(0.0F)};
        while_loop(
            initial, [](std::span<const Value> i) { return less(i[0], 4.0F); },
            [&](std::span<const Value> i) {
              b.assign_add(v, i[0]);
              return std::vector<Value>{i[0] + 1.0F};
            });
        b.result(b.read(v));
      },
      2);
  EXPECT_EQ(results[0].item(), 12);
}

TEST(ProgramVariables, ChangeInsideAReplicatedRegion) {
  const auto results = run_everywhere(
      [](GraphBuilder& b) {
        const VariableRef v = b.variable("v", Tensor::scalar(0.0F));
        const std::vector<std::vector<Value>> per_replica = {
            {b.constant(1.0F), b.constant(20.0F), b.constant(300.0F)}};
        const auto added = replicated(b, 3, {}, per_replica, [&](std::span<const Value> own) {
          return std::vector<Value>{b.assign_add(v, own[0]) * 1.0F};
        });
        for (const Value& value : added[0]) b.result(value);
        b.result(b.read(v));
      },
      1);
  EXPECT_EQ(results[0].item(), 1);
  EXPECT_EQ(results[1].item(), 21);
  EXPECT_EQ(results[2].item(), 321);
  EXPECT_EQ(results[3].item(), 321);
}

TEST(ProgramVariables, ARegionReadsWhatTheStepWroteBefore) {
  run_everywhere([](GraphBuilder& b) {
    const VariableRef v = b.variable("v", Tensor::scalar(1.0F));
    b.assign(v, b.read(v) * 3.0F);
    b.result(cond(
        b.constant(true), [&] { return std::vector<Value>{b.read(v) + 0.0F}; },
        [&] { return std::vector<Value>{b.constant(-1.0F)}; })[0]);
    b.assign_add(v, b.constant(1.0F));
  });
}

TEST(ProgramVariables, LargeOnesAreUpdatedInShards) {
  run_everywhere([](GraphBuilder& b) {
    const Shape shape{200'001};
    const VariableRef v = b.variable("v", Tensor::full(DType::kF32, shape, 0.5));
    const VariableRef w = b.variable("w", Tensor::full(DType::kF32, shape, 2));
    b.assign_add(v, b.read(w) * 0.25F);  // in place, in the commit stage
    b.assign(w, b.read(w) * 1.5F);
    b.assign_add(w, b.read(v));  // a shadow
    b.result(sum(b.read(w)));
  });
}

TEST(ProgramVariables, OfNoElementsAreFine) {
  run_everywhere([](GraphBuilder& b) {
    const VariableRef v = b.variable("v", Tensor::zeros({0, 3}));
    b.result(b.assign_add(v, b.read(v)));
  });
}

TEST(ProgramVariables, OfEveryDType) {
  run_everywhere([](GraphBuilder& b) {
    for (const DType dtype : kAllDTypes) {
      const VariableRef v = b.variable(str("v_", dtype), Tensor::full(dtype, {3}, 1));
      const Value value = b.read(v);
      b.result(dtype == DType::kBool ? b.assign(v, less(value, value)) : b.assign_add(v, value));
    }
  });
}

// The names of nodes in the order in which they began.
class BeginLog : public Observer {
 public:
  void on_node_begin(const NodeEvent& event) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    names_.push_back(event.node.name());
  }
  void on_node_end(const NodeEvent&) noexcept override {}
  std::size_t first(const std::string& name) const {
    return static_cast<std::size_t>(std::ranges::find(names_, name) - names_.begin());
  }
  std::size_t size() const { return names_.size(); }

 private:
  std::mutex mutex_;
  std::vector<std::string> names_;
};

// Nodes ordered behind an update run behind it, although updates like to wait for the commit.
TEST(ProgramVariables, WhatMustRunAfterAnUpdateDoes) {
  for (const CompileOptions& options : {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)}) {
    GraphBuilder b;
    const VariableRef v = b.variable("v", vec({1}));
    const Value update = b.assign(v, b.read(v) + 1.0F);
    b.run_after(b.call("after", [] {}), update.id().node);
    b.call("barrier", [] {}, {.effects = Effect::kOpaque});
    const Program program = compile(b.finish(), Runtime({.threads = 2}), options);
    BeginLog log;
    RunOptions watched;
    watched.observer = &log;
    program.run({}, watched);
    EXPECT_LT(log.first("v/assign"), log.first("after"));
    EXPECT_LT(log.first("after"), log.first("barrier"));
    EXPECT_LT(log.first("barrier"), log.size());
    EXPECT_EQ(program.variables().value("v").item(), 2);
  }
}

TEST(ProgramVariables, ABarrierStandsBehindTheUpdatesBeforeIt) {
  run_everywhere([](GraphBuilder& b) {
    const VariableRef v = b.variable("v", vec({1, 2}));
    b.assign(v, b.read(v) + 1.0F);
    b.call("barrier", [] {}, {.effects = Effect::kOpaque});
    const VariableRef w = b.variable("w", vec({1, 2}));
    b.assign(w, b.read(w) * 2.0F);
  });
}

// --- stores

Graph counter(float by) {
  GraphBuilder b;
  const VariableRef v = b.variable("count", Tensor::scalar(0.0F));
  b.result(b.assign_add(v, b.constant(by)));
  return b.finish();
}

TEST(ProgramStores, TwoProgramsOfARuntimeShareItsStore) {
  const Runtime runtime;
  const Program one = compile(counter(1), runtime);
  const Program ten = compile(counter(10), runtime);
  one.run();
  EXPECT_EQ(ten.run()[0].item(), 11);
  EXPECT_EQ(one.run()[0].item(), 12);
  EXPECT_EQ(runtime.variables()->value("count").item(), 12);
  EXPECT_EQ(runtime.variables()->step(), 3U);
}

TEST(ProgramStores, AProgramMayHaveAStoreOfItsOwn) {
  const Runtime runtime;
  CompileOptions options;
  options.variables = std::make_shared<VariableStore>();
  const Program own = compile(counter(1), runtime, options);
  const Program shared = compile(counter(1), runtime);
  own.run_n(3);
  EXPECT_EQ(shared.run()[0].item(), 1);
  EXPECT_EQ(options.variables->value("count").item(), 3);
  EXPECT_EQ(&own.variables(), options.variables.get());
  EXPECT_EQ(options.variables->step(), 3U);
}

TEST(ProgramStores, WhatIsThereIsKept) {
  const Runtime runtime;
  runtime.variables()->find_or_create("count", {DType::kF32, {}}, [] { return Tensor::scalar(41.0F); });
  EXPECT_EQ(compile(counter(1), runtime).run()[0].item(), 42);
}

TEST(ProgramStores, SetValuesAreSeenByTheNextRun) {
  const Program program = compile(counter(1), Runtime());
  program.variables().set("count", Tensor::scalar(99.0F));
  EXPECT_EQ(program.run()[0].item(), 100);
}

TEST(ProgramStores, AnotherSpecIsRefused) {
  const Runtime runtime;
  const Program program = compile(counter(1), runtime);
  GraphBuilder b;
  b.variable("count", vec({1, 2}));
  const Caught error = caught([&] { compile(b.finish(), runtime); });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what, HasSubstr("variable 'count' is f32[] in this store ("));
}

TEST(ProgramStores, VariablesWithoutAnInitialValueAreZero) {
  GraphBuilder b;
  VariableDecl decl;
  decl.name = "v";
  decl.spec = {DType::kI32, {2}};
  const VariableRef v = b.variable(std::move(decl));
  b.result(b.read(v));
  EXPECT_TRUE(compile(b.finish(), Runtime()).run()[0].bit_equal(Tensor::zeros(DType::kI32, {2})));
}

TEST(ProgramStores, AWaitingRunSleeps) {
  // The first variable is free, the second is held: the run must not take and drop the first over and over.
  GraphBuilder b;
  for (const char* name : {"a", "b"}) {
    const VariableRef v = b.variable(name, Tensor::scalar(0.0F));
    b.assign_add(v, b.constant(1.0F));
  }
  const Program program = compile(b.finish(), Runtime());
  StoredVariable& held = *program.variables().find("b");
  ASSERT_TRUE(held.try_lock_exclusive());
  const std::uint32_t before = program.variables().epoch();
  RunOptions options;
  options.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  EXPECT_EQ(caught([&] { program.run({}, options); }).code, ErrorCode::kDeadlineExceeded);
  EXPECT_LE(program.variables().epoch() - before, 4U);
  held.unlock_exclusive();
  program.run();
  EXPECT_EQ(program.variables().value("a").item(), 1);
}

// --- random numbers

TEST(ProgramRandom, DrawsAnewEachStepAndTheSameForTheSameSeed) {
  GraphBuilder b;
  b.result(b.random_uniform({DType::kF32, {100}}));
  b.result(b.random_uniform({DType::kF32, {100}}));
  const Graph graph = b.finish();
  const Program first = compile(graph, Runtime({.seed = 5}));
  const Program second = compile(graph, Runtime({.threads = 2, .seed = 5}), with_lanes());
  const Program other = compile(graph, Runtime({.seed = 6}));
  std::vector<Tensor> last;
  for (int step = 0; step < 3; ++step) {
    const std::vector<Tensor> drawn = first.run();
    expect_same_tensors(second.run(), drawn);
    EXPECT_FALSE(other.run()[0].bit_equal(drawn[0]));
    EXPECT_FALSE(drawn[0].bit_equal(drawn[1])) << "each call has a key of its own";
    if (!last.empty()) {
      EXPECT_FALSE(drawn[0].bit_equal(last[0]));
    }
    last = drawn;
  }
  first.variables().set_step(2);
  expect_same_tensors(first.run(), last);
}

}  // namespace
}  // namespace lockstep
