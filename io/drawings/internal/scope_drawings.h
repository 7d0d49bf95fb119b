// io/drawings/internal/scope_drawings.h - one drawing per scope of a view, laid out by Graphviz, for a page
// that styles it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/io/drawings/graph_view.h"
#include "lockstep/io/drawings/internal/drawing.h"
#include "lockstep/io/drawings/svg.h"

namespace lockstep::internal {

struct ScopeDrawing {
  // One <svg> element. Boxes have the ids n<i>, scopes s<i>, things outside on<i> and os<i>, those joined
  // into one stub mb (they come before) and ma (they come after), edges e<i>.
  std::string svg;
  struct Edge {
    std::string from, to;  // ids
    bool control = false;
    std::uint64_t stages = 0;
    StageLabels labels;  // the values that flow; drawn unless there are too many edges
  };
  std::vector<Edge> edges;
  // Ids of boxes whose label is not the same in all stages.
  std::vector<std::pair<std::string, StageLabels>> labels;
  std::vector<std::string> more_before, more_behind;  // ids of what the stubs mb and ma stand for
};

// By scope. Throws what run_graphviz throws.
std::vector<ScopeDrawing> draw_scopes(const GraphView& view, const GraphvizOptions& options);

}  // namespace lockstep::internal
