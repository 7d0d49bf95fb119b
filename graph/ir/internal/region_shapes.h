// graph/ir/internal/region_shapes.h - output specs of nodes with regions, and the attributes of loops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// The specs of a region node's outputs for inputs of known specs, inferred through the regions.
SmallVector<TensorSpec, 1> infer_region_outputs(const Node& node, std::span<const TensorSpec> inputs,
                                                const NodeView::VariableSpecs& variables);
// The same for any node, in a graph that runs as it is: there, and inside its regions, a collective that no
// pass has joined is a group of one.
SmallVector<TensorSpec, 1> infer_running(const Node& node, std::span<const TensorSpec> inputs,
                                         const NodeView::VariableSpecs& variables,
                                         const NodeView::ShapeValues& shape_values);

// Finds an all_gather in the code of several replicas, branches and loops included, whose shape claims to be
// known although replicas gather more than each of them has. Null if there is none.
const Node* gather_of_known_extent(const Graph& replica);

// A while_loop's attributes.
struct LoopShape {
  std::size_t carried = 0;
  std::int64_t max_trips = -1;  // -1: no bound
  bool stash = false;           // keeps the carried values of every trip: see docs/graph_rules.md
};
LoopShape loop_shape(const Node& node);

}  // namespace lockstep::internal
