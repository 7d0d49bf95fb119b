// graph/ops/merged/internal/merged_updates.h - updates of many variables as one node, made by the pass merge-updates.
//
//   merged_updates(g0, g1, lr) { w0' = sgd[@w0](g0, lr);  w1' = sgd[@w1](g1, lr);  return w0', w1' }
//
// The region holds updates of one op, with equal attributes but for the variables that they name. The node's inputs are the
// operands of all updates in turn, then the inputs that all of them share. Its results are the outputs of each update in
// turn. To kernels the values of variables come first, as everywhere: of the first update the variable and its slots, then
// of the second.
//
// Thread safety: a view; the node must outlive it.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

// Can nodes of the op be merged at all, where its kernel set can do it (KernelDef::merge)?
bool may_merge(const OpDef& op);
// Do the attributes agree, but for the variables that the op updates?
bool agree_but_for_variables(const Node& a, const Node& b);

class MergedUpdates {
 public:
  // Throws InvalidArgument if the region holds something else. Shapes are not looked at.
  explicit MergedUpdates(const NodeView& node);

  const OpDef& op() const { return updates_.front()->op(); }
  std::size_t size() const { return updates_.size(); }
  const Node& update(std::size_t i) const { return *updates_[i]; }
  // Variables of one update: the one that it is for, and its slots.
  std::size_t variables() const { return updates_.front()->outputs().size(); }
  std::size_t shared() const { return updates_.front()->inputs().size() - 1; }

  // Places among the inputs of a kernel.
  std::size_t state(std::size_t update, std::size_t variable) const {
    return update * variables() + variable;
  }
  std::size_t operand(std::size_t update) const { return size() * variables() + update; }
  std::size_t shared_input(std::size_t i) const { return size() * (variables() + 1) + i; }

  // What update i reads, of what the node reads.
  std::vector<TensorSpec> inputs_of(std::size_t i, std::span<const TensorSpec> inputs) const;

 private:
  std::vector<const Node*> updates_;
};

// The kernel maker of `merged_updates` for a kernel set: it asks the kernel of the updates' op for that set.
KernelMaker merged_kernel(std::string_view kernel_set);

}  // namespace lockstep::internal
