// io/drawings/html.h - a graph as a page to explore in a browser: one file, no network.
//
//   write_html(train.replicated_graph(), "step.html");                               // a graph
//   write_html(train.step_graph(), train.replicated_graph(), "step.html");           // before and after
//   write_html(record_pipeline(strategy, train.step_graph()), "passes.html");        // a slider over the passes
//
// One drawing per name scope, folded as io/drawings/graph_view.h says: open a scope, go back along the path
// above the drawing, drag and zoom, search by name, op or device, click for a node's facts (specs,
// attributes, device, whether replicas hold the same bits, cost, the line that made it). Several stages share
// one layout: what a pass added, removed, rewired or made anew is marked. Light and dark; everything can be
// done with the keyboard (the page's help says how).
//
// Graphviz lays the drawings out when the page is made, and is not needed to look at it (failures:
// io/drawings/svg.h). A graph of 20,000 nodes opens in a second or two, since only one scope is drawn at a
// time.
//
// Thread safety: pure functions, but for the files that write_html replaces.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/io/drawings/graph_view.h"
#include "lockstep/io/drawings/pipeline_recorder.h"
#include "lockstep/io/drawings/svg.h"

namespace lockstep {

struct HtmlOptions {
  ViewOptions view = {};
  std::string title = "Lockstep graph";
  GraphvizOptions graphviz = {};  // its limit is for one run: the drawings of about a hundred scopes
};

LOCKSTEP_API std::string to_html(const Graph& graph, const HtmlOptions& options = {});
// Exact if `after` was made from `before` (or a copy of it) by passes: nodes are matched by identity. Else,
// as with graphs from text files, they are matched by name; the page says which.
LOCKSTEP_API std::string to_html(const Graph& before, const Graph& after, const HtmlOptions& options = {});
// If there are more stages than GraphView::kMaxStages, neighbours are joined.
LOCKSTEP_API std::string to_html(const PipelineRecording& recording, const HtmlOptions& options = {});

// The same into a file, which is replaced whole.
LOCKSTEP_API void write_html(const Graph& graph, const std::filesystem::path& file,
                             const HtmlOptions& options = {});
LOCKSTEP_API void write_html(const Graph& before, const Graph& after, const std::filesystem::path& file,
                             const HtmlOptions& options = {});
LOCKSTEP_API void write_html(const PipelineRecording& recording, const std::filesystem::path& file,
                             const HtmlOptions& options = {});

}  // namespace lockstep
