// Tests: graph/ops/convolution.cpp, graph/ops/pooling.cpp, core/kernels/conv.cpp, core/kernels/pool.cpp,
//        graph/ops/rules/windows.cpp
// tests/graph/ops/convolution_ops_test.cpp - convolution and pooling against their definitions, and their
// gradients.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "support/gradient_check.h"
#include "support/on_card.h"
#include "support/program_test.h"
#include "support/random_tensors.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::ElementsAre;
using testing::expect_same_tensors;
using testing::floats;
using ::testing::HasSubstr;
using testing::with_lanes;

constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

std::vector<Tensor> run_both(GraphBuilder& b, const std::vector<Tensor>& feeds) {
  const Graph graph = b.finish();
  EXPECT_EQ(print(parse(print(graph))), print(graph));
  const std::vector<Tensor> expected = Interpreter(graph).run(feeds);
  const std::vector<Tensor> actual = compile(graph, Runtime({.threads = 2}), with_lanes()).run(feeds);
  expect_same_tensors(actual, expected);
  testing::expect_same_on_card(graph, feeds);
  return actual;
}

std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> values;
  visit_dtype(tensor.dtype(), [&]<class T>(T) {
    for (const T value : tensor.data<T>()) {
      if constexpr (std::is_arithmetic_v<T>) {
        values.push_back(static_cast<double>(value));
      } else {
        values.push_back(static_cast<double>(static_cast<float>(value)));
      }
    }
  });
  return values;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-9;
    case DType::kBF16: return 0x1p-6;
    case DType::kF32: return 0x1p-18;
    default: return 0x1p-46;
  }
}

// Where windows lie along one axis, from the definition.
struct Axis {
  std::int64_t out, before;
};
Axis axis_of(const Padding& padding, std::size_t which, std::int64_t in, std::int64_t size,
             std::int64_t stride, std::int64_t dilation) {
  const std::int64_t reach = (size - 1) * dilation + 1;
  if (padding.kind == Padding::Kind::kSame) {
    const std::int64_t out = (in + stride - 1) / stride;
    return {out, std::max<std::int64_t>((out - 1) * stride + reach - in, 0) / 2};
  }
  const std::int64_t before = padding.extents[2 * which], after = padding.extents[2 * which + 1];
  return {(in + before + after - reach) / stride + 1, before};
}

struct ConvCase {
  Shape x, w;
  Conv2dOptions options = {};
};

// Calls f(x index, w index, y index) for every product in the convolution.
template <class F>
Shape each_product(const ConvCase& c, const F& f) {
  const Conv2dOptions& o = c.options;
  const Axis rows = axis_of(o.padding, 0, c.x[1], c.w[0], o.strides[0], o.dilations[0]);
  const Axis columns = axis_of(o.padding, 1, c.x[2], c.w[1], o.strides[1], o.dilations[1]);
  const std::int64_t out = c.w[3], in = c.w[2];
  for (std::int64_t n = 0; n < c.x[0]; ++n) {
    for (std::int64_t y = 0; y < rows.out; ++y) {
      for (std::int64_t x = 0; x < columns.out; ++x) {
        for (std::int64_t i = 0; i < c.w[0]; ++i) {
          for (std::int64_t j = 0; j < c.w[1]; ++j) {
            const std::int64_t row = y * o.strides[0] - rows.before + i * o.dilations[0];
            const std::int64_t column = x * o.strides[1] - columns.before + j * o.dilations[1];
            if (row < 0 || row >= c.x[1] || column < 0 || column >= c.x[2]) continue;
            for (std::int64_t k = 0; k < out; ++k) {
              const std::int64_t group = k / (out / o.groups);
              for (std::int64_t channel = 0; channel < in; ++channel) {
                f(static_cast<std::size_t>(((n * c.x[1] + row) * c.x[2] + column) * c.x[3] + group * in +
                                           channel),
                  static_cast<std::size_t>(((i * c.w[1] + j) * in + channel) * out + k),
                  static_cast<std::size_t>(((n * rows.out + y) * columns.out + x) * out + k));
              }
            }
          }
        }
      }
    }
  }
  return Shape{c.x[0], rows.out, columns.out, out};
}

void expect_near(const Tensor& actual, const std::vector<double>& expected,
                 const std::vector<double>& magnitude, const char* what) {
  const std::vector<double> values = doubles(actual);
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], tolerance(actual.dtype()) * (magnitude[i] + 1e-3))
        << what << ' ' << i;
  }
}

// The convolution and both of its derivatives.
void check_conv(DType dtype, const ConvCase& c, std::uint64_t seed) {
  SCOPED_TRACE(str(dtype, " ", c.x, " with ", c.w));
  const Shape out = each_product(c, [](std::size_t, std::size_t, std::size_t) {});
  Dice dice(seed);
  const Tensor x = random_tensor(dtype, c.x, dice), w = random_tensor(dtype, c.w, dice),
               g = random_tensor(dtype, out, dice);
  GraphBuilder b;
  const Value images = b.placeholder("x", dtype, c.x), filter = b.placeholder("w", dtype, c.w);
  const Value flow = b.placeholder("g", dtype, out);
  const Value y = conv2d(images, filter, c.options);
  ASSERT_EQ(y.shape(), out);
  b.result(y);
  const std::vector<Gradient> derivatives = gradients(y, {images, filter}, {.seed = flow});
  b.result(derivatives[0]);
  b.result(derivatives[1]);
  const std::vector<Tensor> results = run_both(b, {x, w, g});
  const std::vector<double> xs = doubles(x), ws = doubles(w), gs = doubles(g);
  std::vector<double> expected[3] = {std::vector<double>(gs.size()), std::vector<double>(xs.size()),
                                     std::vector<double>(ws.size())};
  std::vector<double> magnitude[3] = {expected[0], expected[1], expected[2]};
  each_product(c, [&](std::size_t i, std::size_t j, std::size_t k) {
    const double parts[3] = {xs[i] * ws[j], gs[k] * ws[j], gs[k] * xs[i]};
    const std::size_t at[3] = {k, i, j};
    for (std::size_t p = 0; p < 3; ++p) {
      expected[p][at[p]] += parts[p];
      magnitude[p][at[p]] += std::abs(parts[p]);
    }
  });
  expect_near(results[0], expected[0], magnitude[0], "y");
  expect_near(results[1], expected[1], magnitude[1], "dx");
  expect_near(results[2], expected[2], magnitude[2], "dw");
}

const std::vector<ConvCase> kConvs = {
    {{1, 3, 3, 1}, {2, 2, 1, 1}},
    {{2, 5, 6, 3}, {3, 2, 3, 4}},
    {{2, 5, 6, 3}, {3, 3, 3, 4}, {.padding = Padding::same()}},
    {{2, 5, 6, 3}, {3, 3, 3, 4}, {.strides = {2, 2}, .padding = Padding::same()}},
    {{1, 6, 5, 2}, {2, 3, 2, 3}, {.strides = {3, 1}, .padding = Padding::of(1, 0, 2, 1)}},
    {{2, 7, 8, 2}, {3, 2, 2, 3}, {.padding = Padding::same(), .dilations = {2, 3}}},
    {{2, 4, 5, 6}, {3, 3, 2, 9}, {.padding = Padding::same(), .groups = 3}},
    {{2, 5, 4, 4}, {2, 2, 1, 4}, {.strides = {2, 1}, .dilations = {1, 2}, .groups = 4}},  // one channel each
    {{2, 4, 3, 5}, {1, 1, 5, 7}},                                                         // a plain product
    {{2, 4, 3, 4}, {1, 1, 2, 6}, {.groups = 2}},
    {{2, 5, 5, 3}, {1, 1, 3, 2}, {.strides = {2, 2}}},
    {{0, 5, 6, 3}, {3, 2, 3, 4}},
    {{0, 4, 3, 5}, {1, 1, 5, 7}},
    {{1, 3, 3, 0}, {2, 2, 0, 3}},  // sums of nothing
    {{1, 3, 3, 2}, {2, 2, 2, 0}},
    {{1, 3, 3, 2}, {3, 3, 2, 2}},
    {{1, 1, 1, 1}, {3, 3, 1, 1}, {.padding = Padding::same()}},
};

TEST(Conv2d, EqualsTheDefinitionForEveryDType) {
  for (const DType dtype : kFloats) {
    for (std::size_t i = 0; i < kConvs.size(); ++i) check_conv(dtype, kConvs[i], i + 1);
  }
}

// Several blocks, shards, parts and slices.
TEST(Conv2d, EqualsTheDefinitionWhereItIsCut) {
  check_conv(DType::kF32, {{5, 24, 25, 32}, {3, 3, 32, 40}, {.padding = Padding::same()}}, 1);
  check_conv(DType::kF64, {{9, 14, 14, 24}, {3, 3, 24, 32}, {.strides = {2, 1}}}, 2);
  check_conv(DType::kBF16, {{6, 14, 15, 32}, {3, 3, 16, 32}, {.padding = Padding::same(), .groups = 2}}, 3);
  check_conv(DType::kF32, {{4, 20, 20, 48}, {1, 1, 48, 64}}, 4);
  check_conv(DType::kF32, {{6, 20, 20, 48}, {3, 3, 1, 48}, {.padding = Padding::same(), .groups = 48}}, 5);
}

TEST(Conv2d, GradientsOfFirstAndSecondOrder) {
  for (const ConvCase& c : kConvs) {
    SCOPED_TRACE(str(c.x, " with ", c.w));
    testing::expect_gradients(
        [&](GraphBuilder&, std::span<const Value> x) { return conv2d(x[0], x[1], c.options); },
        {testing::random_tensor(c.x, 1), testing::random_tensor(c.w, 2)}, {.elements = 5});
  }
}

TEST(Conv2d, InfersWithUnknownDimensions) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, kUnknown, 8, kUnknown});
  const Value w = b.placeholder("w", DType::kF32, {3, 3, 2, 4});
  EXPECT_EQ(conv2d(x, w, {.strides = {1, 2}, .groups = 2}).shape(), (Shape{kUnknown, kUnknown, 3, 4}));
}

TEST(Conv2d, RefusesWhatDoesNotFit) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 5, 5, 4});
  const Value w = b.placeholder("w", DType::kF32, {3, 3, 4, 6});
  const Value i = b.placeholder("i", DType::kI32, {2, 5, 5, 4});
  const Value flat = b.placeholder("flat", DType::kF32, {5, 5});
  const auto what = [](const auto& f) { return caught(f).what; };
  EXPECT_THAT(what([&] { conv2d(flat, w); }),
              HasSubstr("takes images [n, rows, columns, channels], got [5,5]"));
  EXPECT_THAT(what([&] { conv2d(x, flat); }), HasSubstr("takes a filter"));
  EXPECT_THAT(what([&] { conv2d(i, i); }), HasSubstr("takes floating tensors, got i32"));
  EXPECT_THAT(what([&] { conv2d(x, w, {.groups = 2}); }),
              HasSubstr("have 4 channels; a filter of shape [3,3,4,6] in 2 groups takes 8"));
  EXPECT_THAT(what([&] {
                conv2d(x, b.placeholder("v", DType::kF32, {3, 3, 1, 6}), {.groups = 4});
              }),
              HasSubstr("6 output channels cannot be cut into 4 groups"));
  EXPECT_THAT(what([&] {
                conv2d(x, w, {.dilations = {3, 1}});
              }),
              HasSubstr("a window of 7 rows does not fit into an image of 5 rows"));
  EXPECT_THAT(what([&] { conv2d(x, w, {.strides = {0, 1}}); }), HasSubstr("strides must be two numbers"));
  EXPECT_THAT(what([&] { conv2d(x, w, {.padding = Padding::of(0, 0, 3, 0)}); }),
              HasSubstr("padding of 3 columns would leave windows of 3 without an element"));
  EXPECT_THAT(what([&] { conv2d(x, w, {.padding = Padding::of(0, -1, 0, 0)}); }),
              HasSubstr("each 0 or more"));
  EXPECT_THAT(what([&] { conv2d_backward_input(x, w, shape_of(x)); }),
              HasSubstr("what flows back has shape [2,5,5,4]; the convolution gives [2,3,3,6]"));
  EXPECT_THAT(what([&] {
                b.op1("max_pool", {x},
                      {{"padding", std::string("full")},
                       {"strides", std::vector<std::int64_t>{1, 1}},
                       {"window", std::vector<std::int64_t>{1, 1}}});
              }),
              HasSubstr("padding must be \"same\", \"valid\" or \"explicit\", got \"full\""));
}

// --- pooling

struct PoolCase {
  Shape x;
  Extents2d window;
  PoolOptions options = {};
};

// Calls f(y index, the x indices of its window).
template <class F>
Shape each_window(const PoolCase& c, const F& f) {
  const Extents2d strides = c.options.strides == Extents2d{} ? c.window : c.options.strides;
  const Axis rows = axis_of(c.options.padding, 0, c.x[1], c.window[0], strides[0], 1);
  const Axis columns = axis_of(c.options.padding, 1, c.x[2], c.window[1], strides[1], 1);
  std::size_t at = 0;
  for (std::int64_t n = 0; n < c.x[0]; ++n) {
    for (std::int64_t y = 0; y < rows.out; ++y) {
      for (std::int64_t x = 0; x < columns.out; ++x) {
        for (std::int64_t channel = 0; channel < c.x[3]; ++channel) {
          std::vector<std::size_t> window;
          for (std::int64_t i = 0; i < c.window[0]; ++i) {
            for (std::int64_t j = 0; j < c.window[1]; ++j) {
              const std::int64_t row = y * strides[0] - rows.before + i;
              const std::int64_t column = x * strides[1] - columns.before + j;
              if (row < 0 || row >= c.x[1] || column < 0 || column >= c.x[2]) continue;
              window.push_back(
                  static_cast<std::size_t>(((n * c.x[1] + row) * c.x[2] + column) * c.x[3] + channel));
            }
          }
          f(at++, window);
        }
      }
    }
  }
  return Shape{c.x[0], rows.out, columns.out, c.x[3]};
}

void check_pools(DType dtype, const PoolCase& c, std::uint64_t seed) {
  SCOPED_TRACE(str(dtype, " ", c.x));
  const Shape out = each_window(c, [](std::size_t, const std::vector<std::size_t>&) {});
  Dice dice(seed);
  const Tensor x = random_tensor(dtype, c.x, dice), g = random_tensor(dtype, out, dice);
  GraphBuilder b;
  const Value images = b.placeholder("x", dtype, c.x), flow = b.placeholder("g", dtype, out);
  const Value largest = max_pool(images, c.window, c.options),
              average = avg_pool(images, c.window, c.options);
  ASSERT_EQ(largest.shape(), out);
  ASSERT_EQ(average.shape(), out);
  b.result(largest);
  b.result(average);
  b.result(gradients(largest, {images}, {.seed = flow})[0]);
  b.result(gradients(average, {images}, {.seed = flow})[0]);
  const std::vector<Tensor> results = run_both(b, {x, g});
  const std::vector<double> xs = doubles(x), gs = doubles(g);
  std::vector<double> maxima(gs.size()), averages(gs.size()), to_maxima(xs.size()), to_averages(xs.size());
  each_window(c, [&](std::size_t at, const std::vector<std::size_t>& window) {
    std::size_t best = window[0];
    for (const std::size_t i : window) {
      if (xs[i] > xs[best]) best = i;
      averages[at] += xs[i] / static_cast<double>(window.size());
      to_averages[i] += gs[at] / static_cast<double>(window.size());
    }
    maxima[at] = xs[best];
    to_maxima[best] += gs[at];
  });
  EXPECT_EQ(doubles(results[0]), maxima);
  expect_near(results[1], averages, std::vector<double>(averages.size(), 2), "average");
  expect_near(results[2], to_maxima, std::vector<double>(to_maxima.size(), 10), "to maxima");
  expect_near(results[3], to_averages, std::vector<double>(to_averages.size(), 4), "to averages");
}

const std::vector<PoolCase> kPools = {
    {{2, 4, 6, 3}, {2, 2}},
    {{2, 5, 5, 2}, {2, 3}, {.strides = Extents2d{1, 1}}},
    {{2, 5, 5, 2}, {3, 3}, {.strides = Extents2d{2, 2}, .padding = Padding::same()}},
    {{1, 4, 5, 70}, {3, 2}, {.strides = Extents2d{1, 2}, .padding = Padding::of(2, 1, 0, 1)}},
    {{1, 3, 4, 2}, {3, 4}},
    {{0, 4, 4, 2}, {2, 2}},
    {{1, 3, 3, 0}, {2, 2}},
    {{1, 2, 2, 1}, {1, 1}, {.strides = Extents2d{2, 2}}},
};

TEST(Pools, EqualTheDefinitionForEveryDType) {
  for (const DType dtype : kFloats) {
    for (std::size_t i = 0; i < kPools.size(); ++i) check_pools(dtype, kPools[i], i + 1);
  }
}

TEST(Pools, EqualTheDefinitionWhereTheyAreCut) {
  check_pools(DType::kF32,
              {{6, 40, 40, 20}, {3, 3}, {.strides = Extents2d{2, 2}, .padding = Padding::same()}}, 1);
  check_pools(DType::kF16, {{6, 40, 40, 20}, {2, 2}}, 2);
}

TEST(Pools, MaximaOfIntegersAndOfNan) {
  GraphBuilder b;
  b.result(max_pool(b.placeholder("i", DType::kI64, {1, 2, 2, 1}), {2, 2}));
  b.result(max_pool(b.placeholder("u", DType::kU8, {1, 2, 2, 1}), {2, 1}));
  b.result(max_pool(b.placeholder("f", DType::kF32, {1, 1, 4, 1}), {1, 2}));
  const std::vector<Tensor> results =
      run_both(b, {Tensor::from<std::int64_t>({1, 2, 2, 1}, {-4, -9, -3, -5}),
                   Tensor::from<std::uint8_t>({1, 2, 2, 1}, {4, 200, 3, 5}),
                   Tensor::from<float>({1, 1, 4, 1}, {NAN, 1, -INFINITY, -INFINITY})});
  EXPECT_EQ(results[0].item(), -3);
  EXPECT_TRUE(results[1].bit_equal(Tensor::from<std::uint8_t>({1, 1, 2, 1}, {4, 200})));
  EXPECT_TRUE(std::isnan(results[2].data<float>()[0]));
  EXPECT_EQ(results[2].data<float>()[1], -INFINITY);
}

TEST(Pools, TheGradientOfEqualMaximaGoesToTheFirst) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1, 2, 2, 1});
  b.result(gradients(sum(max_pool(x, {2, 2})), {x})[0]);
  EXPECT_THAT(floats(run_both(b, {Tensor::from<float>({1, 2, 2, 1}, {1, 3, 3, 3})})[0]),
              ElementsAre(0, 1, 0, 0));
}

// Squared, so that the second order is not zero.
TEST(Pools, GradientsOfFirstAndSecondOrder) {
  for (const PoolCase& c : kPools) {
    SCOPED_TRACE(str(c.x));
    const auto squared = [](const Value& y) { return y * y; };
    testing::expect_gradients(
        [&](GraphBuilder&, std::span<const Value> x) { return squared(max_pool(x[0], c.window, c.options)); },
        {testing::random_tensor(c.x, 1)});
    testing::expect_gradients(
        [&](GraphBuilder&, std::span<const Value> x) { return squared(avg_pool(x[0], c.window, c.options)); },
        {testing::random_tensor(c.x, 1)});
  }
}

TEST(Pools, RefuseWhatDoesNotFit) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 5, 5, 4});
  const Value i = b.placeholder("i", DType::kI32, {2, 5, 5, 4});
  const Value p = b.placeholder("p", DType::kBool, {2, 5, 5, 4});
  const Value flat = b.placeholder("flat", DType::kF32, {5, 5});
  const auto what = [](const auto& f) { return caught(f).what; };
  EXPECT_THAT(what([&] { max_pool(flat, {2, 2}); }), HasSubstr("takes images"));
  EXPECT_THAT(what([&] { max_pool(p, {2, 2}); }), HasSubstr("no meaning for bool"));
  EXPECT_THAT(what([&] { avg_pool(i, {2, 2}); }), HasSubstr("takes floating images, got i32"));
  EXPECT_THAT(what([&] { max_pool(x, {0, 2}); }), HasSubstr("must be two numbers"));
  EXPECT_THAT(what([&] {
                max_pool(x, {2, 6});
              }),
              HasSubstr("a window of 6 columns does not fit into an image of 5 columns"));
  EXPECT_THAT(what([&] {
                avg_pool(x, {2, 2}, {.padding = Padding::of(0, 2, 0, 0)});
              }),
              HasSubstr("would leave windows of 2 without an element of the image"));
}

TEST(Conv2d, RefusesExtentsThatOverflow) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1, 5, 5, 4});
  const Value w = b.placeholder("w", DType::kF32, {3, 3, 4, 4});
  const auto what = [&](const Conv2dOptions& options) { return caught([&] { conv2d(x, w, options); }).what; };
  EXPECT_THAT(what({.dilations = {kHuge, 1}}), HasSubstr("a window: 2 * 9223372036854775807 does not fit"));
  EXPECT_THAT(what({.groups = kHuge}), HasSubstr("the channels of all groups: 4 * 9223372036854775807"));
  EXPECT_THAT(what({.padding = Padding::of(kHuge, kHuge, 0, 0)}),
              HasSubstr("padding of 9223372036854775807 rows would leave windows of 3"));
  // A stride beyond the image is no error.
  for (const Padding& padding : {Padding::same(), Padding::valid()})
    EXPECT_EQ(conv2d(x, w, {.strides = {kHuge, kHuge}, .padding = padding}).shape(), (Shape{1, 1, 1, 4}));
}

}  // namespace
}  // namespace lockstep
