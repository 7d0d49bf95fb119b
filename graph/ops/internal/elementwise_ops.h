// graph/ops/internal/elementwise_ops.h - what the definitions of element-wise ops share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

// How much one element costs.
enum class Weight : std::uint8_t {
  kLight,   // an instruction or two: memory decides
  kMedium,  // exp, tanh, ...: tens of instructions
  kHeavy,   // pow, mod: hundreds of cycles at worst
};

// An op with `inputs` inputs and one output, with cost, split and the traits that all element-wise ops have.
OpDef elementwise_op(std::string name, std::string summary, std::size_t inputs,
                     Weight weight = Weight::kLight);

// The kernel of a node from its loop; loops are looked up once per plan.
KernelFn unary_kernel(kernels::UnaryLoop loop, const TensorSpec& in, const TensorSpec& out);
KernelFn binary_kernel(kernels::BinaryLoop loop, const NodeView& node, const TensorSpec& out);

// The operand's value; a number becomes a constant of the other operand's dtype, which must be able to hold
// it.
Value value_of(std::string_view op, const Operand& operand, const Operand& other, SourceSite site);
Value unary_node(std::string_view op, const Operand& x);
Value binary_node(std::string_view op, const Operand& a, const Operand& b);

void register_unary_ops(OpRegistry& registry);
void register_binary_ops(OpRegistry& registry);

}  // namespace lockstep::internal
