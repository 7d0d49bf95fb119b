// io/drawings/model_explorer.h - a graph in the JSON that Google's Model Explorer reads.
//
//   write_file_whole("step.json", to_model_explorer_json(step.replicated_graph()));      // then open it there
//
// A collection of graphs: the graph itself, named "main", and one for each region of its nodes, which the
// nodes that hold them name in `subgraphIds`. Name scopes become namespaces. Nothing is folded: Model
// Explorer folds equal nodes on its own. Attributes, specs, device, replica, whether replicas hold the same
// value, and the source line are in `attrs`; control edges have the input id "control" and say so in their
// metadata.
//
// Deterministic. Linear. Thread safety: a pure function.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

LOCKSTEP_API std::string to_model_explorer_json(const Graph& graph, std::string_view label = "lockstep");

}  // namespace lockstep
