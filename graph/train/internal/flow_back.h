// graph/train/internal/flow_back.h - building blocks for the gradient rules of regions.
#pragma once

#include <span>
#include <vector>

#include "lockstep/core/source_site.h"
#include "lockstep/graph/train/gradients.h"

namespace lockstep::internal {

// What flows back into each source, given what flows into each target (an empty seed: nothing). All are
// values of `builder` itself. An empty Gradient if nothing arrives.
std::vector<Gradient> flow_back(GraphBuilder& builder, std::span<const Value> targets,
                                std::span<const Value> seeds, std::span<const Value> sources,
                                SourceSite site);

// Makes the region's nodes once more, in the innermost graph under construction, with these arguments;
// returns the region's results.
std::vector<Value> replay(GraphBuilder& builder, const Graph& region, std::span<const Value> arguments);

// Throws InvalidArgument if a region of `node`, a node of the builder's graph, has effects that must not be
// repeated, or reads a variable that was written since: in that graph, or in a region under construction
// inside of it.
void check_repeatable(GraphBuilder& builder, const Node& node);

}  // namespace lockstep::internal
