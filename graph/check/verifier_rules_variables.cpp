// graph/check/verifier_rules_variables.cpp - are reads and writes of one variable in a fixed order?
//
// Along one topological order, every access must be ordered after the accesses it conflicts with since the
// last write: a read after the last write, a write after the last write and the reads since. Together these
// give a path between any two accesses one of which writes, whatever order was chosen. A direct edge answers
// at once; for the rest, one backward search per node looks for paths. All searches of a verification share a
// budget that is a multiple of the number of nodes, so that the check stays linear; once it is spent, only
// direct edges count.
#include <algorithm>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/graph/check/internal/verifier_rules.h"

namespace lockstep::internal::verifier {

void add_own_accesses(const Node& node, std::vector<VariableAccess>& accesses) {
  const OpTraits& traits = node.op().traits;
  if (traits.reads_variable) {
    if (const auto* variable = node.find<VariableRef>(*traits.reads_variable)) {
      accesses.push_back({variable->name, true, false});
    }
  }
  if (traits.updates_variable) {
    if (const auto* variable = node.find<VariableRef>(traits.updates_variable->attribute)) {
      accesses.push_back({variable->name, traits.updates_variable->uses_old_value, true});
    }
    for (const std::string& slot : traits.updates_variable->slots) {
      if (const auto* variable = node.find<VariableRef>(slot))
        accesses.push_back({variable->name, true, true});
    }
  }
}

namespace {

class OrderCheck {
 public:
  explicit OrderCheck(GraphCheck& check) : check_(check), graph_(check.graph) {}

  void run() {
    for (const NodeId id : check_.order) {
      const Node& node = graph_.node(id);
      accesses_.clear();
      add_own_accesses(node, accesses_);
      if (!node.regions().empty()) {
        const auto found = check_.region_accesses.find(id);
        if (found != check_.region_accesses.end()) {
          accesses_.insert(accesses_.end(), found->second.begin(), found->second.end());
        }
      }
      if (!accesses_.empty()) check_node(node);
    }
    for (const auto& [name, state] : states_) check_.accesses.push_back({name, state.read, state.written});
    std::ranges::sort(check_.accesses, {}, &VariableAccess::name);
  }

 private:
  struct State {
    NodeId last_write;
    std::vector<NodeId> reads;  // since the last write
    bool read = false;
    bool written = false;
  };
  // A node that must come before the node at hand, and the variable that requires it.
  struct Wanted {
    NodeId before;
    std::string_view variable;
  };

  void check_node(const Node& node) {
    wanted_.clear();
    for (const VariableAccess& access : accesses_) want(node, access);
    for (const VariableAccess& access : accesses_) note(node, access);
    if (wanted_.empty() || check_.cyclic) return;
    keep_unordered(node);
    for (const Wanted& wanted : wanted_) report(node, wanted);
  }

  void want(const Node& node, const VariableAccess& access) {
    const State& state = states_[access.name];
    const auto one = [&](NodeId before) {
      if (before.valid() && before != node.id()) wanted_.push_back({before, access.name});
    };
    one(state.last_write);
    if (access.writes) std::ranges::for_each(state.reads, one);
  }

  void note(const Node& node, const VariableAccess& access) {
    State& state = states_[access.name];
    state.read = state.read || access.reads;
    state.written = state.written || access.writes;
    if (access.writes) {
      state.last_write = node.id();
      state.reads.clear();
    } else if (state.last_write != node.id()) {  // a node that also writes counts as a write
      state.reads.push_back(node.id());
    }
  }

  // Drops from wanted_ the nodes that a direct edge or a path orders before the node.
  void keep_unordered(const Node& node) {
    if (stamps_.empty()) stamps_.resize(graph_.id_bound());
    ++stamp_;
    stack_.clear();
    push_inputs(node);
    drop_reached();
    if (wanted_.empty()) return;
    index_positions();
    std::size_t earliest = graph_.id_bound();
    for (const Wanted& wanted : wanted_) earliest = std::min(earliest, positions_[wanted.before.index()]);
    while (!stack_.empty()) {
      const NodeId id = stack_.back();
      stack_.pop_back();
      if (positions_[id.index()] <= earliest) continue;
      const Node& reached = graph_.node(id);
      const std::size_t work = 1 + reached.inputs().size() + reached.controls().size();
      if (work > check_.run.search_budget) break;
      check_.run.search_budget -= work;
      push_inputs(reached);
    }
    drop_reached();
  }

  void push_inputs(const Node& node) {
    const auto push = [&](NodeId id) {
      if (!graph_.contains(id) || stamps_[id.index()] == stamp_) return;
      stamps_[id.index()] = stamp_;
      stack_.push_back(id);
    };
    for (const ValueId input : node.inputs()) push(input.node);
    for (const NodeId control : node.controls()) push(control);
  }

  void drop_reached() {
    std::erase_if(wanted_, [&](const Wanted& wanted) { return stamps_[wanted.before.index()] == stamp_; });
  }

  void index_positions() {
    if (!positions_.empty()) return;
    positions_.resize(graph_.id_bound());
    for (std::size_t i = 0; i < check_.order.size(); ++i) positions_[check_.order[i].index()] = i;
  }

  void report(const Node& node, const Wanted& wanted) {
    if (!check_.run.wants(check_.rule)) return;
    const Node& before = graph_.node(wanted.before);
    check_.fail_at(
        node, str("'", before.name(), "' and '", node.name(), "' both use the variable '@", wanted.variable,
                  "' and one writes it, but nothing says which comes first; add a "
                  "control edge"));
  }

  GraphCheck& check_;
  const Graph& graph_;
  std::unordered_map<std::string_view, State, NameHash> states_;
  std::vector<VariableAccess> accesses_;
  std::vector<Wanted> wanted_;
  std::vector<NodeId> stack_;
  std::vector<std::uint32_t> stamps_;   // by id: reached in the search of that number
  std::vector<std::size_t> positions_;  // by id: place in the topological order
  std::uint32_t stamp_ = 0;
};

}  // namespace

void variable_order(GraphCheck& check) { OrderCheck(check).run(); }

}  // namespace lockstep::internal::verifier
