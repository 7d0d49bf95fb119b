// Tests: strategies/make_strategy.cpp, strategies/mirrored.cpp, strategies/strategy_registry.cpp,
//        strategies/passes/enter_replicas.cpp
// Steps that come as graphs, and strategies that come by name.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/strategies/make_strategy.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/passes/enter_replicas.h"
#include "lockstep/strategies/strategy_registry.h"
#include "support/strategy_test.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::scalars;
using testing::test_devices;

// w -= lr * sum over the rows of x; gives the sum.
constexpr const char* kStep = R"(var @w : f32[2] = f32[2]{*1.0}
%x = placeholder() : f32[?,2]
%lr = placeholder() : f32[]
%g = sum[axes=[0], keepdims=false](%x) : f32[2]
%u = sgd[variable=@w](%g, %lr) : f32[2]
%twice = add(%lr, %lr) : f32[]
return %g, %twice
)";

Tensor rows(std::initializer_list<float> values) {
  return Tensor::from({static_cast<std::int64_t>(values.size()) / 2, 2}, values);
}

TEST(Distribute, APlainStepTrainsAsOneDeviceDoesOnTheJoinedBatch) {
  const Graph graph = parse(kStep);
  MirroredStrategy strategy({.devices = test_devices(2)});
  const Step step = strategy.distribute(graph, {"lr"});
  ASSERT_EQ(step.inputs().size(), 2U);
  EXPECT_EQ(step.inputs()[0].name, "lr");
  EXPECT_TRUE(step.inputs()[0].shared);
  EXPECT_EQ(step.inputs()[1].name, "x");
  const std::vector<PerReplica<Tensor>> feeds = {Tensor::scalar(0.5F),
                                                 PerReplica<Tensor>({rows({1, 2, 3, 4}), rows({5, 6})})};
  const std::vector<PerReplica<Tensor>> results = step.run(feeds);
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].kind(), ReplicaKind::kPerReplica);
  EXPECT_TRUE(results[0][0].bit_equal(Tensor::from({2}, {4.0F, 6.0F})));
  EXPECT_TRUE(results[0][1].bit_equal(Tensor::from({2}, {5.0F, 6.0F})));
  EXPECT_EQ(results[1].kind(), ReplicaKind::kSingle) << "it depends on no replica";
  EXPECT_EQ(results[1][0].item(), 1.0);

  Interpreter alone(graph);
  alone.run({{"x", rows({1, 2, 3, 4, 5, 6})}, {"lr", Tensor::scalar(0.5F)}});
  EXPECT_TRUE(strategy.variables().value("w").bit_equal(alone.variables().at("w")));
}

TEST(Distribute, AGraphWithRegionsForAsManyReplicasIsTakenAsItIs) {
  Graph entered = parse(kStep);
  StrategyRegistry::global().parse_pipeline("enter-replicas(replicas=2,shared=[lr])").run(entered);
  MirroredStrategy strategy({.devices = test_devices(2)});
  const Step step = strategy.distribute(entered);
  std::vector<std::string> names;
  for (const InputSpec& input : step.inputs()) names.push_back(input.name);
  EXPECT_THAT(names, ElementsAre("lr", "x", "x/replica_1"));
  const std::vector<PerReplica<Tensor>> feeds = {Tensor::scalar(0.5F), rows({1, 2}), rows({3, 4})};
  const std::vector<PerReplica<Tensor>> results = step.run(feeds);
  ASSERT_EQ(results.size(), 4U);
  EXPECT_TRUE(results[1][0].bit_equal(Tensor::from({2}, {3.0F, 4.0F})));
  EXPECT_TRUE(strategy.variables().value("w").bit_equal(Tensor::from({2}, {-1.0F, -2.0F})));

  MirroredStrategy three({.devices = test_devices(3)});
  EXPECT_THAT(error_of([&] { three.distribute(entered); }),
              HasSubstr("region for 2 replicas, and 3 are wanted"));
}

TEST(Distribute, ReplicatedGraphsAndUnknownInputsAreRefused) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  EXPECT_THAT(error_of([&] { strategy.distribute(parse(kStep), {"rate"}); }),
              HasSubstr("there is no placeholder 'rate' to be shared"));
  const Step step = strategy.distribute(parse(kStep), {"lr"});
  EXPECT_THAT(error_of([&] { strategy.distribute(step.replicated_graph()); }),
              HasSubstr("replicated already"));
  EXPECT_THAT(error_of([] { make_enter_replicas({.replicas = 0}); }), HasSubstr("at least 1, got 0"));
}

// In one replica a gathered value has the extent of its own; in several that of all.
TEST(Distribute, APlainStepMayGather) {
  const Graph graph = parse(R"(%x = placeholder() : f32[2,3]
%all = all_gather(%x) : f32[2,3]
%wide = all_gather[axis=1](%x) : f32[2,3]
%shape = shape_of(%all) : i64[2]
%ones = full[dtype=f32, value=1.0](%shape) : f32[2,3]
%twice = add(%all, %ones) : f32[2,3]
%total = sum[axes=[0,1], keepdims=false](%twice) : f32[]
return %twice, %total, %wide
)");
  const Tensor ones = Tensor::full(DType::kF32, {2, 3}, 1), twos = Tensor::full(DType::kF32, {2, 3}, 2);
  for (const bool optimize : {false, true}) {
    MirroredStrategy strategy({.devices = test_devices(2), .optimize = optimize});
    const std::vector<PerReplica<Tensor>> feeds = {PerReplica<Tensor>({ones, twos})};
    const std::vector<PerReplica<Tensor>> results = strategy.distribute(graph).run(feeds);
    EXPECT_EQ(results[0][0].shape(), (Shape{4, 3}));
    EXPECT_EQ(results[1][1].item(), 6 + 12 + 12);
    EXPECT_EQ(results[2][1].shape(), (Shape{2, 6}));
  }
  MirroredStrategy alone({.devices = test_devices(1)});
  EXPECT_EQ(alone.distribute(graph).run(std::vector<PerReplica<Tensor>>{ones})[1][0].item(), 12);
}

TEST(EnterReplicas, OpensGathersInBranchesToo) {
  Graph graph = parse(R"(%x = placeholder() : f32[2]
%p = placeholder() : bool[]
%all = all_gather(%x) : f32[2]
%c = cond(%p, %x, %all) : f32[2], f32[] {
  region {
    %a = placeholder() : f32[2]
    %b = placeholder() : f32[2]
    %t = sum[axes=[0], keepdims=false](%b) : f32[]
    return %b, %t
  }
  region {
    %a = placeholder() : f32[2]
    %b = placeholder() : f32[2]
    %g = all_gather(%a) : f32[2]
    %t = sum[axes=[0], keepdims=false](%g) : f32[]
    return %g, %t
  }
}
return %c, %c:1
)");
  StrategyRegistry::global()
      .parse_pipeline("enter-replicas(replicas=2,shared=[p])")
      .run(graph, {.verify = PipelineChecks::kAlways});
  EXPECT_THAT(print(graph), HasSubstr("%all = all_gather[replicas=0](%x) : f32[?]"));
  EXPECT_THAT(print(graph), HasSubstr("%g = all_gather[replicas=0](%a) : f32[?]"));
  EXPECT_THAT(print(graph), HasSubstr("%c = cond(%p, %x, %all) : f32[?], f32[]"));
}

TEST(EnterReplicas, WrapsTheStepAndLeavesItThere) {
  Graph graph = parse(R"(%x = placeholder() : f32[?]
%n = placeholder() : f32[]
%y = mul(%x, %n) : f32[?]
return %y
)");
  PassPipeline pipeline = StrategyRegistry::global().parse_pipeline("enter-replicas(replicas=2,shared=[n])");
  EXPECT_EQ(pipeline.to_string(), "enter-replicas(replicas=2,shared=[n])");
  EXPECT_EQ(pipeline.run(graph).outcome, PassOutcome::kChanged);
  EXPECT_EQ(print(graph), R"(%n = placeholder() : f32[]
%x = placeholder() : f32[?]
%x/replica_1 = placeholder() : f32[?]
%replicated = replicated[replicas=2, shared=1](%n, %x, %x/replica_1) : f32[?], f32[?] {
  region {
    %n = placeholder() : f32[]
    %x = placeholder() : f32[?]
    %y = mul(%x, %n) : f32[?]
    return %y
  }
}
return %replicated, %replicated:1
)");
  EXPECT_EQ(pipeline.run(graph).outcome, PassOutcome::kUnchanged);
}

class Named final : public Strategy {
 public:
  Named(const std::vector<std::string>& devices, StrategyOptions base) : Strategy(devices, std::move(base)) {}
  std::string_view name() const override { return "Named"; }
  PassPipeline pipeline() const override {
    return PassRegistry::global().parse_pipeline("mirror-variables,insert-all-reduce,replicate,prove-sync");
  }
};

// Neither makes updates equal nor proves that they are.
class Unproven final : public Strategy {
 public:
  Unproven() : Strategy({"cpu:0", "cpu:1"}) {}
  std::string_view name() const override { return "Unproven"; }
  PassPipeline pipeline() const override {
    return PassRegistry::global().parse_pipeline("mirror-variables(devices=[cpu:0,cpu:1]),replicate");
  }
};

TEST(StrategyOfOnesOwn, DoesNotCallCopiesMirroredThatDrifted) {
  Unproven strategy;
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F), {.aggregation = Aggregation::kSum});
  const auto step = strategy.function({kScalar}, [=](Value x) { w.assign(x); });
  step(scalars({2, 2}));
  EXPECT_EQ(w.copies().kind(), ReplicaKind::kMirrored);
  step(scalars({2, 3}));
  EXPECT_EQ(str(w.copies()), "per replica {0: f32[] {2}, 1: f32[] {3}}");
}

TEST(StrategyRegistry, TakesStrategiesOfOnesOwnAndExpandsThemInPipelines) {
  StrategyRegistry registry;
  registry.add({.name = "named", .summary = "for tests", .options = {devices_option()}},
               [](const PassOptions& given, const StrategyOptions& base) {
                 return std::make_unique<Named>(given.get_list("devices"), base);
               });
  EXPECT_EQ(registry.make("named(devices=[cpu:0,cpu:3])")->num_replicas_in_sync(), 2);
  EXPECT_EQ(
      registry.parse_pipeline("identity-removal, named(devices=[cpu:0,cpu:1]) , dead-node-elimination")
          .to_string(),
      "identity-removal,enter-replicas(replicas=2),mirror-variables,insert-all-reduce,replicate,prove-sync,"
      "dead-node-elimination");
  const auto again = [&] {
    registry.add({.name = "named", .summary = ""},
                 [](const PassOptions&, const StrategyOptions&) { return nullptr; });
  };
  EXPECT_THAT(error_of(again), HasSubstr("registered already"));
  EXPECT_THAT(error_of([&] { registry.make("mirrored"); }),
              HasSubstr("no strategy named 'mirrored' is registered; did you mean 'named'?"));
  EXPECT_THAT(error_of([&] { registry.add({.name = "Bad Name", .summary = ""}, {}); }),
              HasSubstr("kebab-case"));
  EXPECT_THAT(error_of([&] { registry.add({.name = "none", .summary = ""}, {}); }),
              HasSubstr("without a factory"));
  const auto declared = [&](std::vector<OptionSpec> options) {
    return error_of([&] {
      registry.add({.name = "declared", .summary = "", .options = std::move(options)},
                   [](const PassOptions&, const StrategyOptions&) { return nullptr; });
    });
  };
  EXPECT_THAT(declared({devices_option(), devices_option()}),
              HasSubstr("strategy 'declared' declares option 'devices' twice"));
  EXPECT_THAT(declared({{.name = "steps", .type = OptionType::kInt, .fallback = std::string("4")}}),
              HasSubstr("option 'steps' of strategy 'declared' is declared int but its default is not"));
  EXPECT_EQ(declared({}), "no error");
  EXPECT_THAT(error_of([&] { registry.make("declared"); }),
              HasSubstr("the factory of strategy 'declared' made nothing"));
  EXPECT_THAT(error_of([&] { registry.parse_pipeline("no-such-pass"); }),
              HasSubstr("no pass named 'no-such-pass'"));
}

TEST(StrategyRegistry, HandsTheRuntimeOn) {
  const Runtime runtime({.cpu_devices = 2, .seed = 7});
  StrategyOptions base;
  base.runtime = runtime;
  for (const std::string& name : strategy_names())
    EXPECT_EQ(make_strategy(name, base)->runtime().seed(), 7U) << name;
}

}  // namespace
}  // namespace lockstep
