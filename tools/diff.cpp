// tools/diff.cpp - lockstep diff: the differences between two graphs.
#include <iostream>

#include "commands.h"
#include "graph_input.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/transform/pipeline.h"
#include "lockstep/io/drawings/html.h"
#include "lockstep/io/graphs/graph_diff.h"
#include "progress.h"

namespace lockstep::tools {

int run_command(const DiffCommand& command) {
  if (command.before == "-" && command.after == "-")
    throw UsageError("diff: only one of the graphs can come on standard input");
  if (command.html == "-" && !command.quiet)
    throw UsageError(
        "diff: --html: the differences go to standard output: name a file for the page, or give --quiet");
  const Graph before = read_graph_input(command.before, UnknownOps::kKeep);
  const Graph after = read_graph_input(command.after, UnknownOps::kKeep);
  const GraphDiff diff = diff_graphs(before, after);
  if (!command.html.empty()) {
    Progress progress("drawing");
    progress.at(0, str(count_nodes(before), " and ", count_nodes(after), " nodes"));
    write_output(command.html,
                 to_html(before, after, {.title = str(command.before, " and ", command.after)}));
  }
  if (!command.quiet && (!diff.same() || command.html.empty())) std::cout << to_text(diff);
  return diff.same() ? kSuccess : kFailure;
}

}  // namespace lockstep::tools
