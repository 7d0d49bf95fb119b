// strategies/passes/place.cpp - every node gets a device.
#include "lockstep/strategies/passes/place.h"

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/device.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/strategies/passes/internal/registrations.h"

namespace lockstep {

namespace {

const OptionTable<PlaceOptions>& place_options() {
  static const auto table =
      OptionTable<PlaceOptions>("place", "every node and variable gets a device, by its replica")
          .option("devices", &PlaceOptions::devices, "one for each replica")
          .option("default", &PlaceOptions::fallback,
                  "for what belongs to no replica; empty: the first device")
          .option("variables", &PlaceOptions::variables, "where all variables live; empty: by replica");
  return table;
}

class Place final : public Pass {
 public:
  explicit Place(PlaceOptions options) : options_(std::move(options)) {
    if (options_.devices.empty())
      throw InvalidArgument("place: there are no devices; name one for each replica");
    for (std::string& device : options_.devices) device = Device::parse(device).to_string();
    if (!options_.fallback.empty()) options_.fallback = Device::parse(options_.fallback).to_string();
    if (!options_.variables.empty()) options_.variables = Device::parse(options_.variables).to_string();
  }
  std::string_view name() const override { return "place"; }
  std::string to_string() const override { return place_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    bool changed = place_variables(graph);
    changed = place_nodes(graph, graph) || changed;
    return outcome_of(changed);
  }

  // The device for a replica; null if there is none.
  const std::string* device(std::int64_t replica) const {
    if (replica < 0) return options_.fallback.empty() ? &options_.devices[0] : &options_.fallback;
    const auto at = static_cast<std::size_t>(replica);
    return at < options_.devices.size() ? &options_.devices[at] : nullptr;
  }
  [[noreturn]] void fail(std::int64_t replica, const std::string& what, ErrorPlace place) const {
    throw PassError(name(),
                    str(what, " is for replica ", replica, ", and there are ", options_.devices.size(),
                        " devices; name one for each replica"),
                    std::move(place));
  }

  bool place_variables(Graph& graph) const {
    NameSet with_copies;
    for (const VariableDecl& decl : graph.variables()) {
      if (!decl.copy_of.empty()) with_copies.insert(decl.copy_of);
    }
    std::vector<VariableDecl> placed;
    for (const VariableDecl& decl : graph.variables()) {
      if (!decl.device.empty()) continue;
      VariableDecl& made = placed.emplace_back(decl);
      const std::int64_t replica = decl.shares || with_copies.contains(decl.name) ? 0 : decl.replica;
      const std::string* home = options_.variables.empty() ? device(replica) : &options_.variables;
      if (home == nullptr) fail(replica, str("variable '", decl.name, "'"), {});
      made.device = *home;
    }
    for (VariableDecl& decl : placed) graph.redeclare_variable(std::move(decl));
    return !placed.empty();
  }

  // The device of the variable that the node reads or updates, where it has to run; empty: it uses none.
  static const std::string& home_of(const Node& node, const Graph& outermost) {
    static const std::string none;
    const OpTraits& traits = node.op().traits;
    const std::string* attribute = traits.updates_variable ? &traits.updates_variable->attribute
                                   : traits.reads_variable ? &*traits.reads_variable
                                                           : nullptr;
    const auto* variable = attribute == nullptr ? nullptr : node.find<VariableRef>(*attribute);
    const VariableDecl* decl = variable == nullptr ? nullptr : outermost.find_variable(variable->name);
    return decl == nullptr ? none : decl->device;
  }

  bool place_nodes(Graph& graph, const Graph& outermost) const {
    bool changed = false;
    for (std::size_t i = 0; i < graph.id_bound(); ++i) {
      const NodeId id(i);
      if (!graph.contains(id)) continue;
      const Node& node = graph.node(id);
      if (node.device().empty()) {
        const std::string& own = home_of(node, outermost);
        const std::string* home = own.empty() ? device(node.provenance().replica) : &own;
        if (home == nullptr) fail(node.provenance().replica, "the node", place_of(node));
        graph.set_device(id, *home);
        changed = true;
      }
      for (std::size_t r = 0; r < node.regions().size(); ++r)
        changed = place_nodes(graph.region(id, r), outermost) || changed;
    }
    return changed;
  }

  PlaceOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_place(PlaceOptions options) { return std::make_unique<Place>(std::move(options)); }

void internal::register_place(PassRegistry& registry) { add_pass(registry, place_options(), make_place); }

}  // namespace lockstep
