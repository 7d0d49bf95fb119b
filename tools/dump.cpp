// lockstep dump: a graph as a drawing, a page or text.
#include <iostream>
#include <limits>
#include <string>

#include "commands.h"
#include "graph_input.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/text.h"
#include "lockstep/io/dot.h"
#include "lockstep/io/html.h"
#include "lockstep/io/model_explorer.h"
#include "lockstep/io/pipeline_recorder.h"
#include "lockstep/io/svg.h"
#include "lockstep/strategies/strategy_registry.h"

namespace lockstep::tools {

namespace {

std::string format_of(const DumpCommand& command) {
  if (!command.format.empty()) return command.format;
  const std::string extension = extension_of(command.output);
  for (const char* known : {"dot", "svg", "html", "json"}) {
    if (extension == known) return known;
  }
  return extension == "gv" ? "dot" : extension == "htm" ? "html" : "text";
}

DotOptions dot_options(const DumpCommand& command) {
  DotOptions options;
  options.colours = command.color == "replica" ? ColourBy::kReplica : ColourBy::kDevice;
  if (command.depth >= 0) options.max_depth = static_cast<std::size_t>(command.depth);
  return options;
}

HtmlOptions html_options(const DumpCommand& command) {
  HtmlOptions options;
  if (command.input != "-") options.title = command.input;
  return options;
}

// The stages up to the pass that failed are what helps to see why: its error is the one to report, whatever happens here.
void write_failed_passes(const DumpCommand& command, const std::string& format,
                         const PipelineRecording& recording) {
  if (format != "html" || recording.stages.empty()) return;
  try {
    write_output(command.output, to_html(recording, html_options(command)));
  } catch (const Error& error) {
    std::cerr << "lockstep: no page of the passes up to the one that failed: " << error.message() << "\n";
  }
}

}  // namespace

int run_command(const DumpCommand& command) {
  const std::string format = format_of(command);
  if (!command.before.empty() && format != "html")
    throw UsageError("dump: --before makes a page of two graphs: it needs --format html");
  if (!command.before.empty() && !command.passes.empty())
    throw UsageError("dump: --before and --passes both say what came before: leave out one of them");
  if (command.before == "-" && command.input == "-")
    throw UsageError("dump: only one of the graphs can come on standard input");

  Graph graph = read_graph_input(command.input);
  PipelineRecorder recorder;
  if (!command.passes.empty()) {
    try {
      StrategyRegistry::global().parse_pipeline(command.passes).run(graph, {.instrumentation = {&recorder}});
    } catch (const Error&) {
      write_failed_passes(command, format, recorder.recording());
      throw;
    }
  }

  std::string text;
  if (format == "dot") {
    text = to_dot(graph, dot_options(command));
  } else if (format == "svg") {
    text = to_svg(graph, dot_options(command));
  } else if (format == "json") {
    text = to_model_explorer_json(graph);
  } else if (format == "text") {
    text = print(graph, {.sites = command.sites, .provenance = command.provenance});
  } else if (!command.passes.empty()) {
    text = to_html(recorder.recording(), html_options(command));
  } else if (!command.before.empty()) {
    text = to_html(read_graph_input(command.before), graph, html_options(command));
  } else {
    text = to_html(graph, html_options(command));
  }
  write_output(command.output, text);
  return kSuccess;
}

}  // namespace lockstep::tools
