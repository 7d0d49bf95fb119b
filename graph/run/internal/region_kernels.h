// graph/run/internal/region_kernels.h - nodes with regions as one kernel call of a compiled program.
//
// Each region is planned like a program of its own, once per plan of the graph around it: memory is laid out,
// large nodes are cut, and several lanes run a region if that is worth it. All trips of a loop happen inside
// that one call.
#pragma once

#include <span>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/internal/plan.h"

namespace lockstep::internal {

// The memories of what goes in and out of a node whose values may lie in several.
struct NodeMemories {
  MemoryId own;                           // of the node's device
  std::vector<MemoryId> inputs, outputs;  // a value that a loop carries is in one memory
};

struct RegionKernel {
  KernelFn kernel;
  double seconds = 0;  // estimated; for a loop, as if it made a few trips
  std::int64_t planned_bytes = 0, live_bytes = 0;
  bool defers = false;      // calls in it may be deferred
  bool on_streams = false;  // calls in it are put on streams
};

// Runs the node's regions. The inputs are the node's, followed by the current value of each variable in
// `uses`; the outputs are the node's, followed by the new value of each variable that is written and, for a
// loop, by room for each value that it carries. The node must outlive the kernel. `request` says what plans of
// the regions need to know about variables, and for which replica they are.
RegionKernel make_region_kernel(const Node& node, std::span<const TensorSpec> inputs,
                                std::span<const TensorSpec> outputs, const NodeMemories& memories,
                                std::vector<VariableUse> uses, const Runtime& runtime,
                                const CompileOptions& options, const PlanRequest& request);

}  // namespace lockstep::internal
