// Tests: graph/ir/region_shapes.cpp, graph/ir/shape_values.cpp
// Shapes as values: what is known of them when, what they cost, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/check/structure.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/internal/plan.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/transform/rewriter.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using internal::make_host_plan;
using internal::Plan;
using testing::caught;
using ::testing::ElementsAre;
using testing::expect_same_tensors;
using testing::floats;
using ::testing::HasSubstr;
using testing::with_lanes;

Value ints(GraphBuilder& b, std::initializer_list<std::int64_t> values) {
  return b.constant(Tensor::from<std::int64_t>({static_cast<std::int64_t>(values.size())}, values));
}

Tensor counting(const Shape& shape) {
  Tensor tensor = Tensor::empty(DType::kF32, shape);
  float next = 0;
  for (float& element : tensor.data<float>()) element = next++;
  return tensor;
}

// The graph's results: by the interpreter, by the program, and both again after a round trip through text.
std::vector<Tensor> evaluate(const Graph& graph, const std::vector<Tensor>& feeds) {
  const std::vector<Tensor> expected = Interpreter(graph).run(feeds);
  expect_same_tensors(compile(graph, Runtime({.threads = 2})).run(feeds), expected);
  expect_same_tensors(compile(graph, Runtime({.threads = 2}), with_lanes(Clustering::kOff)).run(feeds),
                      expected);
  const Graph again = parse(print(graph));
  EXPECT_EQ(print(again), print(graph));
  verify(again);
  expect_same_tensors(compile(again, Runtime({.threads = 2})).run(feeds), expected);
  return expected;
}

std::unique_ptr<const Plan> plan_of(const Graph& graph, std::vector<TensorSpec> feeds) {
  const Runtime runtime({.threads = 1});
  return make_host_plan(graph, runtime, feeds, {});
}

// --- while a graph is built

TEST(ShapeOperands, AreKnownInPartWhileTheGraphIsBuilt) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 4, 6});
  const Value y = b.placeholder("y", DType::kF32, {kUnknown, 24});
  EXPECT_EQ(reshape(y, shape_of(x)).shape(), (Shape{kUnknown, 4, 6}));
  // Pieces of a shape, joined.
  const Value batch = slice(shape_of(x), {0}, {1});
  const Value inner = slice(shape_of(x), {1}, {3});
  EXPECT_EQ(reshape(y, concat({batch, inner}, 0)).shape(), (Shape{kUnknown, 4, 6}));
  // Arithmetic, element by element.
  EXPECT_EQ(reshape(y, shape_of(x) * ints(b, {1, 2, 1})).shape(), (Shape{kUnknown, 8, 6}));
  EXPECT_EQ(full(b, DType::kF32, shape_of(x) + ints(b, {0, 1, 0}), 0).shape(), (Shape{kUnknown, 5, 6}));
  // Through a gather, a transpose, a flip.
  EXPECT_EQ(full(b, DType::kF32, gather(shape_of(x), ints(b, {2, 0})), 0).shape(), (Shape{6, kUnknown}));
  EXPECT_EQ(full(b, DType::kF32, flip(shape_of(x)), 0).shape(), (Shape{6, 4, kUnknown}));
  // An op that is neither leaves nothing known but the rank.
  EXPECT_EQ(full(b, DType::kF32, expand_dims(sum(shape_of(x)), 0), 0).shape(), (Shape{kUnknown}));
  // All of it known: everything is.
  const Value z = b.placeholder("z", DType::kF32, {2, 3});
  EXPECT_EQ(full(b, DType::kF32, expand_dims(sum(shape_of(z)), 0), 0).shape(), (Shape{5}));
}

TEST(ShapeOperands, OneMissingDimensionFollowsFromTheNumberOfElements) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 3});
  const Value y = b.placeholder("y", DType::kF32, {6});
  const Value z = reshape(y, shape_of(x));
  EXPECT_EQ(z.shape(), (Shape{2, 3}));
  b.result(z);
  const Graph graph = b.finish();
  evaluate(graph, {counting({2, 3}), counting({6})});
  // It was taken for known, and is checked all the same.
  const auto error = caught([&] {
    compile(graph, Runtime({.threads = 1})).run(std::vector<Tensor>{counting({4, 3}), counting({6})});
  });
  EXPECT_THAT(error.what, HasSubstr("has 6 elements, which do not fill [4,3]"));
}

TEST(ShapeOperands, SharedArithmeticIsWalkedOnce) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1});
  Value shape = shape_of(x);
  for (int i = 0; i < 40; ++i) shape = shape * shape;  // 2^40 paths
  EXPECT_EQ(full(b, DType::kF32, shape, 0).shape(), (Shape{1}));
}

// --- what is refused

TEST(ShapeOperands, RefuseWhatIsKnownOnlyWhenTheStepRuns) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  const Value fed = b.placeholder("fed", DType::kI64, {1});
  const VariableRef variable = b.variable("v", Tensor::from<std::int64_t>({1}, {4}));
  const Value read = b.read(variable);
  const auto refusal = [&](const Value& shape) { return caught([&] { reshape(x, shape); }).what; };
  EXPECT_THAT(refusal(fed),
              HasSubstr("must follow from constants and from shapes (shape_of), but it depends on "
                        "'fed' (placeholder), whose contents are known only when the step runs"));
  EXPECT_THAT(refusal(fed * shape_of(x)), HasSubstr("'fed' (placeholder)"));
  EXPECT_THAT(refusal(read), HasSubstr("(read)"));
  const Value id = replica_id(b);
  EXPECT_THAT(caught([&] { iota(b, DType::kF32, id); }).what, HasSubstr("(replica_id)"));
  const std::vector<Value> either = cond(
      b.constant(true), [&] { return std::vector<Value>{ints(b, {4})}; },
      [&] { return std::vector<Value>{ints(b, {2})}; });
  EXPECT_THAT(refusal(either[0]), HasSubstr("(cond)"));
  EXPECT_THAT(refusal(x), HasSubstr("the shape must be an i64 vector, got f32[4]"));
  const Value half = b.constant(Tensor::from<float>({1}, {0.5F}));
  EXPECT_THAT(caught([&] { tile(x, half); }).what,
              HasSubstr("the repeats must be an i64 vector, got f32[1]"));
}

TEST(ShapeOperands, SizesKnownOnlyWhenTheStepRunsAreMaskedAsTheRefusalAdvises) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});  // four at most
  const Value size = b.placeholder("size", DType::kI64, {1});
  EXPECT_THAT(caught([&] { slice(x, b.constant(Tensor::from<std::int64_t>({1}, {0})), size); }).what,
              HasSubstr("mask what lies beyond: where(less(iota(b, DType::kI64, largest), size), x, 0)"));
  EXPECT_THAT(caught([&] { slice(x, size, b.constant(Tensor::from<std::int64_t>({1}, {1}))); }).what,
              HasSubstr("gather(x, index) takes a place that is known only when the step runs"));
  b.result(sum(where(less(iota(b, DType::kI64, 4), size), x, 0)));
  const Graph graph = b.finish();
  const Tensor values = Tensor::from<float>({4}, {1, 2, 4, 8});
  for (const auto& [count, expected] :
       std::vector<std::pair<std::int64_t, double>>{{0, 0}, {2, 3}, {4, 15}}) {
    const Tensor n = Tensor::from<std::int64_t>({1}, {count});
    EXPECT_EQ(evaluate(graph, {values, n})[0].item(), expected) << count;
  }
}

TEST(ShapeOperands, RefuseRandomDraws) {
  OpDef def;
  def.name = "test.random_count";
  def.effects = Effect::kRandom;
  def.infer = [](InferContext& c) { c.add_output(DType::kI64, Shape{1}); };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) { c.output<std::int64_t>(0)[0] = 4; };
  };
  if (OpRegistry::global().find(def.name) == nullptr) OpRegistry::global().add(std::move(def));
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  const Value draw = b.op1("test.random_count", {});
  EXPECT_THAT(caught([&] { reshape(x, draw); }).what, HasSubstr("(test.random_count)"));
  EXPECT_EQ(reshape(x, shape_of(draw) * 4).shape(), (Shape{4})) << "its shape is known";
}

TEST(ShapeOperands, OfAnUnsoundGraphAreRefusedByTheVerifier) {
  const char* text = R"(
%x = placeholder() : f32[4]
%s = shape_of(%x) : i64[1]
%t = add(%s) : i64[1]
%y = reshape(%x, %t) : f32[4]
return %y
)";
  const auto error = caught([&] { verify(parse(text)); });
  EXPECT_THAT(error.what, HasSubstr("add takes 2 inputs, got 1"));
  const char* wrong = R"(
%x = placeholder() : f32[4]
%s = shape_of(%x) : i64[1]
%t = add(%s, %s) : i64[3]
%y = reshape(%x, %t) : f32[4]
return %y
)";
  EXPECT_THAT(caught([&] { verify(parse(wrong)); }).what, HasSubstr("add"));
}

// --- when feeds have come

TEST(ShapeOperands, AreResolvedForEachShapeOfTheFeeds) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 2, 3});
  const Value shape = shape_of(x);
  const Value batch = slice(shape, {0}, {1});
  const Value flat = reshape(x, concat({batch, ints(b, {-1})}, 0));
  b.result(flat);
  b.result(reshape(flat, shape));
  b.result(shape * 2);
  const Graph graph = b.finish();
  const Program program = compile(graph, Runtime({.threads = 2}));
  for (const std::int64_t n : {3, 1, 5}) {
    const Tensor feed = counting({n, 2, 3});
    const std::vector<Tensor> results = evaluate(graph, {feed});
    EXPECT_TRUE(results[0].bit_equal(feed.reshape({n, 6}))) << n;
    EXPECT_TRUE(results[1].bit_equal(feed)) << n;
    EXPECT_THAT(results[2].data<std::int64_t>(), ElementsAre(2 * n, 4, 6));
    expect_same_tensors(program.run({{"x", feed}}), results);
  }
}

TEST(ShapeOperands, CostNothingWhenTheStepRuns) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 4});
  const Value pieces = concat({slice(shape_of(x), {0}, {1}), ints(b, {2}), ints(b, {2})}, 0);
  b.result(reshape(relu(x), pieces * ints(b, {1, 1, 1})));
  const Graph graph = b.finish();
  EXPECT_EQ(plan_of(graph, {{DType::kF32, {3, 4}}})->phases.size(), 1U) << "the relu alone";
  evaluate(graph, {counting({3, 4})});
}

TEST(ShapeOperands, ValuesThatOnlyGiveTheirShapeAreNotComputed) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  b.result(zeros_like(relu(relu(x) + 1)));
  const Graph graph = b.finish();
  EXPECT_EQ(plan_of(graph, {{DType::kF32, {1 << 20}}})->phases.size(), 1U) << "the zeros alone";
  evaluate(graph, {counting({7})});
}

TEST(ShapeOperands, DoNotKeepMemoryAlive) {
  const auto arena = [](bool late_shape) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {kUnknown, 1024});
    const Value a = relu(x);
    const Value total = sum(a, {1}, true);  // the last to read a
    const Value c = relu(x * 2 + total);
    const Value d = relu(sum(c, {1}, true) * 3 + x);
    b.result(sum(d));
    if (late_shape) b.result(sum(broadcast_to(sum(d), shape_of(a))));
    const Graph graph = b.finish();
    return plan_of(graph, {{DType::kF32, {64, 1024}}})->memory.arena_bytes[0];
  };
  const std::int64_t matrix = 64 * 1024 * 4;
  // Another matrix for the broadcast, which may take the place of one that is done.
  EXPECT_LE(arena(true), arena(false) + matrix / 2);
}

// --- regions

TEST(ShapeOperands, WorkInsideBranches) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 2});
  const Value p = b.placeholder("p", DType::kBool, {});
  const Value shape = shape_of(x);           // outside
  const Value flat = reshape(x, Shape{-1});  // captured
  const Value twice = shape * ints(b, {1, 1});
  const std::vector<Value> result = cond(
      p, [&] { return std::vector<Value>{reshape(flat + 1, shape)}; },
      [&] { return std::vector<Value>{broadcast_to(sum(flat), twice)}; });
  EXPECT_EQ(result[0].shape(), (Shape{kUnknown, 2}));
  b.result(result[0]);
  const Graph graph = b.finish();
  EXPECT_THAT(floats(evaluate(graph, {counting({2, 2}), Tensor::scalar(true)})[0]), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(floats(evaluate(graph, {counting({2, 2}), Tensor::scalar(false)})[0]), ElementsAre(6, 6, 6, 6));
}

TEST(ShapeOperands, WorkInsideLoops) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 2});
  const Value shape = shape_of(x);
  const std::vector<Value> end = while_loop(
      std::vector<Value>{x, b.constant(0.0F)}, [&](std::span<const Value> v) { return less(v[1], 3); },
      [&](std::span<const Value> v) {
        const Value flat = reshape(v[0], Shape{-1});
        const Value back = reshape(flat * 2, shape);
        return std::vector<Value>{sum_to(back, shape_of(v[0])), v[1] + 1};
      });
  b.result(end[0]);
  const Graph graph = b.finish();
  EXPECT_THAT(floats(evaluate(graph, {counting({2, 2})})[0]), ElementsAre(0, 8, 16, 24));
}

TEST(ShapeOperands, ReplicasHaveShapesOfTheirOwn) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 2});
  const Value y = b.placeholder("y", DType::kF32, {kUnknown, 2});
  const auto results =
      replicated(b, 2, {}, std::vector<std::vector<Value>>{{x, y}},
                 [&](std::span<const Value> v) { return std::vector<Value>{ones_like(v[0])}; });
  b.result(results[0][0]);
  b.result(results[0][1]);
  const std::vector<Tensor> out = evaluate(b.finish(), {counting({1, 2}), counting({3, 2})});
  EXPECT_EQ(out[0].shape(), (Shape{1, 2}));
  EXPECT_EQ(out[1].shape(), (Shape{3, 2}));
}

// --- passes

TEST(ShapeOperands, ACloneTakesTheShapesOfItsOwnInputs) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {8, 2});
  const Value half = b.placeholder("half", DType::kF32, {4, 2});
  const Value shape = shape_of(x);
  const Value scalar = b.constant(1.0F);
  const Value filled = broadcast_to(scalar, shape);
  b.result(filled);
  const Value other = shape_of(half);
  b.result(other);
  Graph graph = b.finish();
  Rewriter rewriter(graph, "test");
  const ValueId inputs[] = {scalar.id(), other.id()};
  const NodeId clone = rewriter.clone(filled.id().node, "clone", inputs);
  EXPECT_EQ(graph.node(clone).outputs()[0].shape, (Shape{4, 2}));
}

}  // namespace
}  // namespace lockstep
