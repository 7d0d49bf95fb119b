// Tests: graph/run/plan.cpp, graph/run/resolved_graph.cpp, graph/run/variable_stages.cpp
// What plans decide: what runs, on which shapes, in how many calls, in how much memory.
#include "lockstep/graph/run/internal/plan.h"

#include <cmath>
#include <numeric>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::Caught;
using ::testing::ElementsAre;
using testing::expect_same_tensors;
using testing::floats;
using ::testing::HasSubstr;
using testing::list;
using testing::vec;
using testing::with_lanes;

PlanSummary summary_of(const Program& program) {
  std::vector<TensorSpec> specs;
  for (const NodeId id : program.graph().parameters()) specs.push_back(program.graph().node(id).outputs()[0]);
  return program.plan(specs);
}

PlanSummary summary_of(GraphBuilder& b, const CompileOptions& options = {}, std::size_t threads = 2) {
  return summary_of(compile(b.finish(), Runtime({.threads = threads}), options));
}

// --- what runs

TEST(Plan, NodesThatNobodyReadsDoNotRun) {
  GraphBuilder b;
  const Value x = b.constant(vec({1, 2}));
  relu(x);
  b.result(x + 1.0F);
  EXPECT_EQ(summary_of(b).calls, 1U);
}

TEST(Plan, HostCallsAndWhatTheyWaitForRunThoughNobodyReadsThem) {
  GraphBuilder b;
  int runs = 0;
  const NodeId pure = b.call("pure", [&] { ++runs; }, {.effects = Effect::kPure});
  b.call("unread", [&] { runs += 100; }, {.effects = Effect::kPure});
  b.call("host", [&] { runs += 10; }, {}, {&pure, 1});
  compile(b.finish(), Runtime()).run();
  EXPECT_EQ(runs, 11);
}

TEST(Plan, AliasesConstantsAndReadsDoNotRun) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1, 2}));
  b.result(identity(b.read(v)) + identity(b.constant(vec({3, 4}))));
  EXPECT_EQ(summary_of(b).calls, 1U);
}

// Each node reads the one before it twice; were what it waits for written down twice as well, nobody would
// see the end.
TEST(Plan, WhatIsLookedAtForItsShapeAloneCostsNothing) {
  GraphBuilder b;
  const Value x = relu(b.placeholder("x", DType::kF32, {3}));
  b.result(x);
  Value y = x;
  for (int i = 0; i < 60; ++i) y = y + y;
  b.result(shape_of(y));
  EXPECT_EQ(summary_of(b).calls, 2U);  // relu, and a copy of the shape
}

TEST(Plan, ResultsAreComputedWhereTheyAreWanted) {
  GraphBuilder b;
  b.result(b.constant(vec({1, 2})) + 1.0F);
  const PlanSummary summary = summary_of(b);
  EXPECT_EQ(summary.calls, 1U) << "no copy";
  EXPECT_EQ(summary.planned_bytes, 0);
}

TEST(Plan, LargeNodesAreCutByShapeAlone) {
  for (const std::size_t threads : {1U, 2U, 8U}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {1'000'000});
    b.result(x + 1.0F);
    const PlanSummary summary = summary_of(b, {}, threads);
    EXPECT_GT(summary.calls, 8U);
    EXPECT_EQ(summary.calls, 16U) << threads << " threads";
  }
}

TEST(Plan, SmallProgramsStayOnTheCallersThread) {
  GraphBuilder b;
  b.call("cheap", [] {});
  b.call("cheap", [] {});
  const PlanSummary summary = summary_of(b);
  EXPECT_EQ(summary.lanes, 1U);
  EXPECT_EQ(summary.clusters, 1U);
}

TEST(Plan, DearOnesGetLanes) {
  GraphBuilder b;
  for (int i = 0; i < 8; ++i) b.call("dear", [] {}, {.seconds = 1e-3});
  const PlanSummary summary = summary_of(b);
  EXPECT_EQ(summary.lanes, 2U);
  EXPECT_GE(summary.clusters, 2U);
  EXPECT_NEAR(summary.estimated_seconds, 8e-3, 1e-4);
}

TEST(Plan, WithoutClusteringEveryCallIsATask) {
  GraphBuilder b;
  for (int i = 0; i < 8; ++i) b.call("cheap", [] {});
  EXPECT_EQ(summary_of(b, with_lanes(Clustering::kOff)).clusters, 8U + 1)
      << "and an empty one that ends last";
}

TEST(Plan, AChainReusesItsMemory) {
  for (const CompileOptions& options : {CompileOptions(), with_lanes(Clustering::kOff)}) {
    GraphBuilder b;
    Value x = b.placeholder("x", DType::kF32, {1024});
    const Value other = b.placeholder("y", DType::kF32, {1, 1024});
    for (int i = 0; i < 40; ++i) x = sum(other * x, {0});  // not in place: the product has another shape
    b.result(x);
    const Program program = compile(b.finish(), Runtime({.threads = 2}), options);
    const PlanSummary summary = summary_of(program);
    EXPECT_LE(summary.planned_bytes, 3 * 4096);
    EXPECT_GE(summary.planned_bytes, summary.live_set_bytes);
  }
}

TEST(Plan, AChainOfElementwiseNodesWorksInPlace) {
  GraphBuilder b;
  Value x = b.placeholder("x", DType::kF32, {1024});
  for (int i = 0; i < 40; ++i) x = relu(x);
  b.result(x);
  EXPECT_EQ(summary_of(b).planned_bytes, 4096);
}

TEST(Plan, FeedsConstantsAndVariablesAreNeverWrittenOver) {
  for (const CompileOptions& options : {CompileOptions(), with_lanes(Clustering::kOff)}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    const VariableRef v = b.variable("v", vec({3, 4}));
    const Value constant = b.constant(vec({5, 6}));
    b.result(relu(relu(identity(x) + 1.0F)));
    b.result(relu(identity(constant)) + b.read(v));
    b.result(relu(relu(b.read(v))));
    const Program program = compile(b.finish(), Runtime({.threads = 2}), options);
    const Tensor feed = vec({1, 2});
    for (int repeat = 0; repeat < 3; ++repeat) {
      EXPECT_THAT(floats(program.run(list({feed}))[1]), ElementsAre(8, 10));
    }
    EXPECT_THAT(floats(feed), ElementsAre(1, 2));
    EXPECT_THAT(floats(program.variables().value("v")), ElementsAre(3, 4));
  }
}

// --- shapes that only feeds decide

TEST(PlanShapes, AFeedThatDoesNotFitAMatrixOfKnownShapeIsRefused) {
  // The sum's shape is known although x's is not.
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  bool ran = false;
  b.call("witness", [&] { ran = true; });
  const std::uint32_t line = SourceSite::current().line + 1;
  b.result(x + b.constant(vec({1, 2, 3, 4})));
  const Program program = compile(b.finish(), Runtime());
  EXPECT_THAT(floats(program.run({{"x", vec({1})}})[0]), ElementsAre(2, 3, 4, 5));
  ran = false;
  const Caught error = caught([&] { program.run({{"x", vec({1, 2, 3})}}); });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.place.node, "add");
  EXPECT_EQ(error.place.line, line);
  EXPECT_THAT(error.what, HasSubstr("[3]"));
  EXPECT_FALSE(ran);
}

TEST(PlanShapes, InnerDimensionsMustMeet) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, kUnknown});
  b.result(matmul(x, b.constant(Tensor::full(DType::kF32, {4, 5}, 1))));
  const Program program = compile(b.finish(), Runtime());
  EXPECT_EQ(program.run({{"x", Tensor::full(DType::kF32, {2, 4}, 1)}})[0].data<float>()[0], 4);
  const Caught error = caught([&] { program.run({{"x", Tensor::zeros({2, 3})}}); });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what, HasSubstr("inner dimensions differ: f32[2,3] x f32[4,5]"));
}

TEST(PlanShapes, AnAssignmentMustFitItsVariable) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  const VariableRef v = b.variable("v", vec({0, 0}));
  b.assign(v, x);
  const Program program = compile(b.finish(), Runtime());
  program.run({{"x", vec({1, 2})}});
  EXPECT_THAT(floats(program.variables().value("v")), ElementsAre(1, 2));
  const Caught error = caught([&] { program.run({{"x", vec({1, 2, 3})}}); });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what, HasSubstr("variable 'v' holds f32[2]"));
  EXPECT_THAT(floats(program.variables().value("v")), ElementsAre(1, 2));
}

TEST(PlanShapes, GoThroughRegions) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  b.result(cond(
      less(sum(x), 0.0F), [&] { return std::vector<Value>{x * 2.0F}; },
      [&] { return std::vector<Value>{x + 1.0F}; })[0]);
  const std::vector<Value> initial = {x, b.constant(0.0F)};
  b.result(while_loop(
      initial, [](std::span<const Value> c) { return less(c[1], 3.0F); },
      [](std::span<const Value> c) {
        return std::vector<Value>{c[0] * 2.0F, c[1] + 1.0F};
      })[0]);
  const std::vector<std::vector<Value>> per_replica = {{x, x}};
  b.result(replicated(b, 2, {}, per_replica,
                      [](std::span<const Value> own) { return std::vector<Value>{own[0] + 1.0F}; })[0][1]);
  const Graph graph = b.finish();
  const Program program = compile(graph, Runtime());
  Interpreter interpreter(graph);
  for (const Tensor& feed : {vec({1, 2}), vec({-3}), vec({-1, 0, 0.5F})}) {
    expect_same_tensors(program.run(list({feed})), interpreter.run(list({feed})));
  }
}

// Said of the value, not of how it would be cut.
TEST(PlanShapes, AValueThatNoMemoryHoldsIsNamed) {
  GraphBuilder b;
  b.result(sum(full(b, DType::kF32, Shape{std::int64_t{1} << 45}, 1.0)));
  const Caught error = caught([&] { compile(b.finish(), Runtime()).run(); });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what, HasSubstr("'full' gives f32[35184372088832] (140737488355328 bytes)"));
  EXPECT_THAT(error.what, HasSubstr("work on smaller values"));
}

// --- ops of the user's own

const OpDef& reversed_op() {
  static const OpDef& op = [&]() -> const OpDef& {
    OpDef def;
    def.name = "test.reversed";  // an attribute that is a tensor, and an output that is another
    def.attributes = {{"of", AttributeType::kTensor}};
    def.infer = [](InferContext& c) { c.add_output(c.get<Tensor>("of").spec()); };
    def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
      return [of = node.get<Tensor>("of")](KernelContext& c) {
        const std::span<const float> in = of.data<float>();
        std::reverse_copy(in.begin(), in.end(), c.output<float>(0).begin());
      };
    };
    return OpRegistry::global().add(std::move(def));
  }();
  return op;
}

TEST(PlanOps, AnOpWithATensorAttributeIsNotAConstant) {
  GraphBuilder b;
  b.result(b.op1(reversed_op().name, {}, {{"of", vec({1, 2, 3})}}));
  const Graph graph = b.finish();
  EXPECT_THAT(floats(Interpreter(graph).run()[0]), ElementsAre(3, 2, 1));
  EXPECT_THAT(floats(compile(graph, Runtime()).run()[0]), ElementsAre(3, 2, 1));
}

TEST(PlanOps, ANodeMayHaveManyInputs) {
  GraphBuilder b;
  const Value one = b.constant(1.0F);
  const std::vector<Value> inputs(70'000, one);
  const TensorSpec spec{DType::kF32, {}};
  b.result(b.call("count", inputs, {&spec, 1}, [](KernelContext& c) {
    float sum = 0;
    for (std::size_t i = 0; i < c.num_inputs(); ++i) sum += c.input<float>(i)[0];
    c.output<float>(0)[0] = sum;
  })[0]);
  EXPECT_EQ(compile(b.finish(), Runtime()).run()[0].item(), 70'000);
}

// A scan in three shards with a finishing call and scratch: counts its calls.
struct ShardedSum {
  static inline std::atomic<int> shards{0};
  static inline std::atomic<int> finishes{0};
  static const OpDef& op() {
    static const OpDef& op = [&]() -> const OpDef& {
      OpDef def;
      def.name = "test.sharded_sum";
      def.inputs = Arity::exactly(1);
      def.infer = [](InferContext& c) { c.add_output(c.input(0).dtype, Shape{}); };
      def.split = [](const NodeView&, std::span<const TensorSpec>) {
        return Split{3, 3 * sizeof(float), true};
      };
      def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
        return [](KernelContext& c) {
          auto* partial = static_cast<float*>(c.scratch());
          if (c.is_finish()) {
            ++finishes;
            c.output<float>(0)[0] = partial[0] + partial[1] + partial[2];
            return;
          }
          ++shards;
          const std::span<const float> in = c.input<float>(0);
          const auto [begin, end] = c.range(static_cast<std::int64_t>(in.size()));
          partial[c.shard()] = std::accumulate(in.begin() + begin, in.begin() + end, 0.0F);
        };
      };
      return OpRegistry::global().add(std::move(def));
    }();
    return op;
  }
};

TEST(PlanOps, SplitWithScratchAndAFinishingCall) {
  for (const CompileOptions& options : {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {10});
    const Value first = b.op1(ShardedSum::op().name, {x + 1.0F});
    const Value second = b.op1(ShardedSum::op().name, {x * first});
    b.result(second);
    const Program program = compile(b.finish(), Runtime({.threads = 2}), options);
    EXPECT_EQ(summary_of(program).calls, 2U + 2 * 4);
    ShardedSum::shards = ShardedSum::finishes = 0;
    EXPECT_EQ(program.run({{"x", Tensor::full(DType::kF32, {10}, 1)}})[0].item(), 200);
    EXPECT_EQ(ShardedSum::shards, 6);
    EXPECT_EQ(ShardedSum::finishes, 2);
  }
}

// Shards cover everything once, are about equally long, and begin at multiples of kUnit where they are long.
TEST(PlanOps, RangesOfShards) {
  for (const std::int64_t total : {0, 1, 5, 64, 1000, 4095, 4096, 4097, 100'003, 1 << 20, (1 << 20) + 1}) {
    for (const std::int64_t shards : {1, 2, 3, 4, 7, 33, 1000}) {
      SCOPED_TRACE(str(total, " items in ", shards, " shards"));
      std::int64_t at = 0;
      for (std::int64_t shard = 0; shard < shards; ++shard) {
        KernelContext c;
        c.set_shard(shard, shards, nullptr);
        const auto [begin, end] = c.range(total);
        ASSERT_EQ(begin, at);
        at = end;
        const bool is_long = total / shards >= 1024;
        if (is_long) {
          ASSERT_EQ(begin % KernelContext::kUnit, 0);
        }
        ASSERT_LE(std::abs(static_cast<double>(end - begin) -
                           static_cast<double>(total) / static_cast<double>(shards)),
                  is_long ? KernelContext::kUnit : 1);
      }
      ASSERT_EQ(at, total);
    }
  }
}

// An update of the user's own that can fail is never part of the commit.
const OpDef& fallible_update() {
  static const OpDef& op = [&]() -> const OpDef& {
    OpDef def;
    def.name = "test.fallible_update";
    def.inputs = Arity::exactly(1);
    def.attributes = {{"into", AttributeType::kVariable}};
    def.effects = Effect::kReadsVariable | Effect::kWritesVariable;
    def.traits.updates_variable = OpTraits::Update{"into", 0, true};
    def.infer = [](InferContext& c) { c.add_output(c.variable(c.get<VariableRef>("into").name)); };
    def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
      return [](KernelContext& c) {
        if (c.input<float>(1)[0] < 0) throw std::domain_error("negative");
        c.output<float>(0)[0] = c.input<float>(0)[0] * 2 + c.input<float>(1)[0];
      };
    };
    return OpRegistry::global().add(std::move(def));
  }();
  return op;
}

TEST(PlanOps, AnUpdateThatCanFailLeavesTheStepUndone) {
  for (const CompileOptions& options : {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {1});
    const VariableRef v = b.variable("v", vec({1}));
    const VariableRef w = b.variable("w", vec({1}));
    b.assign_add(w, b.constant(vec({1})));
    b.op1(fallible_update().name, {x}, {{"into", v}});
    const Program program = compile(b.finish(), Runtime({.threads = 2}), options);
    program.run({{"x", vec({5})}});
    EXPECT_EQ(program.variables().value("v").item(), 7);
    EXPECT_EQ(caught([&] { program.run({{"x", vec({-1})}}); }).place.op, "test.fallible_update");
    EXPECT_EQ(program.variables().value("v").item(), 7);
    EXPECT_EQ(program.variables().value("w").item(), 2);
  }
}

TEST(PlanOps, AnOpWithoutAKernelForItsDeviceIsRefused) {
  if (OpRegistry::global().find("test.no_kernel") == nullptr) {  // the test may be repeated
    OpDef def;
    def.name = "test.no_kernel";
    def.infer = [](InferContext& c) { c.add_output(DType::kF32, Shape{}); };
    OpRegistry::global().add(std::move(def));
  }
  GraphBuilder b;
  b.result(b.op1("test.no_kernel", {}));
  const Caught error = caught([&] { compile(b.finish(), Runtime()); });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what,
              HasSubstr("has no kernel for cpu:0, which runs the kernels 'cpu'; place the node elsewhere"));
}

TEST(PlanOps, AMergeCallIsForAStrategy) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[2]
      %r = replicated[replicas=1, shared=1](%x) : f32[2] {
        region {
          %p = placeholder() : f32[2]
          %m = merge_call[replicas=1, single=[1]](%p) : f32[2] {
            region {
              %a = placeholder() : f32[2]
              return %a
            }
          }
          return %m
        }
      }
      return %r
    )");
  const Caught error = caught([&] { compile(graph, Runtime()).run(std::vector<Tensor>{vec({1, 2})}); });
  EXPECT_EQ(error.place.node, "m");
  EXPECT_THAT(error.what, HasSubstr("let a strategy distribute the graph"));
}

TEST(PlanDevices, EachHasItsOwnMemory) {
  GraphBuilder b;
  Value x = b.placeholder("x", DType::kF32, {100});
  for (int i = 0; i < 6; ++i) {
    const auto device = b.device(i % 2 == 0 ? "cpu:0" : "cpu:1");
    x = sum(x + Value(b.constant(Tensor::zeros({2, 100}))), {0});
  }
  b.result(x + 1.0F);
  const Runtime runtime({.threads = 2, .cpu_devices = 2});
  const Program program = compile(b.finish(), runtime);
  EXPECT_EQ(program.run({{"x", Tensor::full(DType::kF32, {100}, 1)}})[0].data<float>()[99], 65);
  EXPECT_GT(runtime.pool(runtime.devices()[0])->stats().peak_bytes, 0);
  EXPECT_GT(runtime.pool(runtime.devices()[1])->stats().peak_bytes, 0);
}

// What a collective gives a replica lies where passes believe it: on the device of that replica's input.
TEST(PlanDevices, ACollectiveGivesEachReplicaItsValueOnItsOwnDevice) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[2]
      %a = neg(%x) : f32[2] on "cpu:0"
      %b = neg(%a) : f32[2] on "cpu:1"
      %g = all_gather[axis=0, replicas=2](%a, %b) : f32[4], f32[4] on "cpu:0"
      %c = neg(%g) : f32[4] on "cpu:0"
      %d = neg(%g:1) : f32[4] on "cpu:1"
      return %c, %d
    )");
  const Runtime runtime({.threads = 1, .cpu_devices = 2});
  const TensorSpec feed{DType::kF32, {2}};
  const auto plan = internal::make_host_plan(graph, runtime, {&feed, 1}, {});
  const auto gather = std::ranges::find_if(
      plan->phases, [](const auto& phase) { return phase.source->op().name == "all_gather"; });
  ASSERT_NE(gather, plan->phases.end());
  for (std::uint32_t i = 0; i < 2; ++i) {
    const internal::Location& at = plan->args[gather->first_arg + gather->inputs + i].location;
    ASSERT_EQ(at.kind, internal::Location::Kind::kArena);
    EXPECT_EQ(plan->arenas[at.index].to_string(), str("cpu:", i));
  }
}

}  // namespace
}  // namespace lockstep
