// Tests: graph/train/clipping.cpp
// Clipping: norms and scales of dense gradients and of slices.
#include "lockstep/graph/train/clipping.h"

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using testing::floats;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using testing::vec;

// What a function makes of fed gradients, by program and by interpreter.
std::vector<Tensor> run(GraphBuilder& b, const std::vector<Value>& results,
                        const std::vector<Tensor>& feeds) {
  for (const Value& result : results) b.result(result);
  const Graph graph = b.finish();
  Interpreter interpreter(graph);
  std::vector<Tensor> expected = interpreter.run(feeds);
  testing::expect_same_tensors(compile(graph, Runtime({.threads = 1})).run(feeds), expected);
  return expected;
}

TEST(Clipping, ByValueBoundsEveryElement) {
  GraphBuilder b;
  const Value g = b.placeholder("g", DType::kF32, {4});
  const Value clipped = clip_by_value(g, -1, 2);
  EXPECT_THAT(floats(run(b, {clipped}, {vec({-5, -0.5F, 2, 7})})[0]), ElementsAre(-1, -0.5F, 2, 2));
}

TEST(Clipping, ByNormScalesWhatIsTooLong) {
  // |(3, 4)| = 5: times 2 / 5.
  GraphBuilder b;
  const Value g = b.placeholder("g", DType::kF32, {2});
  const Value clipped = clip_by_norm(g, 2);
  const Value kept = clip_by_norm(g, 6);
  const std::vector<Tensor> results = run(b, {clipped, kept}, {vec({3, 4})});
  EXPECT_THAT(floats(results[0]), Pointwise(FloatNear(1e-6F), {1.2F, 1.6F}));
  EXPECT_TRUE(results[1].bit_equal(vec({3, 4}))) << "gradients within the bound keep their bits";
}

TEST(Clipping, ByNormLeavesZerosAlone) {
  GraphBuilder b;
  const Value g = b.placeholder("g", DType::kF32, {2});
  const Value clipped = clip_by_norm(g, 2);
  EXPECT_THAT(floats(run(b, {clipped}, {vec({0, 0})})[0]), ElementsAre(0, 0));
}

// A bound that says "none", or nearly nothing, and that f32 cannot hold.
TEST(Clipping, BoundsBeyondTheDtypeAreBounds) {
  GraphBuilder b;
  const Value g = b.placeholder("g", DType::kF32, {2});
  const Value zero = b.placeholder("zero", DType::kF32, {2});
  const Value kept = clip_by_norm(g, 1e300);
  const Value tiny = clip_by_norm(g, 1e-300);
  const Value still_zero = clip_by_norm(zero, 1e-300);
  const std::vector<Tensor> results = run(b, {kept, tiny, still_zero}, {vec({3, 4}), vec({0, 0})});
  EXPECT_THAT(floats(results[0]), ElementsAre(3, 4));
  EXPECT_THAT(floats(results[1]), Pointwise(FloatNear(1e-30F), {0.0F, 0.0F}));
  EXPECT_THAT(floats(results[2]), ElementsAre(0, 0));
}

TEST(Clipping, ByGlobalNormKeepsTheDirectionOfAll) {
  // sqrt(1 + 4 + 4 + 16) = 5, in f64 since one of them is: all times 1 / 5.
  GraphBuilder b;
  const Value g = b.placeholder("g", DType::kF32, {3});
  const Value h = b.placeholder("h", DType::kF64, {});
  const GradientsAndVariables grads = {{g, {"a"}}, {h, {"b"}}};
  const ClippedGradients clipped = clip_by_global_norm(grads, 1);
  EXPECT_EQ(clipped.norm.spec(), (TensorSpec{DType::kF64, {}}));
  EXPECT_EQ(clipped.gradients[1].variable, VariableRef{"b"});
  const Value first = clipped.gradients[0].gradient, second = clipped.gradients[1].gradient;
  EXPECT_EQ(first.dtype(), DType::kF32);
  const std::vector<Tensor> results =
      run(b, {clipped.norm, first, second}, {vec({1, 2, -2}), Tensor::scalar(4.0)});
  EXPECT_NEAR(results[0].item(), 5, 1e-12);
  EXPECT_THAT(floats(results[1]), Pointwise(FloatNear(1e-6F), {0.2F, 0.4F, -0.4F}));
  EXPECT_NEAR(results[2].item(), 0.8, 1e-12);
}

TEST(Clipping, SlicesAreScaledByTheirRows) {
  // Rows (3, 0) and (0, 4): 5. Row 1 is named twice, and counts as two rows.
  GraphBuilder b;
  const Value indices = b.constant(Tensor::from<std::int64_t>({2}, {1, 1}));
  const Value shape = b.constant(Tensor::from<std::int64_t>({2}, {3, 2}));
  const Value rows = b.placeholder("rows", DType::kF32, {2, 2});
  const Gradient slices = IndexedSlices{indices, rows, shape};
  const std::vector<Gradient> list = {slices};
  const Value norm = global_norm(list);
  const std::vector<Gradient> clipped = clip_by_global_norm(list, 2.5);
  ASSERT_TRUE(clipped[0].is_sparse());
  EXPECT_EQ(clipped[0].slices().indices, indices);
  const Gradient bounded = clip_by_value(slices, -1, 1);
  ASSERT_TRUE(bounded.is_sparse());
  const std::vector<Tensor> results = run(b, {norm, clipped[0].slices().values, bounded.slices().values},
                                          {Tensor::from<float>({2, 2}, {3, 0, 0, 4})});
  EXPECT_EQ(results[0].item(), 5);
  EXPECT_THAT(floats(results[1]), ElementsAre(1.5F, 0, 0, 2));
  EXPECT_THAT(floats(results[2]), ElementsAre(1, 0, 0, 1));
}

TEST(Clipping, SixteenBitGradientsDoNotOverflow) {
  // 300^2 is beyond f16, whose largest number is 65504.
  GraphBuilder b;
  const Value g = b.placeholder("g", DType::kF16, {4});
  const std::vector<Gradient> list = {g};
  const Value norm = global_norm(list);
  const Value clipped = clip_by_norm(g, 6);
  EXPECT_EQ(norm.dtype(), DType::kF32);
  EXPECT_EQ(clipped.dtype(), DType::kF16);
  const std::vector<Tensor> results = run(b, {norm, clipped}, {Tensor::full(DType::kF16, {4}, 300)});
  EXPECT_EQ(results[0].item(), 600);
  EXPECT_TRUE(results[1].bit_equal(Tensor::full(DType::kF16, {4}, 3)));
}

TEST(Clipping, ANanIsSeenInAllGradients) {
  GraphBuilder b;
  const Value g = b.placeholder("g", DType::kF32, {2});
  const Value h = b.placeholder("h", DType::kF32, {1});
  const std::vector<Gradient> list = {g, h};
  const std::vector<Gradient> clipped = clip_by_global_norm(list, 1);
  const std::vector<Tensor> results =
      run(b, {clipped[0], clipped[1]}, {vec({1, std::numeric_limits<float>::quiet_NaN()}), vec({1})});
  EXPECT_TRUE(std::isnan(floats(results[0])[0]));
  EXPECT_TRUE(std::isnan(floats(results[1])[0]));
}

TEST(Clipping, SitsBetweenComputingAndApplying) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::scalar(10.0F));
  const Value x = b.read(w);
  const Sgd sgd(0.5);
  const GradientsAndVariables grads = sgd.compute_gradients(x * x, {w});  // 20
  sgd.apply_gradients(clip_by_global_norm(grads, 1).gradients);
  const Program program = compile(b.finish(), Runtime({.threads = 1}));
  program.run();
  EXPECT_EQ(program.variables().value("w").item(), 9.5);
}

TEST(Clipping, RefusesBoundsAndGradientsWithoutMeaning) {
  GraphBuilder b;
  const Value g = b.placeholder("g", DType::kF32, {2});
  const Value i = b.placeholder("i", DType::kI32, {2});
  EXPECT_THAT(caught([&] { clip_by_norm(g, 0); }).what,
              HasSubstr("the largest norm is 0; it must be finite and above 0"));
  EXPECT_THAT(caught([&] { clip_by_value(g, 2, 1); }).what, HasSubstr("the bounds are [2, 1]"));
  EXPECT_THAT(caught([&] { clip_by_value(i, 1, 2); }).what, HasSubstr("gradients are floating"));
  EXPECT_THAT(caught([&] { clip_by_norm(Gradient(), 1); }).what, HasSubstr("gradient 0 is empty"));
  EXPECT_THAT(caught([&] { global_norm(std::vector<Gradient>()); }).what,
              HasSubstr("there are no gradients"));
  const auto error = caught([&] { clip_by_global_norm(GradientsAndVariables(), 1); });
  EXPECT_THAT(error.place.file, HasSubstr("clipping_test.cpp"));
}

}  // namespace
}  // namespace lockstep
