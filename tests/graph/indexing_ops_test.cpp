// The value of each op that picks and places by index against a naive computation.
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
using testing::with_lanes;

std::vector<Tensor> evaluate(GraphBuilder& b, const std::vector<Tensor>& feeds) {
  const Graph graph = b.finish();
  const std::vector<Tensor> expected = Interpreter(graph).run(feeds);
  expect_same_tensors(compile(graph, Runtime({.threads = 2})).run(feeds), expected);
  expect_same_tensors(compile(graph, Runtime({.threads = 2}), with_lanes(Clustering::kOff)).run(feeds),
                      expected);
  return expected;
}

Tensor counting(const Shape& shape) {
  Tensor tensor = Tensor::empty(DType::kF32, shape);
  std::iota(tensor.data<float>().begin(), tensor.data<float>().end(), 0.0F);
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

TEST(Gather, NamesABadIndex) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3});
  const Value indices = b.placeholder("indices", DType::kI32, {2});
  b.result(gather(x, indices));
  const Graph graph = b.finish();
  const auto error = caught([&] {
    Interpreter(graph).run({counting({3}), Tensor::from<std::int32_t>({2}, {0, 3})});
  });
  EXPECT_THAT(error.what, HasSubstr("index 3 at position 1 is outside of [0, 3)"));
}

}  // namespace
}  // namespace lockstep
