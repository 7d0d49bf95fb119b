#include "lockstep/graph/interpreter.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "lockstep/graph/internal/eval.h"
#include "lockstep/graph/verifier.h"

namespace lockstep {
namespace {

void check_feed(const Graph& graph, NodeId parameter, const Tensor& feed) {
  const Node& node = graph.node(parameter);
  const TensorSpec& expected = node.outputs()[0];
  if (!feed.defined()) {
    throw InvalidArgument(
        str("placeholder '", node.name(), "' expects ", expected, ", got an empty tensor handle"),
        place_of(node));
  }
  if (feed.dtype() != expected.dtype || !expected.shape.admits(feed.shape())) {
    throw InvalidArgument(str("placeholder '", node.name(), "' expects ", expected, ", got ", feed.spec()),
                          place_of(node));
  }
}

// The placeholders of a graph, for messages.
std::string expectations(const Graph& graph) {
  std::string text;
  for (const NodeId id : graph.parameters()) {
    text += str(text.empty() ? "" : ", ", "'", graph.node(id).name(), "' ", graph.node(id).outputs()[0]);
  }
  return text.empty() ? "no feeds" : text;
}

}  // namespace

// One run: what it reads and writes until it commits.
struct Interpreter::Run {
  Interpreter& self;
  RunInfo info;
  NodeView::VariableSpecs specs;
  std::map<std::string, Tensor> variables;

  std::vector<Tensor> run_graph(const Graph& graph, std::span<const Tensor> arguments, int replica) {
    std::vector<std::vector<Tensor>> values(graph.id_bound());
    for (std::size_t i = 0; i < arguments.size(); ++i) values[graph.parameters()[i].index()] = {arguments[i]};
    std::vector<Tensor> inputs;
    for (const NodeId id : order_of(graph)) {
      std::vector<Tensor>& outputs = values[id.index()];
      if (!outputs.empty()) continue;  // a parameter
      const Node& node = graph.node(id);
      inputs.clear();
      for (const ValueId input : node.inputs()) inputs.push_back(values[input.node.index()].at(input.output));
      outputs = node.op().region_kind == RegionKind::kNone ? run_node(node, inputs, replica)
                                                           : run_regions(node, inputs, replica);
    }
    std::vector<Tensor> results;
    for (const ValueId result : graph.results())
      results.push_back(values[result.node.index()].at(result.output));
    return results;
  }

  const std::vector<NodeId>& order_of(const Graph& graph) {
    const auto [entry, is_new] = self.orders_.try_emplace(&graph);
    if (is_new) entry->second = graph.topological_order();
    return entry->second;
  }

  std::vector<Tensor> run_node(const Node& node, std::span<const Tensor> inputs, int replica) {
    try {
      const OpTraits& traits = node.op().traits;
      // Inside a replicated region the replica that runs; elsewhere the one the node was made for, if any.
      const int draws_as = std::max(replica >= 0 ? replica : node.provenance().replica, 0);
      internal::EvalContext context{info, draws_as, &specs, nullptr};
      const auto& update = traits.updates_variable;
      const std::optional<std::string> attribute =
          update ? std::optional(update->attribute) : traits.reads_variable;
      if (!attribute) return internal::evaluate(node, inputs, context);
      const auto* variable = node.find<VariableRef>(*attribute);
      LOCKSTEP_CHECK(variable != nullptr && variables.contains(variable->name));
      Tensor& value = variables.at(variable->name);
      context.variable = &value;
      std::vector<Tensor> outputs = internal::evaluate(node, inputs, context);
      if (update) value = outputs.at(0);
      return outputs;
    } catch (const Error& error) {
      std::throw_with_nested(Error(error.code(), error.message(), place_in(node, replica)));
    } catch (const std::exception& error) {
      std::throw_with_nested(Error(ErrorCode::kFailedPrecondition, str("the kernel failed: ", error.what()),
                                   place_in(node, replica)));
    } catch (...) {
      std::throw_with_nested(Error(ErrorCode::kFailedPrecondition,
                                   "the kernel threw something that is not an exception",
                                   place_in(node, replica)));
    }
  }

  // Errors inside regions carry the place of the node inside.
  std::vector<Tensor> run_regions(const Node& node, std::span<const Tensor> inputs, int replica) {
    switch (node.op().region_kind) {
      case RegionKind::kCond: {
        const bool holds = inputs[0].item() != 0;
        return run_graph(node.regions()[holds ? 0 : 1], inputs.subspan(1), replica);
      }
      case RegionKind::kWhile: return run_while(node, inputs, replica);
      case RegionKind::kReplicated: return run_replicated(node, inputs);
      case RegionKind::kNone: break;
    }
    LOCKSTEP_CHECK(false, "node '", node.name(), "' has no regions");
    return {};
  }

  std::vector<Tensor> run_while(const Node& node, std::span<const Tensor> inputs, int replica) {
    std::vector<Tensor> values(inputs.begin(), inputs.end());
    const auto carried = static_cast<std::size_t>(*node.find<std::int64_t>("carried"));
    for (std::int64_t trip = 0; run_graph(node.regions()[0], values, replica).at(0).item() != 0; ++trip) {
      if (trip == self.options_.max_trips) {
        throw FailedPrecondition(
            str("the loop ran ", trip, " times without its condition turning false; raise ",
                "InterpreterOptions::max_trips if it should"),
            place_in(node, replica));
      }
      std::vector<Tensor> next = run_graph(node.regions()[1], values, replica);
      std::ranges::move(next, values.begin());
    }
    values.resize(carried);
    return values;
  }

  std::vector<Tensor> run_replicated(const Node& node, std::span<const Tensor> inputs) {
    const auto replicas = static_cast<std::size_t>(*node.find<std::int64_t>("replicas"));
    const auto shared = static_cast<std::size_t>(*node.find<std::int64_t>("shared"));
    const Graph& region = node.regions()[0];
    std::vector<Tensor> outputs(region.results().size() * replicas);
    for (std::size_t r = 0; r < replicas; ++r) {
      std::vector<Tensor> arguments(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(shared));
      for (std::size_t at = shared + r; at < inputs.size(); at += replicas) arguments.push_back(inputs[at]);
      std::vector<Tensor> results = run_graph(region, arguments, static_cast<int>(r));
      for (std::size_t i = 0; i < results.size(); ++i) outputs[i * replicas + r] = std::move(results[i]);
    }
    return outputs;
  }

  static ErrorPlace place_in(const Node& node, int replica) {
    ErrorPlace place = place_of(node);
    if (replica >= 0) place.replica = replica;
    return place;
  }
};

Interpreter::Interpreter(Graph graph, InterpreterOptions options)
    : graph_(std::make_unique<const Graph>(std::move(graph))), options_(options) {
  verify(*graph_);
  for (const VariableDecl& decl : graph_->variables()) {
    variables_[decl.name] =
        decl.initial.defined() ? decl.initial : Tensor::zeros(decl.spec.dtype, decl.spec.shape);
  }
  for (const Node& node : graph_->nodes()) {
    advances_step_ = advances_step_ || has(effects_of(node), Effect::kWritesVariable | Effect::kRandom);
  }
}

Interpreter::~Interpreter() = default;
Interpreter::Interpreter(Interpreter&&) noexcept = default;
Interpreter& Interpreter::operator=(Interpreter&&) noexcept = default;

void Interpreter::set_variable(std::string_view name, const Tensor& value) {
  const VariableDecl* decl = graph_->find_variable(name);
  if (decl == nullptr) throw NotFound(str("the graph declares no variable '", name, "'"));
  if (!value.defined() || value.spec() != decl->spec) {
    throw InvalidArgument(str("variable '", name, "' holds ", decl->spec, ", got ",
                              value.defined() ? to_string(value.spec()) : "an empty tensor handle"));
  }
  variables_[decl->name] = value.clone();
}

std::vector<Tensor> Interpreter::run(const Feeds& feeds) {
  std::vector<Tensor> ordered;
  for (const NodeId id : graph_->parameters()) {
    const Node& node = graph_->node(id);
    const auto feed = feeds.find(node.name());
    if (feed == feeds.end()) {
      throw InvalidArgument(
          str("placeholder '", node.name(), "' expects ", node.outputs()[0], " and was not fed"),
          place_of(node));
    }
    ordered.push_back(feed->second);
  }
  for (const auto& [name, feed] : feeds) {
    const NodeId id = graph_->find(name);
    if (!id.valid() || std::ranges::find(graph_->parameters(), id) == graph_->parameters().end()) {
      throw InvalidArgument(
          str("'", name, "' is fed but is no placeholder; the graph expects ", expectations(*graph_)));
    }
  }
  return run_checked(ordered);
}

std::vector<Tensor> Interpreter::run(const std::vector<Tensor>& feeds) {
  if (feeds.size() != graph_->parameters().size()) {
    throw InvalidArgument(str("got ", feeds.size(), " feeds; the graph expects ", expectations(*graph_)));
  }
  return run_checked(feeds);
}

std::vector<Tensor> Interpreter::run_checked(const std::vector<Tensor>& feeds) {
  for (std::size_t i = 0; i < feeds.size(); ++i) check_feed(*graph_, graph_->parameters()[i], feeds[i]);
  Run run{*this, {options_.seed, step_}, variable_specs(*graph_), variables_};
  std::vector<Tensor> results = run.run_graph(*graph_, feeds, -1);
  // What is left with one owner is the caller's alone; the rest is shared with feeds, variables or constants.
  std::vector<Tensor> own;
  own.reserve(results.size());
  for (const Tensor& result : results) own.push_back(result.use_count() > 1 ? result.clone() : result);
  variables_ = std::move(run.variables);
  if (advances_step_) ++step_;
  return own;
}

}  // namespace lockstep
