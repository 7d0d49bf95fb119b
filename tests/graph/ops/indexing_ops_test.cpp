// Tests: graph/ops/indexing.cpp
// The value of each op that picks and places by index against a naive computation.
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/gradients.h"
#include "support/op_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::ElementsAre;
using testing::evaluate;
using testing::floats;
using ::testing::HasSubstr;

Tensor counting(const Shape& shape) {
  Tensor tensor = Tensor::empty(DType::kF32, shape);
  float next = 0;
  for (float& element : tensor.data<float>()) element = next++;
  return tensor;
}

TEST(Gather, PicksRowsAndScatterAddPutsThemBack) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 2});
  const Value indices = b.placeholder("indices", DType::kI64, {kUnknown});
  const Value rows = gather(x, indices);
  b.result(rows);
  b.result(scatter_add(indices, rows, shape_of(x)));
  const std::vector<Tensor> results =
      evaluate(b, {counting({3, 2}), Tensor::from<std::int64_t>({3}, {2, 0, 2})});
  EXPECT_THAT(floats(results[0]), ElementsAre(4, 5, 0, 1, 4, 5));
  EXPECT_THAT(floats(results[1]), ElementsAre(0, 1, 0, 0, 8, 10));
}

TEST(Gather, ReplacesAnyAxisByTheShapeOfTheIndices) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 3, kUnknown});
  const Value indices = b.placeholder("indices", DType::kI32, {2, 2});
  const Value scalar = b.placeholder("scalar", DType::kI64, {});
  const Value y = gather(x, indices, 1);
  EXPECT_EQ(y.shape(), (Shape{2, 2, 2, kUnknown}));
  b.result(y);
  b.result(gather(x, scalar, -1));
  const std::vector<Tensor> results =
      evaluate(b, {counting({2, 3, 2}), Tensor::from<std::int32_t>({2, 2}, {0, 2, 1, 1}),
                   Tensor::scalar(std::int64_t{1})});
  EXPECT_THAT(floats(results[0]), ElementsAre(0, 1, 4, 5, 2, 3, 2, 3, 6, 7, 10, 11, 8, 9, 8, 9));
  EXPECT_EQ(results[1].shape(), (Shape{2, 3}));
  EXPECT_THAT(floats(results[1]), ElementsAre(1, 3, 5, 7, 9, 11));
}

TEST(Gather, OfNothingAndFromNothing) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, kUnknown});
  const Value indices = b.placeholder("indices", DType::kI64, {kUnknown});
  b.result(gather(x, indices));
  const Graph graph = b.finish();
  const Tensor none = Tensor::empty(DType::kI64, {0});
  EXPECT_EQ(Interpreter(graph).run({counting({3, 2}), none})[0].shape(), (Shape{0, 2}));
  EXPECT_EQ(Interpreter(graph).run({counting({0, 2}), none})[0].shape(), (Shape{0, 2}));
}

TEST(Gather, NamesABadIndex) {
  for (const std::int32_t bad : {3, -1}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {3});
    const Value indices = b.placeholder("indices", DType::kI32, {2});
    b.result(gather(x, indices));
    const Graph graph = b.finish();
    const std::vector<Tensor> feeds{counting({3}), Tensor::from<std::int32_t>({2}, {0, bad})};
    const std::string expected = str("index ", bad, " at position 1 is outside of [0, 3)");
    EXPECT_THAT(caught([&] { Interpreter(graph).run(feeds); }).what, HasSubstr(expected));
    EXPECT_THAT(caught([&] { compile(graph, Runtime({.threads = 1})).run(feeds); }).what,
                HasSubstr(expected));
  }
}

TEST(Gather, RefusesOtherIndices) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3});
  EXPECT_THAT(caught([&] { gather(x, x); }).what, HasSubstr("indices must be i32 or i64, got f32[3]"));
  const Value i = b.placeholder("i", DType::kI64, {3});
  EXPECT_THAT(caught([&] { gather(x, i, 1); }).what, HasSubstr("axis 1 is outside of a value of rank 1"));
}

TEST(ScatterAdd, OfManyRowsIsCutIntoShards) {
  constexpr std::int64_t kRows = 700, kColumns = 513, kCount = 2000;
  Tensor indices = Tensor::empty(DType::kI64, {kCount});
  Tensor values = Tensor::empty(DType::kF32, {kCount, kColumns});
  std::uint32_t state = 1;
  const auto next = [&] { return state = state * 1664525U + 1013904223U; };
  for (std::int64_t& index : indices.data<std::int64_t>())
    index = static_cast<std::int64_t>((next() >> 8U) % kRows);
  for (float& value : values.data<float>()) value = static_cast<float>(next() >> 8U) / 1e6F;
  std::vector<float> expected(kRows * kColumns, 0.F);
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto row = static_cast<std::size_t>(indices.data<std::int64_t>()[i]);
    for (std::size_t k = 0; k < kColumns; ++k)
      expected[row * kColumns + k] += values.data<float>()[i * kColumns + k];
  }
  GraphBuilder b;
  const Value i = b.placeholder("i", DType::kI64, {kUnknown});
  const Value v = b.placeholder("v", DType::kF32, {kUnknown, kColumns});
  const Value shape = b.constant(Tensor::from<std::int64_t>({2}, {kRows, kColumns}));
  b.result(scatter_add(i, v, shape));
  const std::vector<Tensor> results = evaluate(b, {indices, values});
  EXPECT_EQ(floats(results[0]), expected) << "in order of the indices, to the bit";
}

TEST(ScatterAdd, SaysWhatDoesNotFit) {
  GraphBuilder b;
  const Value i = b.placeholder("i", DType::kI64, {2});
  const Value v = b.placeholder("v", DType::kF32, {3, 4});
  const Value shape = b.constant(Tensor::from<std::int64_t>({2}, {8, 4}));
  EXPECT_THAT(caught([&] { scatter_add(i, v, shape); }).what,
              HasSubstr("got values [3,4] for indices [2] and shape [8,4]"));
  EXPECT_THAT(caught([&] { scatter_add(v, v, shape); }).what, HasSubstr("indices must be i32 or i64"));
}

TEST(SegmentSum, AddsRowsByIdInAnyOrder) {
  GraphBuilder b;
  const Value values = b.placeholder("values", DType::kF32, {kUnknown, 2});
  const Value ids = b.placeholder("ids", DType::kI32, {kUnknown});
  b.result(segment_sum(values, ids, 4));
  b.result(segment_sum(values, ids, shape_of(ids)));
  const std::vector<Tensor> results =
      evaluate(b, {counting({3, 2}), Tensor::from<std::int32_t>({3}, {2, 0, 2})});
  EXPECT_EQ(results[0].shape(), (Shape{4, 2}));
  EXPECT_THAT(floats(results[0]), ElementsAre(2, 3, 0, 0, 4, 6, 0, 0));
  EXPECT_THAT(floats(results[1]), ElementsAre(2, 3, 0, 0, 4, 6));
  GraphBuilder bad;
  EXPECT_THAT(caught([&] { segment_sum(bad.constant(1.F), bad.constant(1.F), 4); }).what,
              HasSubstr("a scalar has no rows"));
}

TEST(OneHot, MarksTheIndex) {
  GraphBuilder b;
  const Value indices = b.placeholder("indices", DType::kI64, {kUnknown, 2});
  b.result(one_hot(indices, 3));
  b.result(one_hot(indices, 3, DType::kBool));
  const std::vector<Tensor> results = evaluate(b, {Tensor::from<std::int64_t>({1, 2}, {2, 0})});
  EXPECT_EQ(results[0].shape(), (Shape{1, 2, 3}));
  EXPECT_THAT(floats(results[0]), ElementsAre(0, 0, 1, 1, 0, 0));
  EXPECT_THAT(results[1].data<bool>(), ElementsAre(false, false, true, true, false, false));
  GraphBuilder bad;
  bad.result(one_hot(bad.constant(std::int64_t{3}), 3));
  const Graph graph = bad.finish();
  EXPECT_THAT(caught([&] { Interpreter(graph).run(std::vector<Tensor>{}); }).what,
              HasSubstr("index 3 at position 0 is outside of [0, 3)"));
}

TEST(Gather, GivesSlicesAsItsGradient) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, kUnknown});
  const Value indices = b.placeholder("indices", DType::kI64, {2, kUnknown});
  const std::vector<Gradient> g = gradients(sum(gather(x, indices)), {x});
  ASSERT_TRUE(g[0].is_sparse());
  b.result(g[0].slices().indices);
  b.result(g[0].slices().values);
  b.result(to_dense(g[0]));
  const std::vector<Tensor> results =
      evaluate(b, {counting({3, 2}), Tensor::from<std::int64_t>({2, 2}, {2, 0, 2, 2})});
  EXPECT_THAT(results[0].data<std::int64_t>(), ElementsAre(2, 0, 2, 2));
  EXPECT_EQ(results[1].shape(), (Shape{4, 2}));
  EXPECT_THAT(floats(results[2]), ElementsAre(1, 1, 0, 0, 3, 3));
}

}  // namespace
}  // namespace lockstep
