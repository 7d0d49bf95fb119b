// tools/runner.cpp - a graph ready to run on its feeds: plainly, or distributed by a strategy.
#include "runner.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "graph_input.h"
#include "lockstep/core/base/printable.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/strategies/strategy_registry.h"

namespace lockstep::tools {

namespace {

void note_cpu(const std::string& device, std::size_t& count) {
  const Device parsed = Device::parse(device);
  if (parsed.kind == DeviceKind::kCpu) count = std::max(count, static_cast<std::size_t>(parsed.index) + 1);
}

// Raises `count` to the number of logical CPUs that the nodes and variables of a graph are placed on.
void note_devices(const Graph& graph, std::size_t& count) {
  for (const Node& node : graph.nodes()) {
    if (!node.device().empty()) note_cpu(node.device(), count);
    for (const Graph& region : node.regions()) note_devices(region, count);
  }
  for (const VariableDecl& decl : graph.variables()) {
    if (!decl.device.empty()) note_cpu(decl.device, count);
  }
}

Runtime make_runtime(const RunSettings& settings, std::size_t cpus) {
  for (const std::string& device : settings.devices) note_cpu(device, cpus);
  return Runtime({.threads = settings.threads, .cpu_devices = cpus, .seed = settings.seed});
}

// Combines --strategy and --devices into the text that makes the strategy.
std::string strategy_text(const RunSettings& settings, std::size_t& cpus) {
  const std::vector<PassText> parts = parse_passes(settings.strategy);
  if (parts.size() != 1)
    throw UsageError(str("--strategy: expected one strategy, got '", settings.strategy, "'"));
  std::vector<std::pair<std::string, OptionValue>> options;
  for (const OptionText& option : parts[0].options) {
    if (option.name == "devices" || option.name.ends_with("device")) {
      if (!settings.devices.empty() && option.name.starts_with("device"))
        throw UsageError("--strategy names devices, and so does --devices: leave out one of them");
      for (const std::string& device : option.values) note_cpu(device, cpus);
    }
    if (option.is_list) {
      options.emplace_back(option.name, option.values);
    } else {
      options.emplace_back(option.name, option.values.front());
    }
  }
  if (settings.devices.empty()) return print_pass(parts[0].name, options);
  const std::vector<StrategyInfo> infos = StrategyRegistry::global().strategies();
  const auto info = std::ranges::find(infos, parts[0].name, &StrategyInfo::name);
  if (info == infos.end()) return parts[0].name;  // making it fails, and says what there is
  const auto takes = [&](std::string_view option) {
    return std::ranges::find(info->options, option, &OptionSpec::name) != info->options.end();
  };
  if (takes("devices")) {
    options.emplace_back("devices", settings.devices);
  } else if (takes("device") && settings.devices.size() == 1) {
    options.emplace_back("device", settings.devices[0]);
  } else {
    throw UsageError(str("--devices: strategy '", info->name, "' ",
                         takes("device") ? "takes one device" : "takes no devices", ", got ",
                         settings.devices.size()));
  }
  return print_pass(info->name, options);
}

// Each result is named after its node; one that is returned again gets a number at the end, which makes its
// name unique.
std::vector<std::string> result_names(const Graph& graph) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  std::vector<std::size_t> again;
  for (const ValueId result : graph.results()) {
    std::string name = graph.node(result.node).name();
    if (result.output != 0) name += str(":", result.output);
    if (!taken.insert(name).second) again.push_back(names.size());
    names.push_back(std::move(name));
  }
  for (const std::size_t place : again) {
    const std::string name = names[place];
    for (std::size_t i = 1; !taken.insert(names[place]).second; ++i) names[place] = str(name, "_", i);
  }
  return names;
}

// Throws unless every input has a feed, and every feed an input.
void check_feeds(const Feeds& feeds, const std::vector<std::pair<std::string, TensorSpec>>& inputs) {
  std::string missing, known;
  std::set<std::string, std::less<>> names;
  for (const auto& [name, spec] : inputs) {
    names.insert(name);
    known += str(known.empty() ? "" : ", ", name, ": ", spec);
    if (!feeds.contains(name)) missing += str(missing.empty() ? "" : ", ", name, ": ", spec);
  }
  if (!missing.empty())
    throw InvalidArgument(str("placeholders without a feed: ", missing, "; give --feed NAME=FILE.npy"));
  for (const auto& [name, value] : feeds) {
    if (!names.contains(name)) {
      throw InvalidArgument(str("the graph has no placeholder '", printable(name), "'; it has ",
                                known.empty() ? "none" : known));
    }
  }
}

// Rows that belong together go to one replica, so all inputs that are split must have the same number of
// rows.
void check_rows(const std::vector<InputSpec>& inputs, const Feeds& feeds) {
  const InputSpec* first = nullptr;
  const auto rows = [&](const InputSpec& input) { return feeds.find(input.name)->second.shape()[0]; };
  for (const InputSpec& input : inputs) {
    if (input.shared || feeds.find(input.name)->second.shape().rank() == 0) continue;
    if (first == nullptr) first = &input;
    if (rows(input) == rows(*first)) continue;
    throw InvalidArgument(str("'", first->name, "' has ", rows(*first), " rows and '", input.name, "' ",
                              rows(input),
                              ": with --strategy feeds are split row by row, all alike; name in "
                              "--shared what all replicas should see whole"));
  }
}

}  // namespace

Runner::Runner(const RunSettings& settings) {
  if (settings.input == "-" &&
      std::ranges::any_of(settings.feeds, [](const std::string& feed) { return feed.ends_with("=-"); }))
    throw UsageError("--feed: the graph comes on standard input already");
  Graph graph = read_graph_input(settings.input);
  const Feeds feeds = read_feeds(settings.feeds);
  names_ = result_names(graph);
  if (settings.strategy.empty()) {
    if (!settings.shared.empty()) throw UsageError("--shared says how feeds are split: it needs --strategy");
    compile_plain(settings, std::move(graph), feeds);
  } else {
    distribute(settings, std::move(graph), feeds);
  }
}

void Runner::distribute(const RunSettings& settings, Graph graph, const Feeds& feeds) {
  std::size_t cpus = 1;
  const std::string text = strategy_text(settings, cpus);
  StrategyOptions base;
  base.runtime = make_runtime(settings, cpus);
  base.compile.allow_tf32 = settings.allow_tf32;
  strategy_ = StrategyRegistry::global().make(text, base);

  std::vector<std::string> shared;
  const bool plain = std::ranges::none_of(
      graph.nodes(), [](const Node& node) { return node.op().region_kind == RegionKind::kReplicated; });
  for (const NodeId id : plain ? graph.parameters() : std::vector<NodeId>()) {
    const std::string& name = graph.node(id).name();
    if (graph.spec({id, 0}).shape.rank() == 0 ||
        std::ranges::find(settings.shared, name) != settings.shared.end())
      shared.push_back(name);
  }
  for (const std::string& name : settings.shared) {
    if (std::ranges::find(shared, name) == shared.end())
      throw InvalidArgument(str("--shared: the graph has no placeholder '", name, "' that could be"));
  }
  step_ = strategy_->distribute(std::move(graph), shared);

  std::vector<std::pair<std::string, TensorSpec>> inputs;
  for (const InputSpec& input : step_->inputs()) inputs.emplace_back(input.name, input.spec);
  check_feeds(feeds, inputs);
  const auto replicas = static_cast<std::size_t>(strategy_->num_local_replicas());
  check_rows(step_->inputs(), feeds);
  for (const InputSpec& input : step_->inputs()) {
    const Tensor& value = feeds.find(input.name)->second;
    arguments_.push_back(input.shared ? PerReplica<Tensor>(value)
                                      : PerReplica<Tensor>(split_rows(value, replicas)));
  }
}

void Runner::compile_plain(const RunSettings& settings, Graph graph, const Feeds& feeds) {
  std::size_t cpus = 1;
  note_devices(graph, cpus);
  std::vector<std::pair<std::string, TensorSpec>> inputs;
  for (const NodeId id : graph.parameters()) inputs.emplace_back(graph.node(id).name(), graph.spec({id, 0}));
  check_feeds(feeds, inputs);
  program_ = compile(std::move(graph), make_runtime(settings, cpus), {.allow_tf32 = settings.allow_tf32});
  for (const auto& [name, spec] : inputs) ordered_.push_back(feeds.find(name)->second);
}

std::vector<Runner::Result> Runner::run(Observer* observer) const {
  RunOptions options;
  options.observer = observer;
  std::vector<Result> results;
  if (step_) {
    std::vector<PerReplica<Tensor>> values = step_->run(arguments_, options);
    for (std::size_t i = 0; i < values.size(); ++i) results.push_back({names_[i], std::move(values[i])});
  } else {
    std::vector<Tensor> values = program_.run(ordered_, options);
    for (std::size_t i = 0; i < values.size(); ++i) results.push_back({names_[i], std::move(values[i])});
  }
  return results;
}

PlanSummary Runner::plan() const {
  if (!step_) return program_.plan(ordered_);
  std::vector<Tensor> feeds;
  for (const PerReplica<Tensor>& argument : arguments_)
    feeds.insert(feeds.end(), argument.values().begin(), argument.values().end());
  return step_->program().plan(feeds);
}

}  // namespace lockstep::tools
