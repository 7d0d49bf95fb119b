// graph/ir/internal/region_shapes.h - what a node with regions says of its outputs and its trips.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// The specs of a region node's outputs for inputs of known specs, inferred through the regions.
SmallVector<TensorSpec, 1> infer_region_outputs(const Node& node, std::span<const TensorSpec> inputs,
                                                const NodeView::VariableSpecs& variables);
// Of any node, in a graph that runs as it is: a collective that no pass has joined is one of a group of one there,
// also inside of regions.
SmallVector<TensorSpec, 1> infer_running(const Node& node, std::span<const TensorSpec> inputs,
                                         const NodeView::VariableSpecs& variables,
                                         const NodeView::ShapeValues& shape_values);

// An all_gather in the code of several replicas, branches and loops included, whose shape claims to be known: what
// replicas gather is longer than what each of them has. nullptr: there is none.
const Node* gather_of_known_extent(const Graph& replica);

// A while_loop's attributes.
struct LoopShape {
  std::size_t carried = 0;
  std::int64_t max_trips = -1;  // -1: no bound
  bool stash = false;           // keeps the carried values of every trip: see docs/graph_rules.md
};
LoopShape loop_shape(const Node& node);

}  // namespace lockstep::internal
