// examples/glyphs.h - a data set that needs no download: digits of a small font, shifted, turned, scaled and
// noisy.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace glyphs {

inline constexpr int kSide = 28;

// Ten digits, seven rows of five pixels each.
inline constexpr std::array<std::string_view, 10> kFont = {
    " ### #   ##  ### # ###  ##   # ### ", "  #   ##    #    #    #    #   ### ",
    " ### #   #    #   #   #   #   #####", " ### #   #    #  ##     ##   # ### ",
    "   #   ##  # # #  # #####   #    # ", "######    ####     #    ##   # ### ",
    "  ##  #   #    #### #   ##   # ### ", "#####    #   #   #   #    #    #   ",
    " ### #   ##   # ### #   ##   # ### ", " ### #   ##   # ####    #   #  ##  "};

// How much ink the font has at a point of the digit's own 5 x 7 grid, between pixels by interpolation.
inline float ink(int digit, double x, double y) {
  const auto pixel = [&](int column, int row) {
    const bool inside = column >= 0 && column < 5 && row >= 0 && row < 7;
    return inside && kFont[static_cast<std::size_t>(digit)][static_cast<std::size_t>(row * 5 + column)] == '#'
               ? 1.0
               : 0.0;
  };
  const double left = std::floor(x), top = std::floor(y);
  const double fx = x - left, fy = y - top;
  const int c = static_cast<int>(left), r = static_cast<int>(top);
  return static_cast<float>((pixel(c, r) * (1 - fx) + pixel(c + 1, r) * fx) * (1 - fy) +
                            (pixel(c, r + 1) * (1 - fx) + pixel(c + 1, r + 1) * fx) * fy);
}

struct Set {
  lockstep::Tensor images;  // f32[n, 784]
  lockstep::Tensor labels;  // i64[n]
};

// n random digits; equal seeds give equal sets.
inline Set make(std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(bits() >> 11U) * 0x1p-53;
  };
  Set set{lockstep::Tensor::empty(lockstep::DType::kF32, {n, kSide * kSide}),
          lockstep::Tensor::empty(lockstep::DType::kI64, {n})};
  float* pixel = set.images.data<float>().data();
  for (std::int64_t& label : set.labels.data<std::int64_t>()) {
    const int digit = static_cast<int>(bits() % 10);
    label = digit;
    const double angle = uniform(-0.3, 0.3), scale = uniform(2.6, 3.6);
    const double x0 = uniform(10.5, 16.5), y0 = uniform(10.5, 16.5);
    const double c = std::cos(angle) / scale, s = std::sin(angle) / scale;
    for (int row = 0; row < kSide; ++row) {
      for (int column = 0; column < kSide; ++column) {
        const double dx = column - x0, dy = row - y0;
        const double noise = uniform(-0.3, 0.3) + uniform(-0.3, 0.3);
        *pixel++ = ink(digit, 2 + c * dx + s * dy, 3 - s * dx + c * dy) + static_cast<float>(noise);
      }
    }
  }
  return set;
}

}  // namespace glyphs
