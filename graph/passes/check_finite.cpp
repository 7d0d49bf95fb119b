// graph/passes/check_finite.cpp - fails a step at the first node that makes NaN or infinity.
#include "lockstep/graph/passes/check_finite.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

constexpr std::string_view kCheckFinite = "check-finite";

const OptionTable<CheckFiniteOptions>& check_finite_options() {
  static const auto table =
      OptionTable<CheckFiniteOptions>(std::string(kCheckFinite),
                                      "a step fails at the first node that makes NaN or infinity")
          .option("infinite", &CheckFiniteOptions::infinite, "infinite values are refused too");
  return table;
}

bool is_check(const Node& node) { return node.op().name == "check_finite"; }

// Does it make values of its own, which may be refused?
bool makes_values(const Node& node) {
  const OpTraits& traits = node.op().traits;
  if (traits.alias || traits.transfers || is_check(node) || node.op().name == "constant") return false;
  return node.regions().empty() && !has(effects_of(node), Effect::kWritesVariable);
}

class CheckFinite final : public Pass {
 public:
  explicit CheckFinite(const CheckFiniteOptions& options) : options_(options) {}
  std::string_view name() const override { return kCheckFinite; }
  std::string to_string() const override { return check_finite_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext& /*context*/) override {
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = insert(level, graph) || changed; });
    return outcome_of(changed);
  }

  bool insert(Graph& level, const Graph& outermost) const {
    std::vector<ValueId> values;
    for (const Node& node : level.nodes()) {
      if (!makes_values(node)) continue;
      // What goes into a region was checked where it was made.
      if (node.op().name == "placeholder" && &level != &outermost) continue;
      for (std::uint32_t output = 0; output < node.outputs().size(); ++output) {
        if (is_floating(node.outputs()[output].dtype)) values.push_back({node.id(), output});
      }
    }
    Rewriter edit(level, name(), &outermost);
    std::vector<std::pair<ValueId, ValueId>> moves;
    for (const ValueId value : values) {
      const std::vector<Use> uses = edit.uses(value);
      const bool is_checked = std::ranges::all_of(
          uses, [&](const Use& use) { return use.user.valid() && is_check(level.node(use.user)); });
      if (is_checked) continue;  // or nobody reads it
      const Node& node = level.node(value.node);
      const NodeId check = edit.insert({.op = "check_finite",
                                        .name = node.name() + "/finite",
                                        .inputs = {value},
                                        .attributes = {{"infinite", options_.infinite}},
                                        .origin = value.node,
                                        .replica = node.provenance().replica,
                                        .why = "is it finite?"});
      moves.emplace_back(value, ValueId{check, 0});
    }
    edit.replace_uses(moves);
    return !moves.empty();
  }

  CheckFiniteOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_check_finite(CheckFiniteOptions options) {
  return std::make_unique<CheckFinite>(options);
}

void internal::register_check_finite(PassRegistry& registry) {
  add_pass(registry, check_finite_options(), make_check_finite);
}

}  // namespace lockstep
