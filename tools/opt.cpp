// tools/opt.cpp - lockstep opt: passes on a graph.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include "commands.h"
#include "graph_input.h"
#include "lockstep/core/error.h"
#include "lockstep/core/topology.h"
#include "lockstep/core/version.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/transform/pipeline.h"
#include "lockstep/io/graphs/graph_file.h"
#include "lockstep/strategies/strategy_registry.h"
#include "progress.h"
#include "shell_words.h"

namespace lockstep::tools {

namespace {

constexpr std::string_view kPassesLine = "// passes: ";

// Shows progress, prints graphs, and keeps the graph that a failing pass was given.
class Watch final : public PassInstrumentation {
 public:
  Watch(const OptCommand& command, const PassPipeline& pipeline)
      : keep_(!command.reproducer.empty()),
        names_(command.print_after.begin(), command.print_after.end()),
        progress_("pass", pipeline.size()) {
    std::set<std::string> known = {"changed", "all"};
    for (std::size_t i = 0; i < pipeline.size(); ++i) known.insert(std::string(pipeline.pass(i).name()));
    for (const std::string& name : names_) {
      if (!known.contains(name))
        throw UsageError(
            str("--print-after: '", name, "' is neither 'changed' nor 'all' nor a pass that runs"));
    }
  }

  struct Failure {
    Graph graph;         // before the pass
    std::string passes;  // the failing pass alone
    std::string error;
  };
  std::optional<Failure> failure;  // if it is to be kept
  bool failed = false;

  void before_pass(const Pass& pass, const Graph& graph, std::size_t index) override {
    progress_.at(index + 1, pass.name());
    if (keep_) before_ = graph;
  }
  void after_pass(const Pass& pass, const Graph& graph, std::size_t index,
                  const PassReport& report) override {
    if (index < seen_) return;  // in the second run, which looks for the pass at fault
    seen_ = index + 1;
    const bool changed = report.outcome == PassOutcome::kChanged;
    if (!names_.contains("all") && !(changed && names_.contains("changed")) &&
        !names_.contains(std::string(pass.name())))
      return;
    progress_.clear();
    std::cerr << "// after " << pass.to_string() << ": " << to_string(report.outcome) << '\n'
              << print(graph) << '\n';
  }
  void pass_failed(const Pass& pass, const Graph& /*graph*/, std::size_t /*index*/,
                   const std::exception& error) override {
    failed = true;
    if (keep_) failure = Failure{before_, pass.to_string(), error.what()};
  }

 private:
  bool keep_;
  std::set<std::string> names_;
  Progress progress_;
  std::size_t seen_ = 0;  // passes seen so far, so that none is printed twice
  Graph before_;
};

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

void write_reproducer(const OptCommand& command, const Watch::Failure& failure) {
  std::string rest;  // of the command lines
  for (const std::string& plugin : command.plugins) rest += " --load " + shell_word(plugin);
  if (!command.topology.empty()) rest += " --topology " + shell_word(command.topology);
  rest += " " + shell_word(command.reproducer);
  const std::string text = str("// Written by lockstep ", kVersion,
                               ": the graph that a failing pass was given. To see it fail again:\n",
                               "//   lockstep opt --run-reproducer", one_line(rest), "\n",
                               "//   lockstep opt --verify-each --passes=", single_quoted(failure.passes),
                               one_line(rest), "\n", "// error: ", one_line(failure.error), "\n", kPassesLine,
                               failure.passes, "\n", print(failure.graph));
  write_output(command.reproducer, text);
  std::cerr << "lockstep: what the pass was given is in "
            << (command.reproducer == "-" ? "standard output" : command.reproducer) << '\n';
}

std::string passes_of_reproducer(const std::string& text, const std::string& path) {
  const std::size_t begin = text.find(kPassesLine);
  if (begin == std::string::npos || (begin != 0 && text[begin - 1] != '\n'))
    throw InvalidArgument(str(path, ": this is no reproducer: it has no line '", kPassesLine, "...'"));
  const std::size_t end = text.find('\n', begin);
  return text.substr(begin + kPassesLine.size(), end - begin - kPassesLine.size());
}

GraphFormat format_of(const OptCommand& command) {
  std::string name = command.format;
  if (name.empty()) {
    name = format_by_extension(command.output,
                               {{"text", {"lks", "txt"}}, {"json", {"json"}}, {"binary", {"lkg"}}});
  }
  return name == "json" ? GraphFormat::kJson : name == "binary" ? GraphFormat::kBinary : GraphFormat::kText;
}

void print_times(const PipelineReport& report) {
  std::cerr << std::fixed << std::setprecision(3) << "        ms  nodes before   after  pass\n";
  double passes = 0;
  for (const PassReport& pass : report.passes) {
    std::cerr << std::setw(10) << pass.seconds * 1e3 << std::setw(14) << pass.nodes_before << std::setw(8)
              << pass.nodes_after << "  " << pass.name
              << (pass.outcome == PassOutcome::kChanged ? "" : " (changed nothing)") << '\n';
    passes += pass.seconds * 1e3;
  }
  std::cerr << std::setw(10) << passes << "  all passes; with checks and copies " << report.seconds * 1e3
            << '\n';
}

}  // namespace

int run_command(const OptCommand& command) {
  OptCommand asked = command;
  const GraphFormat format = format_of(asked);
  Graph graph;
  if (asked.run_reproducer) {
    if (!asked.passes.empty())
      throw UsageError("--run-reproducer takes the passes from the file: leave out --passes");
    const std::string text = read_input(asked.input);
    asked.passes = passes_of_reproducer(text, asked.input);
    asked.verify_each = true;
    asked.reproducer.clear();
    graph = parse(text, asked.input, input_limits());
  } else {
    graph = read_graph_input(asked.input);
  }
  const Topology topology = read_topology(asked.topology);
  PassContext context{.topology = asked.topology.empty() ? nullptr : &topology};
  PassPipeline pipeline = StrategyRegistry::global().parse_pipeline(asked.passes);
  std::optional<Watch> watch(std::in_place, asked, pipeline);
  PipelineOptions options;
  options.verify = asked.verify_each ? PipelineChecks::kAlways : PipelineChecks::kEnds;
  options.instrumentation = {&*watch};
  PipelineReport report;
  try {
    report = pipeline.run(graph, context, options);
  } catch (...) {
    const std::optional<Watch::Failure> failure = std::move(watch->failure);
    const bool offer = watch->failed && !failure && !asked.run_reproducer;
    watch.reset();  // takes the progress line away
    if (failure) {
      try {
        write_reproducer(asked, *failure);
      } catch (const std::exception& error) {  // which must not hide what went wrong first
        std::cerr << "lockstep: the reproducer cannot be written: " << error.what() << '\n';
      }
    }
    if (offer)
      std::cerr << "lockstep: add --reproducer FILE to keep the graph that the failing pass was given\n";
    throw;
  }
  watch.reset();
  if (asked.time) print_times(report);
  write_output(asked.output, write_graph(graph, format));
  return kSuccess;
}

}  // namespace lockstep::tools
