// Tests: core/kernels/rows.cpp
#include "lockstep/core/kernels/rows.h"

#include <cstring>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
T element(double value) {
  if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, BF16>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(GatherRows, PicksRowsWhereverItIsCut) {
  const RowsShape shape{.outer = 2, .rows = 3, .inner = 4};
  std::vector<std::uint16_t> in(24), out(2 * 5 * 4), whole(2 * 5 * 4);
  std::iota(in.begin(), in.end(), 0);
  const std::vector<std::int32_t> index{2, 0, 0, 1, 2};
  const Indices indices{index.data(), DType::kI32, 5};
  for (std::size_t o = 0; o < 2; ++o) {
    for (std::size_t i = 0; i < 5; ++i) {
      for (std::size_t k = 0; k < 4; ++k)
        whole[(o * 5 + i) * 4 + k] = in[(o * 3 + static_cast<std::size_t>(index[i])) * 4 + k];
    }
  }
  for (std::int64_t cut = 0; cut <= 40; ++cut) {
    std::fill(out.begin(), out.end(), std::uint16_t{99});
    gather_rows(2, in.data(), shape, indices, out.data(), 0, cut);
    gather_rows(2, in.data(), shape, indices, out.data(), cut, 40);
    EXPECT_EQ(out, whole) << cut;
  }
}

TEST(GatherRows, NamesABadIndex) {
  const std::vector<float> in{1, 2, 3};
  std::vector<float> out(2);
  for (const std::int64_t bad :
       {std::int64_t{3}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const std::vector<std::int64_t> index{1, bad};
    const std::string message = message_of([&] {
      gather_rows(4, in.data(), {1, 3, 1}, {index.data(), DType::kI64, 2}, out.data(), 0, 2);
    });
    EXPECT_THAT(message, HasSubstr("index " + std::to_string(bad) + " at position 1 is outside of [0, 3)"));
  }
}

template <class T>
void check_scatter() {
  const std::vector<std::int64_t> index{1, 3, 1, 0, 1};
  std::vector<T> values;
  for (int i = 0; i < 15; ++i) values.push_back(element<T>(i));
  std::vector<double> expected(12, 0);
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t k = 0; k < 3; ++k)
      expected[static_cast<std::size_t>(index[i]) * 3 + k] += static_cast<double>(i * 3 + k);
  }
  const DType dtype = dtype_of<T>;
  for (std::int64_t cut = 0; cut <= 12; ++cut) {
    std::vector<T> out(12);
    std::vector<float> sums(12);
    const Indices indices{index.data(), DType::kI64, 5};
    scatter_add_rows(dtype, indices, values.data(), {1, 4, 3}, out.data(), sums.data(), 0, cut);
    scatter_add_rows(dtype, indices, values.data(), {1, 4, 3}, out.data(), sums.data(), cut, 12);
    for (std::size_t i = 0; i < 12; ++i)
      EXPECT_EQ(static_cast<double>(static_cast<float>(out[i])), expected[i]) << dtype << " " << i;
  }
}

TEST(ScatterAddRows, AddsInOrderWhereverItIsCut) {
  check_scatter<F16>();
  check_scatter<BF16>();
  check_scatter<float>();
  check_scatter<double>();
  check_scatter<std::int32_t>();
  check_scatter<std::int64_t>();
  check_scatter<std::uint8_t>();
}

TEST(ScatterAddRows, RoundsHalvesOnce) {
  // One by one in f16, 2048 + 1 + 1 stays 2048.
  const std::vector<std::int64_t> index{0, 0, 0};
  const std::vector<F16> values{F16(2048.F), F16(1.F), F16(1.F)};
  F16 out;
  float sum = 0;
  scatter_add_rows(DType::kF16, {index.data(), DType::kI64, 3}, values.data(), {1, 1, 1}, &out, &sum, 0, 1);
  EXPECT_EQ(static_cast<float>(out), 2050.F);
}

TEST(ScatterAddRows, RefusesBoolAndBadIndices) {
  const std::vector<std::int64_t> index{4};
  std::vector<float> values{1}, out(4);
  EXPECT_THAT(message_of([&] {
                scatter_add_rows(DType::kF32, {index.data(), DType::kI64, 1}, values.data(), {1, 4, 1},
                                 out.data(), nullptr, 0, 1);
              }),
              HasSubstr("index 4 at position 0 is outside of [0, 4)"));
  EXPECT_THAT(message_of([&] {
                scatter_add_rows(DType::kBool, {index.data(), DType::kI64, 1}, values.data(), {1, 4, 1},
                                 out.data(), nullptr, 0, 1);
              }),
              HasSubstr("bool has no sum"));
}

TEST(OneHotRows, SetsOneElementOfEachRow) {
  const std::vector<std::int32_t> index{1, 0};
  std::vector<std::int64_t> out(6, 9);
  one_hot_rows(DType::kI64, {index.data(), DType::kI32, 2}, 3, out.data(), 0, 1);
  one_hot_rows(DType::kI64, {index.data(), DType::kI32, 2}, 3, out.data(), 1, 2);
  EXPECT_THAT(out, ElementsAre(0, 1, 0, 1, 0, 0));
}

TEST(Rows, CheckIndicesWhereThereIsNothingToMove) {
  const std::vector<std::int64_t> index{0, 7};
  const Indices indices{index.data(), DType::kI64, 2};
  EXPECT_THAT(message_of([&] {
                gather_rows(4, nullptr, {1, 3, 0}, indices, nullptr, 0, 0);
              }),
              HasSubstr("index 7 at position 1 is outside of [0, 3)"));
  EXPECT_THAT(message_of([&] {
                scatter_add_rows(DType::kF32, indices, nullptr, {1, 0, 2}, nullptr, nullptr, 0, 0);
              }),
              HasSubstr("index 0 at position 0 is outside of [0, 0)"));
  EXPECT_THAT(message_of([&] {
                scatter_add_rows(DType::kF32, indices, nullptr, {1, 3, 0}, nullptr, nullptr, 0, 0);
              }),
              HasSubstr("index 7 at position 1 is outside of [0, 3)"));
}

}  // namespace
}  // namespace lockstep::kernels
