// tools/dump.cpp - lockstep dump: a graph as a drawing, a page or text.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "commands.h"
#include "graph_input.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/transform/pipeline.h"
#include "lockstep/io/drawings/dot.h"
#include "lockstep/io/drawings/html.h"
#include "lockstep/io/drawings/model_explorer.h"
#include "lockstep/io/drawings/pipeline_recorder.h"
#include "lockstep/io/drawings/svg.h"
#include "lockstep/strategies/strategy_registry.h"
#include "progress.h"

namespace lockstep::tools {

namespace {

std::string format_of(const DumpCommand& command) {
  if (!command.format.empty()) return command.format;
  return format_by_extension(command.output, {{"text", {"lks", "txt"}},
                                              {"dot", {"dot", "gv"}},
                                              {"svg", {"svg"}},
                                              {"html", {"html", "htm"}},
                                              {"json", {"json"}}});
}

// An option that the format ignores is a mistake.
void check_options(const DumpCommand& command, const std::string& format) {
  const auto needs = [&](const char* option, bool given, const std::vector<std::string>& formats) {
    if (!given || std::ranges::find(formats, format) != formats.end()) return;
    std::string list;
    for (const std::string& name : formats) list += str(list.empty() ? "" : " or ", name);
    throw UsageError(str("dump: ", option, " does nothing for ", format, ": it needs --format ", list));
  };
  needs("--before", !command.before.empty(), {"html"});
  needs("--color", !command.color.empty(), {"dot", "svg"});
  needs("--depth", command.depth >= 0, {"dot", "svg"});
  needs("--sites", command.sites, {"text"});
  needs("--provenance", command.provenance, {"text"});
}

DotOptions dot_options(const DumpCommand& command) {
  DotOptions options;
  options.colours = command.color == "replica" ? ColourBy::kReplica : ColourBy::kDevice;
  if (command.depth >= 0) options.max_depth = static_cast<std::size_t>(command.depth);
  return options;
}

// Says which pass runs.
class PassProgress final : public PassInstrumentation {
 public:
  explicit PassProgress(std::size_t passes) : progress_("pass", passes) {}
  void before_pass(const Pass& pass, const Graph& /*graph*/, std::size_t index) override {
    progress_.at(index + 1, pass.name());
  }

 private:
  Progress progress_;
};

HtmlOptions html_options(const DumpCommand& command) {
  HtmlOptions options;
  if (command.input != "-") options.title = command.input;
  return options;
}

// Writes the stages up to the pass that failed, which help to see why. The error of the pass is the one to
// report, whatever happens here.
void write_failed_passes(const DumpCommand& command, const std::string& format,
                         const PipelineRecording& recording) {
  if (format != "html" || recording.stages.empty()) return;
  try {
    write_output(command.output, to_html(recording, html_options(command)));
    std::cerr << "lockstep: a page of the passes up to the one that failed is in "
              << (command.output == "-" ? "standard output" : command.output) << '\n';
  } catch (const Error& error) {
    std::cerr << "lockstep: no page of the passes up to the one that failed: " << error.message() << "\n";
  }
}

}  // namespace

int run_command(const DumpCommand& command) {
  const std::string format = format_of(command);
  check_options(command, format);
  if (!command.before.empty() && !command.passes.empty())
    throw UsageError("dump: --before and --passes both say what came before: leave out one of them");
  if (command.before == "-" && command.input == "-")
    throw UsageError("dump: only one of the graphs can come on standard input");

  Graph graph = read_graph_input(command.input, UnknownOps::kKeep);
  PipelineRecorder recorder;
  if (!command.passes.empty()) {
    PassPipeline pipeline = StrategyRegistry::global().parse_pipeline(command.passes);
    PassProgress progress(pipeline.size());
    try {
      pipeline.run(graph, {.instrumentation = {&recorder, &progress}});
    } catch (const Error&) {
      write_failed_passes(command, format, recorder.recording());
      throw;
    }
  }

  Progress progress("drawing");
  progress.at(0, str(count_nodes(graph), " nodes"));
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
    text = to_html(read_graph_input(command.before, UnknownOps::kKeep), graph, html_options(command));
  } else {
    text = to_html(graph, html_options(command));
  }
  progress.clear();
  write_output(command.output, text);
  return kSuccess;
}

}  // namespace lockstep::tools
