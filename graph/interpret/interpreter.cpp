#include "lockstep/graph/interpret/interpreter.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/interpret/internal/evaluator.h"

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

Interpreter::Interpreter(Graph graph, InterpreterOptions options)
    : graph_(std::make_unique<const Graph>(std::move(graph))), options_(options) {
  verify(*graph_);
  orders_ = std::make_unique<const internal::GraphOrders>(*graph_);
  for (const VariableDecl& decl : graph_->variables()) {
    if (!decl.copy_of.empty()) {
      variables_[decl.name] = variables_.at(decl.copy_of);
      continue;
    }
    variables_[decl.name] =
        decl.initial.defined() ? decl.initial : Tensor::zeros(decl.spec.dtype, decl.spec.shape);
  }
  const std::vector<bool> live = internal::live_nodes(*graph_, orders_->of(*graph_));
  for (const Node& node : graph_->nodes()) {
    advances_step_ = advances_step_ || (live[node.id().index()] &&
                                        has(effects_of(node), Effect::kWritesVariable | Effect::kRandom));
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
  variables_[decl->shares ? decl->copy_of : decl->name] = value.clone();
  update_shared();
}

void Interpreter::update_shared() {
  for (const VariableDecl& decl : graph_->variables()) {
    if (decl.shares) variables_[decl.name] = variables_.at(decl.copy_of);
  }
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
  internal::Evaluator run({options_.seed, step_}, variable_specs(*graph_), variables_, options_.max_trips,
                          *orders_);
  std::vector<Tensor> results = run.run_graph(*graph_, feeds, -1);
  // What is left with one owner is the caller's alone; the rest is shared with feeds, variables or constants.
  std::vector<Tensor> own;
  own.reserve(results.size());
  for (const Tensor& result : results) own.push_back(result.use_count() > 1 ? result.clone() : result);
  variables_ = std::move(run.variables());
  update_shared();
  if (advances_step_) ++step_;
  return own;
}

}  // namespace lockstep
