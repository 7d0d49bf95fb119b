// graph/interpret/interpreter.cpp - the reference interpreter: one node after another, nothing planned,
// nothing clustered.
#include "lockstep/graph/interpret/interpreter.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
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

struct Interpreter::State {
  State(Graph made, InterpreterOptions given) : graph(std::move(made)), options(given) { verify(graph); }
  std::vector<Tensor> run(const std::vector<Tensor>& feeds);
  void update_shared();  // variables that share another variable's memory

  const Graph graph;
  const InterpreterOptions options;
  std::optional<const internal::GraphOrders> orders;  // of the graph, if it has been verified
  std::map<std::string, Tensor> variables;
  std::uint64_t step = 0;
  bool advances_step = false;
};

Interpreter::Interpreter(Graph graph, InterpreterOptions options)
    : state_(std::make_unique<State>(std::move(graph), options)) {
  State& state = *state_;
  state.orders.emplace(state.graph);
  for (const VariableDecl& decl : state.graph.variables()) {
    if (!decl.copy_of.empty() && !decl.initial.defined()) {
      state.variables[decl.name] = state.variables.at(decl.copy_of);
      continue;
    }
    state.variables[decl.name] =
        decl.initial.defined() ? decl.initial : Tensor::zeros(decl.spec.dtype, decl.spec.shape);
  }
  for (const NodeId id : state.orders->of(state.graph)) {
    const Effect effects = effects_of(state.graph.node(id));
    state.advances_step = state.advances_step || has(effects, Effect::kWritesVariable | Effect::kRandom);
  }
}

Interpreter::~Interpreter() = default;
Interpreter::Interpreter(Interpreter&&) noexcept = default;
Interpreter& Interpreter::operator=(Interpreter&&) noexcept = default;

const std::map<std::string, Tensor>& Interpreter::variables() const { return state_->variables; }
std::uint64_t Interpreter::step() const { return state_->step; }
void Interpreter::set_step(std::uint64_t step) { state_->step = step; }
const Graph& Interpreter::graph() const { return state_->graph; }

void Interpreter::set_variable(std::string_view name, const Tensor& value) {
  const VariableDecl* decl = graph().find_variable(name);
  if (decl == nullptr) throw NotFound(str("the graph declares no variable '", name, "'"));
  if (!value.defined() || value.spec() != decl->spec) {
    throw InvalidArgument(str("variable '", name, "' holds ", decl->spec, ", got ",
                              value.defined() ? to_string(value.spec()) : "an empty tensor handle"));
  }
  state_->variables[decl->shares ? decl->copy_of : decl->name] = value.clone();
  state_->update_shared();
}

void Interpreter::State::update_shared() {
  for (const VariableDecl& decl : graph.variables()) {
    if (decl.shares) variables[decl.name] = variables.at(decl.copy_of);
  }
}

std::vector<Tensor> Interpreter::run(const Feeds& feeds) {
  std::vector<Tensor> ordered;
  for (const NodeId id : graph().parameters()) {
    const Node& node = graph().node(id);
    const auto feed = feeds.find(node.name());
    if (feed == feeds.end()) {
      throw InvalidArgument(
          str("placeholder '", node.name(), "' expects ", node.outputs()[0], " and was not fed"),
          place_of(node));
    }
    ordered.push_back(feed->second);
  }
  for (const auto& [name, feed] : feeds) {
    const NodeId id = graph().find(name);
    if (!id.valid() || std::ranges::find(graph().parameters(), id) == graph().parameters().end()) {
      throw InvalidArgument(
          str("'", name, "' is fed but is no placeholder; the graph expects ", expectations(graph())));
    }
  }
  return state_->run(ordered);
}

std::vector<Tensor> Interpreter::run(const std::vector<Tensor>& feeds) {
  if (feeds.size() != graph().parameters().size()) {
    throw InvalidArgument(
        str("got ", counted(feeds.size(), "feed"), "; the graph expects ", expectations(graph())));
  }
  return state_->run(feeds);
}

std::vector<Tensor> Interpreter::run(std::initializer_list<Tensor> feeds) {
  return run(std::vector<Tensor>(feeds));
}

std::vector<Tensor> Interpreter::run() { return run(std::vector<Tensor>()); }

std::vector<Tensor> Interpreter::State::run(const std::vector<Tensor>& feeds) {
  for (std::size_t i = 0; i < feeds.size(); ++i) check_feed(graph, graph.parameters()[i], feeds[i]);
  internal::Evaluator evaluator({options.seed, step}, variable_specs(graph), variables, options.max_trips,
                                *orders);
  std::vector<Tensor> fed;
  fed.reserve(feeds.size());
  for (const Tensor& feed : feeds) fed.push_back(feed.host());
  std::vector<Tensor> results = evaluator.run_graph(graph, fed, -1);
  fed.clear();
  // A tensor with one owner belongs to the caller alone; the others are shared with feeds, variables or
  // constants.
  std::vector<Tensor> own;
  own.reserve(results.size());
  for (const Tensor& result : results) own.push_back(result.use_count() > 1 ? result.clone() : result);
  variables = std::move(evaluator.variables());
  update_shared();
  if (advances_step) ++step;
  return own;
}

}  // namespace lockstep
