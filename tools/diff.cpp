// lockstep diff: what is different between two graphs.
#include <iostream>

#include "commands.h"
#include "graph_input.h"
#include "lockstep/io/graph_diff.h"
#include "lockstep/io/html.h"

namespace lockstep::tools {

int run_command(const DiffCommand& command) {
  if (command.before == "-" && command.after == "-")
    throw UsageError("diff: only one of the graphs can come on standard input");
  const Graph before = read_graph_input(command.before);
  const Graph after = read_graph_input(command.after);
  const GraphDiff diff = diff_graphs(before, after);
  if (!command.html.empty()) write_output(command.html, to_html(before, after));
  if (!command.quiet && (!diff.same() || command.html.empty())) std::cout << to_text(diff);
  return diff.same() ? kSuccess : kFailure;
}

}  // namespace lockstep::tools
