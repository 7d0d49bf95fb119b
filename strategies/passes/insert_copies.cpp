// strategies/passes/insert_copies.cpp - a copy wherever a value crosses from one memory to another.
#include "lockstep/strategies/passes/insert_copies.h"

#include <algorithm>
#include <map>

#include "lockstep/core/device.h"
#include "lockstep/graph/ir/placement.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/strategies/passes/internal/registrations.h"

namespace lockstep {

namespace {

const OptionTable<InsertCopiesOptions>& insert_copies_options() {
  static const auto table =
      OptionTable<InsertCopiesOptions>("insert-copies",
                                       "a copy wherever a value crosses from one memory to another")
          .option("all", &InsertCopiesOptions::all, "between devices that share a memory too");
  return table;
}

class InsertCopies final : public Pass {
 public:
  explicit InsertCopies(InsertCopiesOptions options) : options_(options) {}
  std::string_view name() const override { return "insert-copies"; }
  std::string to_string() const override { return insert_copies_options().print(options_); }

 private:
  struct Crossing {
    NodeId node;
    std::size_t input;
    std::string device;
  };

  PassOutcome run_on(Graph& graph, PassContext& context) override {
    memories_ = Memories(context.topology);
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = insert(level, graph) || changed; });
    return outcome_of(changed);
  }

  bool crosses(const std::string& from, const std::string& to) {
    if (from == to) return false;
    if (options_.all && !from.empty() && !to.empty()) return true;
    return !memories_.same(from, to);
  }

  // Does the node read the contents of this input on its own device?
  static bool looks_at(const Node& node, std::size_t input) {
    const OpTraits& traits = node.op().traits;
    if (traits.transfers || traits.is(ReplicaRole::kCollective) || traits.gives_shape) return false;
    if (traits.is(ReplicaRole::kAgree) && input > 0) return false;
    return std::ranges::find(node.op().shape_operands, input) == node.op().shape_operands.end();
  }

  bool insert(Graph& level, const Graph& outermost) {
    std::vector<Crossing> crossings;
    for (const Node& node : level.nodes()) {
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (!looks_at(node, i)) continue;
        const std::string& to = wanted_device(node, i);
        if (crosses(device_of(level, node.inputs()[i]), to))
          crossings.push_back({node.id(), i, to.empty() ? Device{}.to_string() : to});
      }
    }
    if (crossings.empty()) return false;
    Rewriter edit(level, name(), &outermost);
    std::map<std::pair<ValueId, std::string>, ValueId> copies;
    for (const Crossing& crossing : crossings) {
      const ValueId value = level.node(crossing.node).inputs()[crossing.input];
      ValueId& copied = copies[{value, crossing.device}];
      if (!copied.valid()) {
        const std::string copy_name = level.node(value.node).name() + "/copy";
        copied = {edit.insert({.op = "copy",
                               .name = copy_name,
                               .inputs = {value},
                               .origin = value.node,
                               .replica = level.node(crossing.node).provenance().replica,
                               .device = crossing.device,
                               .why = "read in another memory"}),
                  0};
      }
      edit.set_input(crossing.node, crossing.input, copied);
    }
    return true;
  }

  InsertCopiesOptions options_;
  Memories memories_{nullptr};
};

}  // namespace

std::unique_ptr<Pass> make_insert_copies(InsertCopiesOptions options) {
  return std::make_unique<InsertCopies>(options);
}

void internal::register_insert_copies(PassRegistry& registry) {
  add_pass(registry, insert_copies_options(), make_insert_copies);
}

}  // namespace lockstep
