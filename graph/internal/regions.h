// graph/internal/regions.h - nodes with regions as one kernel call of a compiled program.
#pragma once

#include <span>
#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/graph/kernel.h"

namespace lockstep {

// The specs of a region node's outputs for inputs of known specs, inferred through the regions.
SmallVector<TensorSpec, 1> infer_region_outputs(const Node& node, std::span<const TensorSpec> inputs,
                                                const NodeView::VariableSpecs& variables);

// Runs the node's regions. Inputs are the node's, then the current value of each variable in `uses`; outputs are the
// node's, then the new value of each that is written. The node must outlive the kernel.
KernelFn make_region_kernel(const Node& node, std::span<const TensorSpec> outputs,
                            std::vector<VariableUse> uses, const NodeView::VariableSpecs& variables);

}  // namespace lockstep
