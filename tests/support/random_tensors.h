// tests/support/random_tensors.h - inputs for the kernel tests: the same on every run.
// Tests draw millions of numbers, so this is compiled with optimisation, unlike the tests.
#pragma once

#include <algorithm>
#include <cstdint>
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
  std::int64_t roll(std::int64_t sides);

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

// Numbers with many digits for floats, and small ones for integers; never zero.
Tensor random_tensor(DType dtype, const Shape& shape, Dice& dice);

// Every way to see element i of a tensor as a double.
inline double element(const Tensor& tensor, std::int64_t i) {
  return tensor.reshape({tensor.num_elements()}).slice(i, i + 1).item();
}

// All of them at once.
std::vector<double> elements(const Tensor& tensor);

// Cuts [0, total) at random places; the pieces in order.
inline std::vector<std::int64_t> random_cuts(std::int64_t total, Dice& dice) {
  std::vector<std::int64_t> cuts = {0};
  while (cuts.back() < total) cuts.push_back(std::min(total, cuts.back() + 1 + dice.roll(total)));
  return cuts;
}

}  // namespace lockstep
