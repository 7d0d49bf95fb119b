// Tests: graph/build/builder.cpp, graph/build/regions.cpp, graph/ops/call.cpp, graph/ops/variables.cpp
#include "lockstep/graph/build/builder.h"

#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::Caught;
using ::testing::ElementsAre;
using testing::floats;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::list;
using testing::vec;

std::vector<std::string> controls_of(const GraphBuilder& b, const Value& value) {
  std::vector<std::string> names;
  for (const NodeId id : b.graph().node(value.id().node).controls())
    names.push_back(b.graph().node(id).name());
  std::ranges::sort(names);
  return names;
}

// --- names, scopes, devices, sites

TEST(Builder, NamesNodesAfterTheirOpsAndKeepsThemApart) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {});
  EXPECT_EQ((x + x).name(), "add");
  EXPECT_EQ((x + x).name(), "add_1");
  EXPECT_EQ((x + x).name(), "add_2");
  EXPECT_EQ(b.op1("relu", {x}, {}, "mine").name(), "mine");
}

TEST(Builder, ScopesNestAndEnd) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {});
  {
    const auto outer = b.scope("encoder");
    {
      const auto inner = b.scope("layer_1");
      EXPECT_EQ(relu(x).name(), "encoder/layer_1/relu");
      const VariableRef w = b.variable("w", vec({1}));
      EXPECT_EQ(w.name, "encoder/layer_1/w");
      EXPECT_EQ(b.read(w).name(), "encoder/layer_1/w/read") << "the scope is in its name already";
      EXPECT_EQ(b.assign_add(w, b.read(w)).name(), "encoder/layer_1/w/assign_add");
      EXPECT_EQ(b.placeholder("in", DType::kF32, {}).name(), "encoder/layer_1/in");
    }
    EXPECT_EQ(relu(x).name(), "encoder/relu");
  }
  EXPECT_EQ(relu(x).name(), "relu");
}

TEST(Builder, PlacesNodesUnderAnySpelling) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {});
  const auto device_of = [&](const Value& value) { return b.graph().node(value.id().node).device(); };
  {
    const auto outer = b.device("/device:CPU:1");
    EXPECT_EQ(device_of(relu(x)), "cpu:1");
    {
      const auto inner = b.device("/gpu:0");
      EXPECT_EQ(device_of(relu(x)), "gpu:0");
      const auto nowhere = b.device("");
      EXPECT_EQ(device_of(relu(x)), "");
    }
    EXPECT_EQ(device_of(relu(x)), "cpu:1");
  }
  EXPECT_EQ(device_of(relu(x)), "");
  EXPECT_THROW((void)b.device("toaster:0"), InvalidArgument);
}

TEST(Builder, RegionsInheritTheDevice) {
  GraphBuilder b;
  const auto device = b.device("cpu:1");
  const Value x = b.placeholder("x", DType::kF32, {});
  const Value y = cond(
      less(x, 0.0F), [&] { return std::vector<Value>{x * 2.0F}; },
      [&] { return std::vector<Value>{relu(x)}; })[0];
  const Graph& region = b.graph().node(y.id().node).regions()[1];
  EXPECT_EQ(region.node(region.find("relu")).device(), "cpu:1");
}

TEST(Builder, RemembersTheCallersLine) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {});
  const std::uint32_t line = SourceSite::current().line;
  const Value sum = x + 1.0F;
  const Value product = mul(x, x);
  const Value rectified = relu(x);
  EXPECT_EQ(b.graph().node(sum.id().node).site().line, line + 1);
  EXPECT_EQ(b.graph().node(product.id().node).site().line, line + 2);
  EXPECT_EQ(b.graph().node(rectified.id().node).site().line, line + 3);
  EXPECT_THAT(b.graph().node(sum.id().node).site().file, HasSubstr("builder_test.cpp"));
}

TEST(Builder, StartsAnewAfterFinish) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1}));
  b.result(b.assign(v, b.read(v)));
  const Graph first = b.finish();
  EXPECT_EQ(first.size(), 2U);
  EXPECT_EQ(b.graph().size(), 0U);
  const VariableRef again = b.variable("v", vec({1, 2}));
  b.result(b.read(again));
  const Graph second = b.finish();
  EXPECT_EQ(second.size(), 1U);
  EXPECT_TRUE(second.node(NodeId(0U)).controls().empty());
  verify(second);
}

// --- numbers

TEST(BuilderOperators, TakeNumbersOnEitherSide) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  b.result(x + 1);
  b.result(10.0 - x);
  b.result(2.0F * x);
  b.result(12 / x);
  b.result(less(x, 3));
  const std::vector<Tensor> results = Interpreter(b.finish()).run(list({vec({2, 4})}));
  EXPECT_THAT(floats(results[0]), ElementsAre(3, 5));
  EXPECT_THAT(floats(results[1]), ElementsAre(8, 6));
  EXPECT_THAT(floats(results[2]), ElementsAre(4, 8));
  EXPECT_THAT(floats(results[3]), ElementsAre(6, 3));
  EXPECT_TRUE(results[4].bit_equal(Tensor::from<bool>({2}, {true, false})));
}

TEST(BuilderOperators, NumbersTakeTheDTypeOfTheOtherOperand) {
  GraphBuilder b;
  for (const DType dtype :
       {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kU8}) {
    const Value x = b.placeholder(to_string(dtype), dtype, {});
    EXPECT_EQ((x + 1).dtype(), dtype);
  }
}

TEST(BuilderOperators, ANumberThatAnIntegerCannotHoldIsRefused) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {});
  EXPECT_EQ((x + 2.0).dtype(), DType::kI32);
  const std::uint32_t line = SourceSite::current().line + 1;
  const Caught error = caught([&] { x * 0.5; });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what, HasSubstr("0.5"));
  EXPECT_THAT(error.what, HasSubstr("i32"));
  EXPECT_EQ(error.place.line, line);
  EXPECT_THAT(caught([&] { x + std::int64_t{3'000'000'000}; }).what,
              HasSubstr("add: 3000000000 beside a value of i32, which cannot hold it; cast the value"));
}

// Rounding is expected, infinity is not.
TEST(BuilderOperators, AFiniteNumberDoesNotBecomeInfinite) {
  GraphBuilder b;
  const Value half = b.placeholder("half", DType::kF16, {});
  const Value single = b.placeholder("single", DType::kF32, {});
  const Value brain = b.placeholder("brain", DType::kBF16, {});
  EXPECT_THAT(caught([&] { half * 1e6; }).what, HasSubstr("mul: 1e+06 beside a value of f16"));
  EXPECT_THAT(caught([&] { single * 1e300; }).what, HasSubstr("beside a value of f32"));
  EXPECT_THAT(caught([&] { brain * -1e300; }).what, HasSubstr("beside a value of bf16"));
  for (const double fine : {65504.0, 1e-30, std::numeric_limits<double>::infinity(), std::nan("")})
    EXPECT_EQ((half * fine).dtype(), DType::kF16);
  EXPECT_EQ((single * std::numeric_limits<float>::max()).dtype(), DType::kF32);
}

// --- errors at build time

TEST(BuilderErrors, SayWhatWasExpectedWhatCameAndWhereFrom) {
  GraphBuilder b;
  const std::uint32_t line = SourceSite::current().line;
  const Value x = b.placeholder("x", DType::kF32, {2, 3});
  const Value w = b.placeholder("w", DType::kF32, {4, 5});
  const auto scope = b.scope("layer");
  const Caught error = caught([&] { matmul(x, w); });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what, HasSubstr("matmul: inner dimensions differ: f32[2,3] x f32[4,5]"));
  EXPECT_THAT(error.what, HasSubstr(str("'x' f32[2,3] made at ", __FILE__, ":", line + 1)));
  EXPECT_THAT(error.what, HasSubstr(str("'w' f32[4,5] made at ", __FILE__, ":", line + 2)));
  EXPECT_EQ(error.place.node, "layer/matmul");
  EXPECT_EQ(error.place.op, "matmul");
  EXPECT_EQ(error.place.line, line + 4);
  EXPECT_THAT(error.place.file, HasSubstr("builder_test.cpp"));
  EXPECT_EQ(b.graph().size(), 2U) << "nothing was added";
}

TEST(BuilderErrors, OfDTypesAndShapes) {
  GraphBuilder b;
  const Value f = b.placeholder("f", DType::kF32, {2});
  const Value i = b.placeholder("i", DType::kI32, {2});
  const Value t = b.placeholder("t", DType::kF32, {3});
  const Value p = b.placeholder("p", DType::kBool, {2});
  EXPECT_THAT(caught([&] { f + i; }).what,
              HasSubstr("inputs must have one dtype, got f32[2] and i32[2]; cast one of them"));
  EXPECT_THAT(caught([&] { f + t; }).what, HasSubstr("[2]"));
  EXPECT_THAT(caught([&] { p + p; }).what, HasSubstr("no meaning for bool"));
  EXPECT_THAT(caught([&] { relu(p); }).what, HasSubstr("no meaning for bool"));
  EXPECT_THAT(caught([&] { matmul(f, f); }).what,
              HasSubstr("takes two matrices (rank 2 or more), got f32[2] and f32[2]"));
  EXPECT_THAT(caught([&] { sum(f, {1}); }).what,
              HasSubstr("axis 1 is outside of a value of rank 1; axes go from -1 to 0"));
  EXPECT_THAT(caught([&] { sum(f, {0, -1}); }).what, HasSubstr("axis 0 is named twice"));
  EXPECT_THAT(caught([&] {
                b.random_uniform({DType::kI32, {2}});
              }).what,
              HasSubstr("dtype must be floating, got i32"));
  EXPECT_THAT(caught([&] {
                b.random_uniform({DType::kF32, {2}}, 2, 1);
              }).what,
              HasSubstr("low must be below high, both finite in f32, as their distance, got [2, 1)"));
}

TEST(BuilderErrors, OfArityAttributesAndNames) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  EXPECT_THAT(caught([&] { b.op1("add", {x}); }).what, HasSubstr("add: takes 2 inputs, got 1"));
  EXPECT_THAT(caught([&] { b.op1("sum", {x}); }).what, HasSubstr("attribute 'axes' (ints) is missing"));
  EXPECT_THAT(caught([&] {
                b.op1("relu", {x}, {{"slope", 0.5}});
              }).what,
              HasSubstr("there is no attribute 'slope'"));
  EXPECT_THAT(caught([&] {
                b.op1("constant", {}, {{"value", 1.0}});
              }).what,
              HasSubstr("attribute 'value' must be of type tensor"));
  const std::uint32_t line = SourceSite::current().line + 1;
  const Caught unknown = caught([&] { b.op1("rellu", {x}); });
  EXPECT_EQ(unknown.code, ErrorCode::kNotFound);
  EXPECT_EQ(unknown.place.line, line);
  EXPECT_THAT(unknown.what, HasSubstr("did you mean 'relu'"));
}

TEST(BuilderErrors, OfVariables) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1, 2}));
  EXPECT_THAT(caught([&] { b.variable("v", vec({1})); }).what, HasSubstr("variable 'v' is declared already"));
  EXPECT_THAT(caught([&] {
                b.assign(v, b.constant(vec({1, 2, 3})));
              }).what,
              HasSubstr("variable 'v' holds f32[2], got a value of f32[3]"));
  EXPECT_THAT(caught([&] { b.assign_add(v, b.constant(1)); }).what, HasSubstr("variable 'v' holds f32[2]"));
  EXPECT_THAT(caught([&] { b.read({"w"}); }).what, HasSubstr("variable 'w' is not declared"));
  VariableDecl unknown;
  unknown.name = "u";
  unknown.spec = {DType::kF32, {kUnknown}};
  EXPECT_THAT(caught([&] { b.variable(unknown); }).what, HasSubstr("needs a known shape, got f32[?]"));
}

TEST(BuilderErrors, OfValuesThatAreNotHere) {
  GraphBuilder b;
  GraphBuilder other;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value y = other.placeholder("y", DType::kF32, {2});
  const std::uint32_t line = SourceSite::current().line + 1;
  const Caught foreign = caught([&] { x + y; });
  EXPECT_EQ(foreign.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(foreign.what, HasSubstr("value 'y' belongs to another graph"));
  EXPECT_EQ(foreign.place.line, line);
  EXPECT_THAT(caught([&] { relu(Value()); }).what, HasSubstr("an empty Value was used"));
  EXPECT_EQ(caught([&] { x + Value(); }).place.line, line + 5);
  EXPECT_THAT(caught([&] { add(1, 2); }).what, HasSubstr("takes a Value here, got the number 2"));
  EXPECT_THAT(caught([&] { relu(3); }).what, HasSubstr("Value"));
}

TEST(BuilderErrors, OfLambdas) {
  GraphBuilder b;
  EXPECT_THAT(caught([&] { b.call("empty", std::function<void()>()); }).what,
              HasSubstr("the function is empty"));
  const TensorSpec unknown{DType::kF32, {kUnknown}};
  EXPECT_THAT(caught([&] {
                b.call("shape", {}, {&unknown, 1}, [](KernelContext&) {});
              }).what,
              HasSubstr("a lambda's outputs need known shapes"));
}

TEST(BuilderErrors, InsideRegions) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value yes = b.constant(true);
  const auto branch = [&](auto&& body) {
    return [&, body] {
      body();
      return std::vector<Value>{x * 1.0F};
    };
  };
  const BranchFn fine = [&] { return std::vector<Value>{x}; };
  EXPECT_THAT(caught([&] { cond(yes, branch([&] { b.placeholder("p", DType::kF32, {}); }), fine); }).what,
              HasSubstr("placeholder 'p' inside a region"));
  EXPECT_THAT(caught([&] { cond(yes, branch([&] { b.variable("v", vec({1})); }), fine); }).what,
              HasSubstr("declared in the outermost graph"));
  EXPECT_THAT(caught([&] { cond(yes, branch([&] { b.finish(); }), fine); }).what,
              HasSubstr("finish() inside a region"));
  // The builder is whole again after each of them.
  b.result(cond(yes, fine, fine)[0]);
  verify(b.finish());
}

TEST(BuilderErrors, OfRegionSignatures) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const auto give = [](std::vector<Value> values) { return [values] { return values; }; };
  EXPECT_THAT(caught([&] { cond(x, give({x}), give({x})); }).what,
              HasSubstr("the predicate must be bool[], got f32[2]"));
  EXPECT_THAT(caught([&] { cond(b.constant(true), give({x}), give({})); }).what,
              HasSubstr("the then branch gives 1 value, the else branch 0"));
  EXPECT_THAT(
      caught([&] { cond(b.constant(true), give({x}), [&] { return std::vector<Value>{sum(x)}; }); }).what,
      HasSubstr("result 0 is f32[2] in the then branch and f32[] in the else branch"));
  const std::vector<Value> carried = {x};
  EXPECT_THAT(caught([&] {
                while_loop(
                    carried, [](std::span<const Value> c) { return less(sum(c[0]), 1.0F); },
                    [](std::span<const Value> c) { return std::vector<Value>{sum(c[0])}; });
              }).what,
              HasSubstr("a loop must keep dtype and shape"));
  EXPECT_THAT(caught([&] {
                while_loop(
                    {}, [](std::span<const Value>) { return Value(); },
                    [](std::span<const Value>) { return std::vector<Value>(); });
              }).what,
              HasSubstr("at least one carried value"));
  const std::vector<std::vector<Value>> uneven = {{x}};
  EXPECT_THAT(caught([&] {
                replicated(b, 2, {}, uneven, [](std::span<const Value>) { return std::vector<Value>(); });
              }).what,
              HasSubstr("holds 1 value for 2 replicas"));
  EXPECT_THAT(caught([&] {
                replicated(b, 0, {}, {}, [](std::span<const Value>) { return std::vector<Value>(); });
              }).what,
              HasSubstr("at least one replica"));
}

// --- the order of effects

TEST(BuilderOrder, ReadsAreNotOrderedAmongThemselves) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1}));
  b.read(v);
  EXPECT_THAT(controls_of(b, b.read(v)), IsEmpty());
}

TEST(BuilderOrder, AWriteWaitsForTheReadsBeforeIt) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1}));
  const Value one = b.constant(vec({1}));
  b.read(v);
  b.read(v);
  EXPECT_THAT(controls_of(b, b.assign(v, one)), ElementsAre("v/read", "v/read_1"));
}

TEST(BuilderOrder, AReadWaitsForTheLastWriteOnly) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1}));
  const Value one = b.constant(vec({1}));
  b.assign(v, one);
  EXPECT_THAT(controls_of(b, b.assign_add(v, one)), ElementsAre("v/assign"));
  EXPECT_THAT(controls_of(b, b.read(v)), ElementsAre("v/assign_add"));
}

TEST(BuilderOrder, WhatIsReadAsDataNeedsNoControlEdge) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1}));
  const Value old = b.read(v);
  const Value update = b.assign(v, old);
  EXPECT_THAT(controls_of(b, update), IsEmpty());
  EXPECT_THAT(controls_of(b, b.assign_add(v, update)), IsEmpty());
}

TEST(BuilderOrder, VariablesDoNotWaitForEachOther) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1}));
  const VariableRef w = b.variable("w", vec({1}));
  const Value one = b.constant(vec({1}));
  b.assign(v, one);
  EXPECT_THAT(controls_of(b, b.assign(w, one)), IsEmpty());
}

TEST(BuilderOrder, RegionsCountWithWhatTheyUse) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1}));
  const Value one = b.constant(vec({1}));
  b.assign(v, one);
  const Value inside = cond(
      b.constant(true), [&] { return std::vector<Value>{b.assign_add(v, one) * 1.0F}; },
      [&] { return std::vector<Value>{one}; })[0];
  EXPECT_THAT(controls_of(b, inside), ElementsAre("v/assign"));
  EXPECT_THAT(controls_of(b, b.read(v)), ElementsAre("cond"));
}

TEST(BuilderOrder, ABarrierStandsBetween) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1}));
  const Value one = b.constant(vec({1}));
  b.assign(v, one);
  b.call("host", [] {});
  const NodeId barrier = b.call("barrier", [] {}, {.effects = Effect::kOpaque});
  EXPECT_EQ(b.graph().node(barrier).controls().size(), 2U);
  const NodeId after = b.call("after", [] {});
  ASSERT_EQ(b.graph().node(after).controls().size(), 1U);
  EXPECT_EQ(b.graph().node(after).controls()[0], barrier);
  EXPECT_TRUE(b.graph().node((one + 1.0F).id().node).controls().empty()) << "pure nodes do not care";
}

TEST(BuilderOrder, PlainEdgesCanBeAdded) {
  GraphBuilder b;
  std::vector<int> log;
  const NodeId first = b.call("first", [&] { log.push_back(1); });
  const NodeId second = b.call("second", [&] { log.push_back(2); });
  b.run_after(first, second);
  EXPECT_THROW(b.run_after(first, NodeId(99U)), InvalidArgument);
  Interpreter(b.finish()).run();
  EXPECT_THAT(log, ElementsAre(2, 1));
}

// --- captures

TEST(BuilderRegions, ValuesOfEnclosingGraphsAreCapturedOnce) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {});
  const Value y = b.placeholder("y", DType::kF32, {});
  const Value z = cond(
      less(x, y), [&] { return std::vector<Value>{x + x + y}; },
      [&] { return std::vector<Value>{y - x}; })[0];
  const Node& node = b.graph().node(z.id().node);
  EXPECT_EQ(node.inputs().size(), 3U) << "the predicate, x and y";
  for (const Graph& region : node.regions()) EXPECT_EQ(region.parameters().size(), 2U);
  b.result(z);
  Interpreter interpreter(b.finish());
  EXPECT_EQ(interpreter.run(list({Tensor::scalar(1.0F), Tensor::scalar(5.0F)}))[0].item(), 7);
  EXPECT_EQ(interpreter.run(list({Tensor::scalar(5.0F), Tensor::scalar(1.0F)}))[0].item(), -4);
}

TEST(BuilderRegions, CaptureThroughSeveralLevels) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {});
  const Value limit = b.placeholder("limit", DType::kF32, {});
  const std::vector<Value> initial = {x};
  const Value y = while_loop(
      initial, [&](std::span<const Value> c) { return less(c[0], limit); },
      [&](std::span<const Value> c) {
        return cond(
            less(c[0], 10.0F), [&] { return std::vector<Value>{c[0] * 2.0F + x}; },
            [&] { return std::vector<Value>{c[0] + limit}; });
      })[0];
  b.result(y);
  const Graph graph = b.finish();
  verify(graph);
  Interpreter interpreter(graph);
  // 1 -> 3 -> 7 -> 15 -> 115
  EXPECT_EQ(interpreter.run(list({Tensor::scalar(1.0F), Tensor::scalar(100.0F)}))[0].item(), 115);
}

TEST(BuilderRegions, ReplicatedBodiesSeeSharedCapturedAndTheirOwn) {
  GraphBuilder b;
  const Value captured = b.placeholder("captured", DType::kF32, {});
  const std::vector<Value> shared = {b.placeholder("shared", DType::kF32, {})};
  const std::vector<std::vector<Value>> own = {{b.constant(1.0F), b.constant(2.0F), b.constant(3.0F)},
                                               {b.constant(10.0F), b.constant(20.0F), b.constant(30.0F)}};
  const auto results = replicated(b, 3, shared, own, [&](std::span<const Value> in) {
    EXPECT_EQ(in.size(), 3U);
    return std::vector<Value>{in[0] * in[1] + in[2] + captured, in[1] * 1.0F};
  });
  ASSERT_EQ(results.size(), 2U);
  for (const auto& per_result : results) {
    ASSERT_EQ(per_result.size(), 3U);
    for (const Value& value : per_result) b.result(value);
  }
  const Graph graph = b.finish();
  verify(graph);
  Interpreter interpreter(graph);
  const std::vector<Tensor> out = interpreter.run(list({Tensor::scalar(1000.0F), Tensor::scalar(100.0F)}));
  const std::vector<double> expected = {1110, 1220, 1330, 1, 2, 3};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(out[i].item(), expected[i]) << i;
}

}  // namespace
}  // namespace lockstep
