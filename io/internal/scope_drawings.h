// io/internal/scope_drawings.h - one drawing per scope of a view, laid out by Graphviz, for a page that styles it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/io/graph_view.h"
#include "lockstep/io/svg.h"

namespace lockstep::internal {

struct ScopeDrawing {
  std::string
      svg;  // one <svg> element. Boxes have the ids n<i>, scopes s<i>, things outside on<i> and os<i>, edges e<i>
  struct Edge {
    std::string from, to;  // ids
    bool control = false;
    std::uint64_t stages = 0;
  };
  std::vector<Edge> edges;
};

// By scope. Throws what run_graphviz throws.
std::vector<ScopeDrawing> draw_scopes(const GraphView& view, const GraphvizOptions& options);

}  // namespace lockstep::internal
