// tests/support/random_tensors.h - inputs for the kernel tests: the same on every run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "lockstep/core/dtype.h"
#include "lockstep/core/random.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// A stream of numbers for choices.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : stream_{.seed = seed} {}
  // In [0, sides).
  std::int64_t roll(std::int64_t sides) {
    const std::uint32_t word = stream_.block(next_ / 4)[next_ % 4];
    ++next_;
    return static_cast<std::int64_t>(word) % sides;
  }

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

// Numbers with many digits for floats, and small ones for integers; never zero.
inline Tensor random_tensor(DType dtype, const Shape& shape, Dice& dice) {
  Tensor result = Tensor::empty(dtype, shape);
  visit_dtype(dtype, [&]<class T>(T) {
    for (T& element : result.data<T>()) {
      const bool negative = dice.roll(2) == 0;
      if constexpr (std::is_same_v<T, bool>) {
        element = negative;
      } else if constexpr (std::is_same_v<T, std::uint8_t>) {
        element = static_cast<T>(1 + dice.roll(255));
      } else if constexpr (std::is_integral_v<T>) {
        element = static_cast<T>((1 + dice.roll(100)) * (negative ? -1 : 1));
      } else {
        const float value = 0.25F + static_cast<float>(dice.roll(1 << 20)) / static_cast<float>(1 << 20);
        element = T(negative ? -value : value);
      }
    }
  });
  return result;
}

// Every way to see element i of a tensor as a double.
inline double element(const Tensor& tensor, std::int64_t i) {
  return tensor.reshape({tensor.num_elements()}).slice(i, i + 1).item();
}

// All of them at once.
inline std::vector<double> elements(const Tensor& tensor) {
  std::vector<double> result;
  visit_dtype(tensor.dtype(), [&]<class T>(T) {
    for (const T value : tensor.data<T>()) {
      if constexpr (std::is_class_v<T>) {
        result.push_back(static_cast<double>(static_cast<float>(value)));
      } else {
        result.push_back(static_cast<double>(value));
      }
    }
  });
  return result;
}

// Cuts [0, total) at random places; the pieces in order.
inline std::vector<std::int64_t> random_cuts(std::int64_t total, Dice& dice) {
  std::vector<std::int64_t> cuts = {0};
  while (cuts.back() < total) cuts.push_back(std::min(total, cuts.back() + 1 + dice.roll(total)));
  return cuts;
}

}  // namespace lockstep
