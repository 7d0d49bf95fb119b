// tests/support/random_tensors.cpp - inputs for the kernel tests.
#include "support/random_tensors.h"

#include <type_traits>

namespace lockstep {

std::int64_t Dice::roll(std::int64_t sides) {
  const std::uint32_t word = stream_.block(next_ / 4)[next_ % 4];
  ++next_;
  return static_cast<std::int64_t>(word) % sides;
}

Tensor random_tensor(DType dtype, const Shape& shape, Dice& dice) {
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

std::vector<double> elements(const Tensor& tensor) {
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(tensor.num_elements()));
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

}  // namespace lockstep
