// io/drawings/dot.h - a graph as a drawing for Graphviz.
//
//   std::ofstream("step.dot") << to_dot(step.replicated_graph());       // dot -Tsvg step.dot > step.svg
//
// Name scopes are clusters; equal replicas and repeated layers are drawn once, "x 8"
// (io/drawings/graph_view.h). Colours tell devices or replicas apart, outlines tell what a node is:
// collectives and copies are marked, control edges are dashed, data edges say dtype and shape. A legend
// explains what occurs. Deterministic: equal graphs give equal text. Graphviz draws it without warnings.
//
// Thread safety: a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/io/drawings/graph_view.h"

namespace lockstep {

enum class ColourBy : std::uint8_t { kDevice, kReplica };

struct DotOptions {
  // A drawing is whole by default: scopes are not cut into parts.
  ViewOptions view = {.fold_replicas = true, .fold_layers = true, .max_children = 0};
  ColourBy colours = ColourBy::kDevice;
  // Scopes that lie deeper are boxes. 0: one box per outermost scope.
  std::size_t max_depth = std::numeric_limits<std::size_t>::max();
  bool shapes = true;  // on edges
  bool legend = true;
  std::string title = {};  // above the drawing
};

LOCKSTEP_API std::string to_dot(const Graph& graph, const DotOptions& options = {});

}  // namespace lockstep
