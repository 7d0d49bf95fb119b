// io/drawings/svg.h - drawings laid out by Graphviz.
//
//   write_file_whole("step.svg", to_svg(step.replicated_graph()));
//
// Layout is Graphviz's work: its program `dot` runs as a child process, fed and read through pipes, without a
// shell and without files. It is needed only when this is called.
//
//   failure   NotFound if there is no such program, saying what to install; DeadlineExceeded if it takes
//             longer than allowed, and it is ended then; FailedPrecondition with its messages if it fails
//
// Thread safety: any number of threads at once, each with a process of its own.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/steady_time.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/io/drawings/dot.h"

namespace lockstep {

struct GraphvizOptions {
  std::string program = "dot";  // looked for in PATH unless it has a slash in it
  std::chrono::milliseconds limit = std::chrono::seconds(60);
  std::uint64_t memory_bytes = std::uint64_t{4} << 30U;  // that it may take; 0: no limit
  std::string* warnings = nullptr;                       // receives its messages besides the drawing
};

// Can Graphviz be run?
LOCKSTEP_API Decision has_graphviz(const GraphvizOptions& options = {});

// Graphviz's output for one or more drawings, in one of its formats: "svg", "png", "plain".
LOCKSTEP_API std::string run_graphviz(std::string_view dot, std::string_view format = "svg",
                                      const GraphvizOptions& options = {});

LOCKSTEP_API std::string to_svg(const Graph& graph, const DotOptions& drawing = {},
                                const GraphvizOptions& options = {});

}  // namespace lockstep
