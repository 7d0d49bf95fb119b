// Tests: strategies/trace/variable.cpp, strategies/trace/variable_now.cpp, strategies/trace/tracer.cpp,
//        strategies/trace/result_kinds.cpp, graph/run/compile.cpp, io/state/snapshot.cpp
// State that replicas share or have each for themselves: what it is outside of them, saved, and restored.
#include <functional>
#include <memory>
#include <numeric>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/graph/transform/slices.h"
#include "lockstep/io/state/checkpoint.h"
#include "lockstep/io/state/snapshot.h"
#include "lockstep/strategies/mirrored.h"
#include "support/strategy_test.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::scalars;
using testing::test_devices;
using testing::vec;

constexpr VariableOptions kSum{.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum};

// --- copies that are each replica's own

// A variable that may drift, and one that is synchronized on read without an aggregation.
struct Apart {
  explicit Apart(int replicas) : strategy({.devices = test_devices(replicas), .may_drift = {"loose"}}) {
    auto scope = strategy.scope();
    loose.emplace("loose", vec({0, 0}));
    own.emplace("own", Tensor::scalar(0.F), VariableOptions{.synchronization = Synchronization::kOnRead});
    step = strategy.function({kScalar}, [loose = *loose, own = *own](Value x) {
      loose.assign(x);
      own.assign_add(x * 10.F);
    });
  }
  MirroredStrategy strategy;
  std::optional<Variable> loose, own;
  Function<void> step;
};

TEST(CopiesApart, HaveNoValueOutside) {
  const Apart model(2);
  model.step(scalars({1, 3}));
  for (const Variable& variable : {*model.loose, *model.own}) {
    const std::string refused = error_of([&] { variable.value(); });
    EXPECT_THAT(refused, AllOf(HasSubstr("copies()"), HasSubstr("state_test.cpp:"))) << variable;
    EXPECT_EQ(variable.copies().kind(), ReplicaKind::kPerReplica);
  }
  const std::string traced = error_of([&] {
    const_cast<MirroredStrategy&>(model.strategy).cross_function({}, [loose = *model.loose] {
      return loose.read();
    });
  });
  EXPECT_THAT(traced, HasSubstr("may drift apart"));
  EXPECT_NO_THROW(Apart(1).loose->value()) << "one copy is one value";
}

TEST(CopiesApart, AreSavedAndRestoredEach) {
  const TemporaryFolder folder;
  Apart saved(2);
  saved.step(scalars({1, 3}));
  save_checkpoint(saved.strategy.variables(), folder / "a.lkc");
  Snapshot snapshot;
  snapshot.take(saved.strategy.variables());
  EXPECT_EQ(snapshot.find("loose"), nullptr);

  for (const bool file : {false, true}) {
    Apart again(2);
    again.step(scalars({5, 6}));
    if (file) {
      restore_checkpoint(again.strategy.variables(), folder / "a.lkc");
    } else {
      snapshot.restore(again.strategy.variables());
    }
    EXPECT_TRUE(again.loose->copies()[0].bit_equal(vec({1, 1})));
    EXPECT_TRUE(again.loose->copies()[1].bit_equal(vec({3, 3})));
    EXPECT_EQ(again.own->copies()[1].item(), 30);
  }
  for (const int replicas : {1, 3}) {
    Apart other(replicas);
    other.step(Tensor::scalar(5.F));
    const std::string refused =
        error_of([&] { restore_checkpoint(other.strategy.variables(), folder / "a.lkc"); });
    EXPECT_THAT(refused, AllOf(HasSubstr("'loose' was saved as the copies of 2 replicas"),
                               HasSubstr("'own' was saved as the copies of 2 replicas"),
                               HasSubstr("nothing was restored")));
    EXPECT_THAT(refused, HasSubstr(": restore it on 2 replicas"));
    EXPECT_TRUE(other.loose->copies()[0].bit_equal(vec({5, 5})));
  }
  // One value, whose copies are equal: on two replicas it would be refused next.
  MirroredStrategy mirrored({.devices = test_devices(3)});
  {
    const auto scope = mirrored.scope();
    const Variable loose("loose", vec({0, 0})), own("own", Tensor::scalar(0.F));
  }
  EXPECT_THAT(
      error_of([&] { snapshot.restore(mirrored.variables()); }),
      HasSubstr("restore it on 2 replicas, and declare it as each replica's own there too (may_drift"));
  // From one replica to several only where it is said.
  Apart one(1);
  one.step(scalars({7}));
  snapshot.take(one.strategy.variables());
  Apart two(2);
  two.step(scalars({1, 2}));
  EXPECT_THAT(error_of([&] { snapshot.restore(two.strategy.variables()); }),
              HasSubstr("RestoreOptions::spread_values"));
  snapshot.restore(two.strategy.variables(), {.spread_values = true});
  EXPECT_TRUE(two.loose->copies()[1].bit_equal(vec({7, 7})));
}

TEST(NamedStates, AreKeptBesideVariables) {
  const TemporaryFolder folder;
  Apart model(2);
  Snapshot snapshot;
  snapshot.set_state("input/train", Tensor::from<std::uint8_t>({3}, {1, 2, 3}));
  snapshot.take(model.strategy.variables());
  snapshot.set_state("empty", Tensor::zeros(DType::kU8, {0}));
  write_checkpoint(snapshot, folder / "a.lkc");
  const Snapshot read = read_checkpoint(folder / "a.lkc");
  ASSERT_EQ(read.states().size(), 2U);
  EXPECT_EQ(read.find_state("input/train")->data<std::uint8_t>()[2], 3);
  EXPECT_EQ(read.find_state("nobody"), nullptr);
  const RestoreReport report = restore_checkpoint(model.strategy.variables(), folder / "a.lkc");
  ASSERT_EQ(report.states.size(), 2U);
  EXPECT_EQ(report.states[1].first, "input/train");
  EXPECT_EQ(inspect_checkpoint(folder / "a.lkc").version, 2U) << "older readers refuse it";
  EXPECT_THROW(snapshot.set_state("x", Tensor::scalar(1.F)), InvalidArgument);
}

// --- the store's role is the one truth

class Redeclare final : public Pass {
 public:
  std::string_view name() const override { return "test-redeclare"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    const VariableDecl* found = graph.find_variable("w");
    if (found == nullptr || found->synchronization == Synchronization::kOnRead)
      return PassOutcome::kUnchanged;
    VariableDecl decl = *found;
    decl.synchronization = Synchronization::kOnRead;
    decl.aggregation = Aggregation::kMean;
    graph.redeclare_variable(decl);
    return PassOutcome::kChanged;
  }
};

void register_redeclare() {
  if (PassRegistry::global().contains("test-redeclare")) return;
  PassRegistry::global().add({.name = "test-redeclare", .summary = "w becomes each replica's own"},
                             [](const PassOptions&) { return std::make_unique<Redeclare>(); });
}

Tensor upward(const Shape& shape, float from = 0) {
  Tensor values = Tensor::empty(DType::kF32, shape);
  std::iota(values.data<float>().begin(), values.data<float>().end(), from);
  return values;
}

// Declares w anew, and makes what reads it read it another way.
class ReshapeW : public Pass {
 protected:
  virtual void declare(Graph& graph, std::int64_t replicas) const = 0;
  virtual Value reading(const Value& w, const Shape& whole) const = 0;

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    for (const NodeId owner : graph.region_owners()) {
      if (graph.node(owner).op().region_kind != RegionKind::kReplicated) continue;
      const Shape whole = graph.find_variable("w")->spec.shape;
      Graph& region = graph.region(owner, 0);
      std::vector<NodeId> reads;
      for (const Node& node : region.nodes()) {
        if (node.op().name == "read") reads.push_back(node.id());
      }
      declare(graph, *graph.node(owner).find<std::int64_t>("replicas"));
      Rewriter edit(region, name(), &graph);
      for (const NodeId read : reads) {
        const auto again = [&](GraphBuilder& b, std::span<const Value>) {
          return std::vector{reading(b.read({"w"}), whole)};
        };
        const std::vector<ValueId> made =
            edit.build({}, again, {.origin = read, .scope = "w/again", .why = "reshaped"});
        edit.replace_node(read, made);
        edit.erase(read);
      }
    }
    return PassOutcome::kChanged;
  }
};

// Replicas keep rows of w alone, and gather them where they read it.
class CutW final : public ReshapeW {
 public:
  std::string_view name() const override { return "test-cut-w"; }

 private:
  void declare(Graph& graph, std::int64_t replicas) const override { declare_slices(graph, "w", replicas); }
  Value reading(const Value& w, const Shape& whole) const override {
    return reshape(slice(all_gather(w), {0}, {whole[0]}), whole);
  }
};

// w becomes a row of numbers.
class FlattenW final : public ReshapeW {
 public:
  std::string_view name() const override { return "test-flatten-w"; }

 private:
  void declare(Graph& graph, std::int64_t /*replicas*/) const override {
    VariableDecl w = *graph.find_variable("w");
    w.spec.shape = Shape{w.spec.shape.num_elements()};
    w.initial = w.initial.reshape(w.spec.shape);
    graph.redeclare_variable(w);
  }
  Value reading(const Value& w, const Shape& whole) const override { return reshape(w, whole); }
};

class RemoveW final : public Pass {
 public:
  std::string_view name() const override { return "test-remove-w"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    graph.remove_variable("w");
    return PassOutcome::kChanged;
  }
};

template <class P>
std::string registered() {
  const std::string name(P().name());
  if (!PassRegistry::global().contains(name))
    PassRegistry::global().add({.name = name, .summary = name},
                               [](const PassOptions&) { return std::make_unique<P>(); });
  return name;
}

// A strategy makes its variables before a pass sees a step: the pass may cut them all the same, and each step that
// is traced later knows them as they were made.
TEST(Redeclared, APassCutsAVariableOfTheStrategy) {
  MirroredStrategy strategy({.devices = test_devices(2), .step_passes = registered<CutW>()});
  auto scope = strategy.scope();
  const Variable w("w", upward({3, 2}));
  for (int i = 0; i < 2; ++i) {
    const auto doubled = strategy.function({kScalar}, [=](Value x) { return sum(w * x); });
    const PerReplica<Tensor> sums = doubled(scalars({1, 2}));
    EXPECT_EQ(sums[0].item(), 15);
    EXPECT_EQ(sums[1].item(), 30);
    EXPECT_EQ(w.aggregation(), Aggregation::kSlices);
    EXPECT_EQ(w.copies()[1].shape(), (Shape{2, 2}));
    EXPECT_TRUE(w.value().bit_equal(upward({3, 2}))) << "joined";
  }
  // A function that makes its variables itself names the same ones.
  const auto own = strategy.function({kScalar}, [](Value x) {
    return sum(Variable("w", upward({3, 2})) * x);
  });
  EXPECT_EQ(own(scalars({1, 2}))[1].item(), 30);
}

TEST(Redeclared, NothingIsLostWhenAPassReshapes) {
  const auto reshaped_after = [](const std::function<void(const Strategy&, const Variable&)>& before) {
    MirroredOptions options{.devices = test_devices(2), .step_passes = registered<FlattenW>()};
    options.base.compile.variables = std::make_shared<VariableStore>();
    MirroredStrategy strategy(options);
    auto scope = strategy.scope();
    const Variable w("w", upward({2, 2}));
    before(strategy, w);
    const std::string error = error_of([&] {
      strategy.function({kScalar}, [=](Value x) { return sum(w) * x; })(scalars({1, 2}));
    });
    EXPECT_EQ(w.spec().shape.rank(), error == "no error" ? 1U : 2U);
    return error;
  };
  EXPECT_EQ(reshaped_after([](const Strategy&, const Variable&) {}), "no error");
  const auto refused = AllOf(HasSubstr("is f32[2,2] in this store"), HasSubstr("is used as f32[4]"));
  EXPECT_THAT(reshaped_after([](const Strategy&, const Variable& w) {
                w.assign(upward({2, 2}, 5));
              }),
              refused);
  EXPECT_THAT(reshaped_after([](const Strategy& strategy, const Variable&) {
                CompileOptions options;
                options.variables = std::shared_ptr<VariableStore>(&strategy.variables(), [](auto*) {});
                compile(parse("var @w : f32[2,2]\n%r = read[variable=@w]() : f32[2,2]\nreturn %r"),
                        strategy.runtime(), options);
              }),
              refused);
}

TEST(Redeclared, APassThatRemovesAVariableInUseIsNamed) {
  MirroredOptions options{.devices = test_devices(2), .step_passes = registered<RemoveW>()};
  options.base.checks = PipelineChecks::kEnds;
  MirroredStrategy strategy(options);
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  EXPECT_THAT(error_of([&] { strategy.function({kScalar}, [=](Value x) { return w * x; }); }),
              AllOf(HasSubstr("after test-remove-w: "), HasSubstr("'@w'")));
}

TEST(Redeclared, VariablesAreWhatTheStoreSays) {
  register_redeclare();
  MirroredStrategy strategy({.devices = test_devices(2), .step_passes = "test-redeclare"});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F), {.aggregation = Aggregation::kSum});
  EXPECT_EQ(w.synchronization(), Synchronization::kAuto);
  strategy.function({kScalar}, [=](Value x) { w.assign_add(x); })(scalars({1, 2}));
  EXPECT_EQ(w.copies()[1].item(), 3);
  EXPECT_EQ(w.value().item(), 2.5) << "the mean of the copies";
  EXPECT_EQ(w.synchronization(), Synchronization::kOnRead);
  EXPECT_EQ(w.aggregation(), Aggregation::kMean);
  EXPECT_EQ(str(w), "Variable 'w' f32[], each replica's own on 2 replicas, aggregation mean");
  Snapshot snapshot;
  snapshot.take(strategy.variables());
  EXPECT_EQ(snapshot.find("w")->item(), 2.5);
  // And where it is traced again.
  EXPECT_EQ(strategy.cross_function({}, [=] { return w.read(); })()[0].item(), 2.5);
}

// A function that was compiled before would read copy 0 and add to all copies, by the old rule.
TEST(Redeclared, WhileFunctionsOfTheOldRuleLiveItIsRefused) {
  if (testing::on_gpus()) GTEST_SKIP() << "the copies lie apart";
  register_redeclare();
  for (const bool share : {true, false}) {
    StrategyOptions base;
    base.compile.variables = std::make_shared<VariableStore>();
    MirroredStrategy before({.devices = test_devices(2), .share_mirrored = share, .base = base});
    MirroredStrategy after(
        {.devices = test_devices(2), .share_mirrored = share, .step_passes = "test-redeclare", .base = base});
    const auto add = [](Strategy& strategy, const VariableOptions& options) {
      return strategy.function({kScalar},
                               [=](Value x) { Variable("w", Tensor::scalar(1.F), options).assign_add(x); });
    };
    const VariableOptions sum{.aggregation = Aggregation::kSum};
    {
      const auto old = add(before, sum);
      EXPECT_THAT(error_of([&] { add(after, sum); }),
                  AllOf(HasSubstr("variable 'w' is declared with copies that are averaged"),
                        HasSubstr("a program that uses it was compiled for copies that are equal"),
                        HasSubstr("let that program end first, or declare the variable so before"),
                        HasSubstr("state_test.cpp:")));
      old(scalars({1, 2}));
      EXPECT_EQ(base.compile.variables->value("w").item(), 4) << "by the rule that it had";
    }
    if (share) {  // the copies lie in one memory
      EXPECT_THAT(error_of([&] { add(after, sum); }),
                  AllOf(HasSubstr("lies in the memory of 'w'"), HasSubstr("erase() 'w'")));
      base.compile.variables->erase("w");
    }
    const auto now = add(after, sum);
    now(scalars({1, 2}));
    EXPECT_EQ(base.compile.variables->role("w").copies, CopyRule::kMean);
  }
}

// Tracing it again takes the handle that is there, not the rule that it was made with.
TEST(Redeclared, VariablesOfAFunctionKeepTheRuleOfTheStore) {
  register_redeclare();
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const VariableOptions sum{.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum};
  const auto add = [&] {
    return strategy.function({kScalar},
                             [=](Value x) { Variable("v", Tensor::scalar(0.F), sum).assign_add(x); });
  };
  add();
  VariableStore& store = strategy.variables();
  store.find_or_create("v", store.find("v")->spec(), nullptr, {.copies = CopyRule::kMean});
  const auto again = add();
  EXPECT_EQ(store.role("v").copies, CopyRule::kMean);
}

// --- integers that are a sum

TEST(SumOfIntegers, ReadsBackWhatWasAssigned) {
  for (const int replicas : {2, 3}) {
    MirroredStrategy strategy({.devices = test_devices(replicas)});
    auto scope = strategy.scope();
    const Variable count("count", Tensor::scalar(std::int64_t{0}), kSum);
    for (const std::int64_t value : {7, -7, 8, 0}) {
      count.assign(Tensor::scalar(value));
      EXPECT_EQ(count.value().item(), static_cast<double>(value));
      EXPECT_EQ(count.copies()[0].item(), std::trunc(static_cast<double>(value) / replicas) +
                                              (value % replicas == 0 ? 0 : (value < 0 ? -1 : 1)));
      count.assign(Tensor::scalar(std::int64_t{0}));
      strategy.cross_function({}, [=] { return count.assign(constant(Tensor::scalar(value))); })();
      EXPECT_EQ(count.value().item(), static_cast<double>(value)) << "in a function";
    }
  }
}

// --- initial values by replica, and slices

TEST(InitialValues, MayDifferByReplica) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable own("own", scalars({1, 2}), kSum);
  EXPECT_EQ(own.value().item(), 3);
  const auto doubled = strategy.function({}, [=] { return own * 2.F; });
  EXPECT_EQ(doubled()[1].item(), 4);
  EXPECT_EQ(own.copies()[1].item(), 2);
  EXPECT_THAT(error_of([&] { Variable("equal", scalars({1, 2})); }), HasSubstr("Synchronization::kOnRead"));
  EXPECT_THAT(error_of([&] {
                Variable("three", scalars({1, 2, 3}), kSum);
              }),
              AllOf(HasSubstr("3 initial values for 2 replicas"), HasSubstr("state_test.cpp")));
}

constexpr VariableOptions kSlices{.synchronization = Synchronization::kOnRead,
                                  .aggregation = Aggregation::kSlices};

TEST(Slices, AreOneValueOnAnyNumberOfReplicas) {
  const TemporaryFolder folder;
  const Tensor whole = vec({1, 2, 3, 4, 5});
  for (const int from : {1, 2, 3}) {
    MirroredStrategy saved({.devices = test_devices(from)});
    {
      auto scope = saved.scope();
      const Variable v("v", whole, kSlices);
      EXPECT_EQ(v.spec().shape[0], (5 + from - 1) / from);
      EXPECT_TRUE(v.value().bit_equal(whole));
      saved.function({}, [=] { v.assign_add(v.read()); })();
      EXPECT_TRUE(v.value().bit_equal(vec({2, 4, 6, 8, 10})));
      const Tensor read = saved.cross_function({}, [=] { return v.read(); })()[0];
      EXPECT_TRUE(read.bit_equal(vec({2, 4, 6, 8, 10})));
    }
    save_checkpoint(saved.variables(), folder / "a.lkc");
    EXPECT_EQ(inspect_checkpoint(folder / "a.lkc").entries[0].spec.shape[0], 5);
    for (const int to : {1, 2, 4}) {
      MirroredStrategy strategy({.devices = test_devices(to)});
      auto scope = strategy.scope();
      const Variable v("v", Tensor::zeros({5}), kSlices);
      restore_checkpoint(strategy.variables(), folder / "a.lkc");
      EXPECT_TRUE(v.value().bit_equal(vec({2, 4, 6, 8, 10}))) << from << " to " << to;
      v.assign(whole);
      EXPECT_TRUE(v.value().bit_equal(whole));
    }
  }
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  EXPECT_THAT(error_of([&] { Variable("v", whole, {.aggregation = Aggregation::kSlices}); }),
              HasSubstr("Synchronization::kOnRead"));
  EXPECT_THAT(error_of([&] { Variable("v", Tensor::scalar(1.F), kSlices); }), HasSubstr("no axis 0"));
}

// --- reductions of halves, and of what is one value

TEST(Reduce, AddsHalvesUpWider) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    MirroredStrategy strategy({.devices = test_devices(2)});
    const Tensor large = Tensor::full(dtype, {4, 2}, 32768);
    const PerReplica<Tensor> value(std::vector<Tensor>{large, large});
    const Tensor mean = strategy.reduce(ReduceOp::kMean, value, 0);
    EXPECT_EQ(mean.dtype(), dtype);
    EXPECT_TRUE(mean.bit_equal(Tensor::full(dtype, {2}, 32768)));
    // 2049 ones: neither half holds it, nor 2048 + 1 on the way.
    const Tensor ones = Tensor::full(dtype, {1025}, 1);
    const double total =
        strategy.reduce(ReduceOp::kSum, PerReplica<Tensor>(std::vector<Tensor>{ones, ones}), 0).item();
    EXPECT_EQ(total, dtype == DType::kF16 ? 2050 : 2048) << "rounded once";
  }
}

TEST(Reduce, NamesTheLineAndWhatIsWrong) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto refused = [&](const PerReplica<Tensor>& value, std::optional<std::int64_t> axis) {
    return error_of([&] { strategy.reduce(ReduceOp::kSum, value, axis); });
  };
  EXPECT_THAT(refused(scalars({1, 2, 3}), std::nullopt),
              AllOf(HasSubstr("3 slots for 2 replicas"), HasSubstr("state_test.cpp:")));
  EXPECT_THAT(refused(PerReplica<Tensor>(std::vector<Tensor>{vec({1}), Tensor::scalar(1.F)}), 0),
              HasSubstr("f32[1] on replica 0 and f32[] on replica 1"));
  EXPECT_THAT(refused(PerReplica<Tensor>(std::vector<Tensor>{vec({1}), vec({2})}), 1),
              AllOf(HasSubstr("axis 1 is out of range"), HasSubstr("state_test.cpp:")));
  EXPECT_THAT(refused(Tensor::scalar(1.F), std::nullopt),
              AllOf(HasSubstr("a single value cannot be summed"), HasSubstr("state_test.cpp:")));
}

TEST(MergeCall, AConstantIsSingle) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto f = strategy.function({kScalar}, [](Value x) {
    const Value same =
        replica_context().merge_call([](Strategy&, const PerReplica<Value>&) { return constant(5.F); }, x);
    const Value sum = replica_context().merge_call(
        [](Strategy& s, const PerReplica<Value>& all) { return s.reduce(ReduceOp::kSum, all); }, x);
    return std::pair(same, sum);
  });
  const auto [same, sum] = f(scalars({1, 2}));
  EXPECT_EQ(same.kind(), ReplicaKind::kSingle);
  EXPECT_EQ(same.size(), 1U);
  EXPECT_EQ(same[0].item(), 5);
  EXPECT_EQ(sum.kind(), ReplicaKind::kMirrored);
}

// --- compiling

TEST(Compile, RefusesReplicasThatChangeOneVariableInTurn) {
  const Graph graph = parse(R"(
      var @w : f32[]
      %x = placeholder() : f32[]
      %y = placeholder() : f32[]
      %run = replicated[replicas=2, shared=0](%x, %y) : f32[], f32[] {
        region {
          %v = placeholder() : f32[]
          %u = assign_add[variable=@w](%v) : f32[]
          return %u
        }
      }
      return %run, %run:1
    )");
  const Runtime runtime({.threads = 1});
  CompileOptions options;
  options.variables = std::make_shared<VariableStore>();
  EXPECT_THAT(error_of([&] { compile(graph, runtime, options); }),
              AllOf(HasSubstr("'run' runs 2 replicas that change variable 'w'"), HasSubstr("--strategy"),
                    HasSubstr("CompileOptions::replicas_in_turn")));
  options.replicas_in_turn = true;
  EXPECT_EQ(compile(graph, runtime, options)
                .run({{"x", Tensor::scalar(1.F)}, {"y", Tensor::scalar(2.F)}})[1]
                .item(),
            3);
  MirroredStrategy strategy({.devices = test_devices(2)});
  EXPECT_THAT(error_of([&] { strategy.distribute(graph); }), HasSubstr("aggregation"));
}

// Each replica would combine its value with nothing.
TEST(Compile, RefusesReplicasThatCombineValues) {
  for (const char* combined : {"%t = all_reduce[reduce=\"sum\"](%v) : f32[]",
                               "%s = shape_of(%v) : i64[0]\n%t = global_count[dtype=f32](%s) : f32[]"}) {
    const Graph graph =
        parse(str("%x = placeholder() : f32[]\n"
                  "%y = placeholder() : f32[]\n"
                  "%run = replicated[replicas=2, shared=0](%x, %y) : f32[], f32[] {\n"
                  "  region {\n"
                  "    %v = placeholder() : f32[]\n",
                  combined,
                  "\n    return %t\n"
                  "  }\n"
                  "}\n"
                  "return %run, %run:1\n"));
    const Runtime runtime({.threads = 1});
    EXPECT_THAT(error_of([&] { compile(graph, runtime); }),
                AllOf(HasSubstr("'run' runs 2 replicas in turn"), HasSubstr("'t'"), HasSubstr("--strategy"),
                      HasSubstr("CompileOptions::replicas_in_turn")));
    const std::vector<Tensor> feeds = {Tensor::scalar(1.F), Tensor::scalar(2.F)};
    CompileOptions options;
    options.replicas_in_turn = true;
    EXPECT_EQ(compile(graph, runtime, options).run(feeds)[0].item(), 1);
    MirroredStrategy strategy({.devices = test_devices(2)});
    const std::vector<PerReplica<Tensor>> fed(feeds.begin(), feeds.end());
    const std::vector<PerReplica<Tensor>> results = strategy.distribute(graph).run(fed);
    EXPECT_GT(results[0][0].item(), 1) << "the sum of both";
  }
}

TEST(Compile, KeepsTheValueOfAVariableOrRefusesAnotherStart) {
  const Runtime runtime({.threads = 1});
  CompileOptions options;
  options.variables = std::make_shared<VariableStore>();
  const auto reading = [&](const char* start) {
    return compile(
               parse(str("var @w : f32[] = f32[]{", start, "}\n%r = read[variable=@w]() : f32[]\nreturn %r")),
               runtime, options)
        .run({})[0]
        .item();
  };
  EXPECT_EQ(reading("1.0"), 1);
  EXPECT_EQ(reading("2.0"), 1) << "it keeps its value";
  options.same_start = SameStart::kRequired;
  EXPECT_EQ(reading("1.0"), 1);
  EXPECT_THAT(error_of([&] { reading("2.0"); }), HasSubstr("another initial value"));
  EXPECT_THAT(
      error_of([&] {
        compile(parse("var @w : f32[2]\n%r = read[variable=@w]() : f32[2]\nreturn %r"), runtime, options);
      }),
      AllOf(HasSubstr("is f32[] in this store ("), HasSubstr("is used as f32[2] ("), HasSubstr("erase()")));
}

TEST(Compile, BindsVariablesWhileProgramsLive) {
  const Runtime runtime({.threads = 1});
  const auto store = std::make_shared<VariableStore>();
  CompileOptions options;
  options.variables = store;
  std::optional<Program> program =
      compile(parse("var @w : f32[]\n%r = read[variable=@w]() : f32[]\nreturn %r"), runtime, options);
  EXPECT_THROW(store->erase("w"), FailedPrecondition);
  program.reset();
  store->erase("w");
  EXPECT_FALSE(store->contains("w"));
}

TEST(Compile, ErrorsNameTheCall) {
  const Runtime runtime({.threads = 1});
  const auto text = [](const char* shape) {
    return parse(str("var @w : ", shape, "\n%r = read[variable=@w]() : ", shape, "\nreturn %r"));
  };
  const Program first = compile(text("f32[]"), runtime);
  const std::uint32_t line = __LINE__ + 1;
  const std::string error = error_of([&] { compile(text("f32[2]"), runtime); });
  EXPECT_THAT(error, HasSubstr(str("compile() called at ", __FILE__, ":", line)));
}

// A name whose variable was erased can be taken again, with other options.
TEST(Erased, NamesAreFreeForVariables) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  {
    const Variable w("w", Tensor::scalar(1.F));
    strategy.function({kScalar}, [=](Value x) { return x * w; })(scalars({1, 2}));
  }
  strategy.variables().erase("w");
  const Variable w("w", vec({1, 2}));
  EXPECT_TRUE(w.value().bit_equal(vec({1, 2})));
  EXPECT_TRUE(strategy.function({}, [=] { return w * 2.F; })()[0].bit_equal(vec({2, 4})));
}

// --- the store and its handles

TEST(StoreSet, KeepsCopiesThatAreOneValueOneValue) {
  MirroredStrategy strategy({.devices = test_devices(2), .share_mirrored = false});
  const auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  const auto read = strategy.function({}, [=](std::span<const Value>) { return w.read() * 1.F; });
  strategy.variables().set("w", Tensor::scalar(7.F));
  EXPECT_EQ(read()[1].item(), 7);
  EXPECT_EQ(w.copies()[1].item(), 7);
}

TEST(Handles, HaveTheShapeThatTheStoreHas) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto scope = strategy.scope();
  const Variable w("w", vec({1, 2}));
  strategy.variables().replace("w", vec({1, 2, 3}));
  EXPECT_EQ(w.spec().shape, Shape{3});
  EXPECT_EQ(w.value().shape(), Shape{3});
  const auto twice = strategy.function({}, [=](std::span<const Value>) { return w.read() * 2.F; });
  EXPECT_EQ(twice()[0].host().data<float>()[2], 6);
}

TEST(Handles, OfATakenNameAreRefusedWithBothShapesAndLines) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto scope = strategy.scope();
  const std::uint32_t line = SourceSite::current().line + 1;
  const Variable w("w", vec({1, 2}));
  const std::string error = error_of([] { Variable("w", vec({1, 2, 3})); });
  EXPECT_THAT(error,
              AllOf(HasSubstr("f32[2] ("), HasSubstr(str("tests/strategies/state_test.cpp:", line, ")")),
                    HasSubstr("f32[3]"), HasSubstr(str("state_test.cpp:", line + 1))));
}

// Copies that share their memory are one variable of one program.
TEST(StoreErase, CountsProgramsOnce) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto scope = strategy.scope();
  const Variable w("w", vec({1, 2}));
  const auto f = strategy.function({kScalar}, [=](const Value& x) { return w.read() * x; });
  EXPECT_THAT(error_of([&] { strategy.variables().erase("w"); }), HasSubstr("1 program is bound to it"));
}

}  // namespace
}  // namespace lockstep
