// graph/ops/fused/internal/fused_matmul.h - what a `fused_matmul` node does besides its product, as its attributes say.
//
//   c = op(a) op(b)                          inputs 0 and 1, read as by `matmul`
//   c = c + bias                             `bias`: the next input, an element for each column
//   c = relu(c), relu_grad(c, z) or c + z    `then`: "relu", "relu_grad" or "add"; z is the last input, of c's shape
//   output 1 = sum of a, or of b, over k     `sums`: "a" or "b", two matrices; not with `bias` or `then`
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/ops/rules/internal/products.h"

namespace lockstep::internal {

inline constexpr std::string_view kFusedMatmul = "fused_matmul";

struct AfterProduct {
  enum class Then : std::uint8_t { kNothing, kRelu, kReluGrad, kAdd };
  enum class Sums : std::uint8_t { kNone, kOfA, kOfB };

  bool bias = false;
  Then then = Then::kNothing;
  Sums sums = Sums::kNone;

  bool has_operand() const { return then == Then::kReluGrad || then == Then::kAdd; }
  std::size_t operand() const { return bias ? 3 : 2; }  // which input
  std::size_t num_inputs() const { return operand() + (has_operand() ? 1 : 0); }
  // Of `sums`: which input, and its axis k.
  std::size_t summed() const { return sums == Sums::kOfA ? 0 : 1; }
  std::vector<std::int64_t> summed_axes(const NodeView& node) const {
    const bool k_is_last = sums == Sums::kOfA ? !transposes_a(node) : transposes_b(node);
    return {k_is_last ? 1 : 0};
  }
};

// Fails for words that are none of those above.
AfterProduct after_product(const NodeView& node);

// May this be the bias of a product of that shape: does adding it add element j to all of column j, and nothing else?
// Unknown extents: no.
bool is_bias(const Shape& bias, const Shape& product);

}  // namespace lockstep::internal
