// graph/passes/recompute_checkpoints.cpp - gradients compute values again instead of keeping them.
#include "lockstep/graph/passes/recompute_checkpoints.h"

#include <algorithm>
#include <vector>

#include "lockstep/graph/ir/internal/gradient_nodes.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

class Recompute {
 public:
  Recompute(Graph& graph, std::string_view pass) : graph_(graph), edit_(graph, pass) {}

  bool run() {
    const std::vector<NodeId> order = graph_.topological_order();
    find_candidates(order);
    find_segments(order);
    for (const NodeId id : order) {  // from the loss back, as gradients run
      const Node& node = graph_.node(id);
      if (!is_gradient(node) || node.op().traits.gives_shape) continue;  // a shape needs no contents
      const std::vector<ValueId> inputs(node.inputs().begin(), node.inputs().end());
      rewire(id);
      for (const ValueId input : inputs) note_reader(input.node, id);
      if (!inputs.empty()) last_ = id;
    }
    return edit_.changed();
  }

 private:
  static bool is_gradient(const Node& node) { return internal::is_gradient_share(node); }

  // Forward nodes that a checkpoint depends on and that may run twice.
  void find_candidates(const std::vector<NodeId>& order) {
    std::vector<bool> before(graph_.id_bound(), false);  // some checkpoint depends on it
    again_.assign(graph_.id_bound(), false);
    copies_.resize(graph_.id_bound());
    for (auto id = order.rbegin(); id != order.rend(); ++id) {
      const Node& node = graph_.node(*id);
      const bool marks = node.op().traits.checkpoint;
      if (marks || before[id->index()]) {
        for (const ValueId input : node.inputs()) before[input.node.index()] = true;
      }
      const Effect effects = effects_of(node);
      const bool repeatable = effects == Effect::kPure || effects == Effect::kRandom;
      again_[id->index()] =
          before[id->index()] && !marks && repeatable && !node.inputs().empty() && !is_gradient(node);
    }
    // A checkpoint keeps its input alive: the two are one value.
    for (const NodeId id : order) {
      const Node& node = graph_.node(id);
      if (node.op().traits.checkpoint) again_[node.inputs()[0].node.index()] = false;
    }
  }

  // The checkpoints around each forward node: the last one it depends on, and the first one that depends on
  // it.
  void find_segments(const std::vector<NodeId>& order) {
    behind_.assign(graph_.id_bound(), kNone);
    ahead_.assign(graph_.id_bound(), kNone);
    for (const NodeId id : order) {
      const Node& node = graph_.node(id);
      if (is_gradient(node)) continue;
      std::int32_t& behind = behind_[id.index()];
      for (const ValueId input : node.inputs()) behind = std::max(behind, behind_[input.node.index()]);
      if (!node.op().traits.checkpoint) continue;
      behind = static_cast<std::int32_t>(segments_.size());
      segments_.emplace_back();
    }
    for (auto id = order.rbegin(); id != order.rend(); ++id) {
      const Node& node = graph_.node(*id);
      if (is_gradient(node)) continue;
      const bool marks = node.op().traits.checkpoint;
      const std::int32_t next = marks ? behind_[id->index()] : ahead_[id->index()];
      for (const ValueId input : node.inputs()) {
        std::int32_t& ahead = ahead_[input.node.index()];
        if (next != kNone && (ahead == kNone || next < ahead)) ahead = next;
      }
    }
  }

  void note_reader(NodeId forward, NodeId reader) {
    const std::int32_t segment = behind_[forward.index()];
    if (segment != kNone) segments_[static_cast<std::size_t>(segment)].readers.push_back(reader);
  }

  void rewire(NodeId reader) {
    const std::size_t count = graph_.node(reader).inputs().size();
    for (std::size_t i = 0; i < count; ++i) {
      const ValueId input = graph_.node(reader).inputs()[i];
      if (input.node.index() >= again_.size() || !again_[input.node.index()]) continue;
      const NodeId copy = copy_of(input.node, reader);
      edit_.set_input(reader, i, {copy, input.output});
    }
  }

  // The copy of a node and of everything it needs. It is made for the first reader that needs it. It waits
  // for the gradients that this reader waits for, and for the gradient nodes that read values after the next
  // checkpoint. There is no cycle: no gradient node before the reader can need the copy, because it is new.
  NodeId copy_of(NodeId wanted, NodeId reader) {
    std::vector<NodeId> stack = {wanted};
    while (!stack.empty()) {
      const NodeId id = stack.back();
      if (copies_[id.index()].valid()) {
        stack.pop_back();
        continue;
      }
      const Node& node = graph_.node(id);
      bool ready = true;
      for (const ValueId input : node.inputs()) {
        if (!again_[input.node.index()] || copies_[input.node.index()].valid()) continue;
        stack.push_back(input.node);
        ready = false;
      }
      if (!ready) continue;
      stack.pop_back();
      std::vector<ValueId> inputs;
      bool starts = true;  // all inputs are values that exist already
      for (const ValueId input : node.inputs()) {
        const bool copied = again_[input.node.index()];
        inputs.push_back(copied ? ValueId{copies_[input.node.index()], input.output} : input);
        starts = starts && !copied;
      }
      const NodeId copy = edit_.clone(id, node.name() + "/again", inputs, node.provenance().replica,
                                      "computed again for gradients");
      copies_[id.index()] = copy;
      if (starts) wait_for_gradients(copy, id, reader);
    }
    return copies_[wanted.index()];
  }

  void wait_for_gradients(NodeId copy, NodeId original, NodeId reader) {
    std::vector<NodeId> before;
    for (const ValueId input : graph_.node(reader).inputs()) {
      const Node& node = graph_.node(input.node);
      if (is_gradient(node) && !node.inputs().empty()) before.push_back(input.node);
    }
    // A reader of forward values alone (a mask, say) waits for no gradient: order its copy after the gradient
    // node before it.
    if (before.empty() && last_.valid()) before.push_back(last_);
    if (ahead_[original.index()] != kNone) {
      Segment& done = segments_[static_cast<std::size_t>(ahead_[original.index()])];
      if (done.followed_by.valid()) {
        before.push_back(done.followed_by);
      } else {
        before.insert(before.end(), done.readers.begin(), done.readers.end());
        done.followed_by = copy;
      }
    }
    for (const NodeId id : before) edit_.add_control(copy, id);
  }

  static constexpr std::int32_t kNone = -1;
  // The nodes after a checkpoint, up to the next one.
  struct Segment {
    std::vector<NodeId> readers;  // gradient nodes that read the segment, or copies of it
    NodeId followed_by;           // the first copy that waits for all of them; other copies wait for it
  };

  Graph& graph_;
  Rewriter edit_;
  std::vector<bool> again_;                   // by id: computed again for gradients
  std::vector<NodeId> copies_;                // by id
  std::vector<std::int32_t> behind_, ahead_;  // by id: checkpoints, numbered in topological order
  std::vector<Segment> segments_;             // by checkpoint
  NodeId last_;                               // the previous gradient node
};

class RecomputeCheckpoints final : public Pass {
 public:
  std::string_view name() const override { return "recompute-checkpoints"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& /*context*/) override {
    const bool marked = std::ranges::any_of(graph.nodes().begin(), graph.nodes().end(),
                                            [](const Node& node) { return node.op().traits.checkpoint; });
    return outcome_of(marked && Recompute(graph, name()).run());
  }
};

}  // namespace

std::unique_ptr<Pass> make_recompute_checkpoints() { return std::make_unique<RecomputeCheckpoints>(); }

void internal::register_recompute_checkpoints(PassRegistry& registry) {
  add_pass(registry, "recompute-checkpoints",
           "gradients compute what leads to checkpoints again instead of keeping it",
           make_recompute_checkpoints);
}

}  // namespace lockstep
