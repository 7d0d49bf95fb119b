// Tests: core/kernels/layer_norm.cpp, core/kernels/scan.cpp, core/kernels/select.cpp,
//        core/kernels/softmax.cpp
// Kernels that work item by item (softmax, cumsum, argmax, top_k, layer_norm): however the items are cut, and
// whether or not the output is the input, the bits are the same. Values are checked in tests/graph.
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/layer_norm.h"
#include "lockstep/core/kernels/scan.h"
#include "lockstep/core/kernels/select.h"
#include "lockstep/core/kernels/softmax.h"
#include "support/random_tensors.h"

namespace lockstep::kernels {
namespace {

constexpr DType kFloating[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

struct Sizes {
  std::int64_t outer, n, inner;
  std::int64_t items() const { return outer * inner; }
};
constexpr Sizes kSizes[] = {{5, 10, 1},  {1, 3000, 1}, {7, 33, 1}, {300, 3, 1},
                            {2, 5, 300}, {3, 4, 7},    {1, 1, 1}};

// Computes the items of `out` in one piece and in several.
void expect_no_seams(std::int64_t items, Tensor& out, Dice& dice,
                     const std::function<void(std::int64_t, std::int64_t)>& run) {
  run(0, items);
  const Tensor whole = out.clone();
  const std::vector<std::int64_t> cuts = random_cuts(items, dice);
  for (std::size_t i = 1; i < cuts.size(); ++i) run(cuts[i - 1], cuts[i]);
  EXPECT_TRUE(out.bit_equal(whole)) << out.spec();
}

TEST(Items, CutsChangeNoBit) {
  Dice dice(1);
  for (const auto& [outer, n, inner] : kSizes) {
    for (const DType dtype : kFloating) {
      const Shape shape{outer, n, inner};
      const std::int64_t items = outer * inner;
      const Tensor x = random_tensor(dtype, shape, dice), g = random_tensor(dtype, shape, dice);
      Tensor out = Tensor::zeros(dtype, shape);
      const auto size = n, width = inner;
      for (const bool log : {false, true}) {
        expect_no_seams(items, out, dice, [&](std::int64_t begin, std::int64_t end) {
          softmax(dtype, log, x.raw(), out.raw(), size, width, begin, end);
        });
      }
      expect_no_seams(items, out, dice, [&](std::int64_t begin, std::int64_t end) {
        softmax_grad(dtype, x.raw(), g.raw(), out.raw(), size, width, begin, end);
      });
      expect_no_seams(items, out, dice, [&](std::int64_t begin, std::int64_t end) {
        cumsum(dtype, x.raw(), out.raw(), size, width, false, true, begin, end);
      });
      std::vector<float> products(static_cast<std::size_t>(shape.num_elements()));
      expect_no_seams(items, out, dice, [&](std::int64_t begin, std::int64_t end) {
        prod_of_others(dtype, x.raw(), out.raw(), products.data(), size, width, begin, end);
      });
      Tensor index = Tensor::zeros(DType::kI64, {items});
      expect_no_seams(items, index, dice, [&](std::int64_t begin, std::int64_t end) {
        arg_extreme(dtype, true, x.raw(), index.data<std::int64_t>().data(), size, width, begin, end);
      });
    }
  }
}

TEST(Items, CutsOfRowsChangeNoBit) {
  Dice dice(2);
  for (const auto& [rows, n, inner] : kSizes) {
    for (const DType dtype : kFloating) {
      const std::int64_t count = rows, d = n;
      const Shape shape{rows, n};
      const Tensor x = random_tensor(dtype, shape, dice), weights = random_tensor(dtype, shape, dice);
      const Tensor gamma = random_tensor(dtype, {n}, dice), beta = random_tensor(dtype, {n}, dice);
      const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      Tensor out = Tensor::zeros(dtype, shape), loss = Tensor::zeros(dtype, {rows});
      Tensor mean = Tensor::zeros(wide, {rows}), rstd = Tensor::zeros(wide, {rows});
      expect_no_seams(count, out, dice, [&](std::int64_t begin, std::int64_t end) {
        softmax_cross_entropy(dtype, x.raw(), dtype, weights.raw(), d, loss.raw(), out.raw(), begin, end);
      });
      expect_no_seams(count, out, dice, [&](std::int64_t begin, std::int64_t end) {
        softmax_cross_entropy_grad(dtype, x.raw(), dtype, weights.raw(), loss.raw(), d, out.raw(), begin,
                                   end);
      });
      expect_no_seams(count, out, dice, [&](std::int64_t begin, std::int64_t end) {
        layer_norm(dtype, x.raw(), gamma.raw(), beta.raw(), 1e-5, d, out.raw(), mean.raw(), rstd.raw(), begin,
                   end);
      });
      std::vector<double> partial(static_cast<std::size_t>(2 * d));
      expect_no_seams(count, out, dice, [&](std::int64_t begin, std::int64_t end) {
        layer_norm_grad(dtype, x.raw(), gamma.raw(), mean.raw(), rstd.raw(), weights.raw(), d, out.raw(),
                        partial.data(), begin, end);
      });
      Tensor values = Tensor::zeros(dtype, {rows, 1}), indices = Tensor::zeros(DType::kI64, {rows, 1});
      expect_no_seams(count, values, dice, [&](std::int64_t begin, std::int64_t end) {
        top_k(dtype, x.raw(), d, 1, values.raw(), indices.data<std::int64_t>().data(), begin, end);
      });
    }
  }
}

TEST(Items, OutputsMayBeInputs) {
  Dice dice(3);
  for (const auto& [outer, n, inner] : kSizes) {
    for (const DType dtype : kFloating) {
      const Shape shape{outer, n, inner};
      const std::int64_t items = outer * inner;
      const Tensor x = random_tensor(dtype, shape, dice), g = random_tensor(dtype, shape, dice);
      Tensor apart = Tensor::zeros(dtype, shape), in_place = x.clone();
      softmax(dtype, false, x.raw(), apart.raw(), n, inner, 0, items);
      softmax(dtype, false, in_place.raw(), in_place.raw(), n, inner, 0, items);
      EXPECT_TRUE(in_place.bit_equal(apart));
      softmax_grad(dtype, x.raw(), g.raw(), apart.raw(), n, inner, 0, items);
      in_place = x.clone();
      softmax_grad(dtype, in_place.raw(), g.raw(), in_place.raw(), n, inner, 0, items);
      EXPECT_TRUE(in_place.bit_equal(apart));
      in_place = g.clone();
      softmax_grad(dtype, x.raw(), in_place.raw(), in_place.raw(), n, inner, 0, items);
      EXPECT_TRUE(in_place.bit_equal(apart));
      cumsum(dtype, x.raw(), apart.raw(), n, inner, true, false, 0, items);
      in_place = x.clone();
      cumsum(dtype, in_place.raw(), in_place.raw(), n, inner, true, false, 0, items);
      EXPECT_TRUE(in_place.bit_equal(apart));
      if (inner != 1) continue;
      const Tensor labels = Tensor::full(DType::kI64, {outer}, static_cast<double>(n / 2));
      const Tensor flow = random_tensor(dtype, {outer}, dice);
      softmax_cross_entropy_grad(dtype, x.raw(), DType::kI64, labels.raw(), flow.raw(), n, apart.raw(), 0,
                                 outer);
      in_place = x.clone();
      softmax_cross_entropy_grad(dtype, in_place.raw(), DType::kI64, labels.raw(), flow.raw(), n,
                                 in_place.raw(), 0, outer);
      EXPECT_TRUE(in_place.bit_equal(apart));
    }
  }
}

TEST(Items, RefuseDTypesTheyDoNotTake) {
  std::int64_t memory[4] = {};
  EXPECT_THROW(softmax(DType::kI32, false, memory, memory, 1, 1, 0, 1), InvalidArgument);
  EXPECT_THROW(cumsum(DType::kBool, memory, memory, 1, 1, false, false, 0, 1), InvalidArgument);
  EXPECT_THROW(arg_extreme(DType::kBool, true, memory, memory, 1, 1, 0, 1), InvalidArgument);
  EXPECT_THROW(softmax_cross_entropy(DType::kF32, memory, DType::kF64, memory, 1, memory, memory, 0, 1),
               InvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
