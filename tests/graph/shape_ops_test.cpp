// The value of each op that changes shapes against a naive computation.
#include <numeric>

#include "lockstep/graph/interpreter.h"
#include "lockstep/graph/ops.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::ElementsAre;
using testing::expect_same_tensors;
using testing::floats;
using ::testing::HasSubstr;
using testing::vec;
using testing::with_lanes;

// The graph's results on these feeds: by the program, inline and call by call, and by the interpreter; all agree.
std::vector<Tensor> evaluate(GraphBuilder& b, const std::vector<Tensor>& feeds) {
  const Graph graph = b.finish();
  const std::vector<Tensor> expected = Interpreter(graph).run(feeds);
  expect_same_tensors(compile(graph, Runtime({.threads = 2})).run(feeds), expected);
  expect_same_tensors(compile(graph, Runtime({.threads = 2}), with_lanes(Clustering::kOff)).run(feeds),
                      expected);
  return expected;
}

// 0, 1, 2, ...
Tensor counting(const Shape& shape) {
  Tensor tensor = Tensor::empty(DType::kF32, shape);
  std::iota(tensor.data<float>().begin(), tensor.data<float>().end(), 0.0F);
  return tensor;
}

TEST(ShapeOf, GivesTheFedShape) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 3});
  b.result(shape_of(x));
  const std::vector<Tensor> results = evaluate(b, {counting({5, 3})});
  EXPECT_THAT(results[0].data<std::int64_t>(), ElementsAre(5, 3));
}

TEST(Reshape, ComputesOneDimension) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 6});
  const Value y = reshape(x, {-1, 2, 2});
  EXPECT_EQ(y.shape(), (Shape{kUnknown, 2, 2}));
  b.result(y);
  b.result(reshape(y, shape_of(x)));
  const Tensor feed = counting({2, 6});
  const std::vector<Tensor> results = evaluate(b, {feed});
  EXPECT_TRUE(results[0].bit_equal(feed.reshape({3, 2, 2})));
  EXPECT_TRUE(results[1].bit_equal(feed));
}

TEST(BroadcastTo, RepeatsAndSumToAddsUpAgain) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 1});
  const Value like = b.placeholder("like", DType::kF32, {2, kUnknown, 3});
  const Value y = broadcast_to(x, shape_of(like));
  b.result(y);
  b.result(sum_to(y, shape_of(x)));
  const std::vector<Tensor> results = evaluate(b, {counting({2, 1}), counting({2, 2, 3})});
  EXPECT_THAT(floats(results[0]), ElementsAre(0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(floats(results[1]), ElementsAre(0, 6));
}

TEST(ZerosLike, FollowsTheFedShape) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  b.result(zeros_like(x));
  b.result(ones_like(x));
  const std::vector<Tensor> results = evaluate(b, {counting({2})});
  EXPECT_THAT(floats(results[0]), ElementsAre(0, 0));
  EXPECT_THAT(floats(results[1]), ElementsAre(1, 1));
}

TEST(Concat, JoinsAlongAnAxis) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, kUnknown});
  const Value y = b.placeholder("y", DType::kF32, {kUnknown, 1});
  const Value joined = concat({x, y}, -1);
  EXPECT_EQ(joined.shape(), (Shape{2, kUnknown}));
  b.result(joined);
  const std::vector<Tensor> results =
      evaluate(b, {counting({2, 2}), Tensor::from<float>({2, 1}, {8.F, 9.F})});
  EXPECT_EQ(results[0].shape(), (Shape{2, 3}));
  EXPECT_THAT(floats(results[0]), ElementsAre(0, 1, 8, 2, 3, 9));
}

}  // namespace
}  // namespace lockstep
