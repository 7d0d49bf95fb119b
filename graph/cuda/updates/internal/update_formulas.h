// graph/cuda/updates/internal/update_formulas.h - what optimizers do to an element of a variable (core/kernels/updates.h), as text.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/graph/ir/op.h"

namespace lockstep::internal::cuda {

// New values, one after the other: an expression may use those before it. In it w, g and the slots are elements; lr and t
// are the scalars; A is the type that is computed with. "rate" and "scale" are double.
struct UpdateFormula {
  const char* op;
  std::vector<std::string> slots;
  std::vector<std::pair<std::string, std::string>> lines;  // name, expression
};
const std::vector<UpdateFormula>& update_formulas();

// The kernel of merged updates by the formula.
KernelFn merged_update_kernel(const UpdateFormula& formula, const NodeView& node,
                              std::span<const TensorSpec> outputs);

}  // namespace lockstep::internal::cuda
