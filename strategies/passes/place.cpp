// strategies/passes/place.cpp - every node gets a device.
#include "lockstep/strategies/passes/place.h"

#include <unordered_map>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/base/name_set.h"
#include "lockstep/core/device.h"
#include "lockstep/core/topology.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/strategies/passes/internal/device_checks.h"
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

// Which devices have kernels for which ops, as far as the topology knows.
class KernelHomes {
 public:
  explicit KernelHomes(const Topology* topology) : topology_(topology) {}

  // Where a node goes that has a kernel for the CPU and none for the device `home`: to a CPU of the same
  // process. Null: it can stay, or there is no such CPU.
  const std::string* instead_of(const std::string& home, const OpDef& op) {
    // Transfers are between memories, and a constant is data: neither needs a kernel.
    if (topology_ == nullptr || op.traits.transfers || op.traits.gives_attribute) return nullptr;
    if (last_ == nullptr || last_->home != home) last_ = &facts_of(home);
    if (last_->host.empty()) return nullptr;
    const auto [found, fresh] = last_->leave.try_emplace(&op, false);
    if (fresh) {
      const OpRegistry& registry = OpRegistry::global();
      found->second = registry.kernel(op, "cpu") != nullptr && registry.kernel(op, last_->kernels) == nullptr;
    }
    return found->second ? &last_->host : nullptr;
  }

 private:
  struct Facts {
    std::string home, kernels;
    std::string host;  // empty: nothing has to leave
    std::unordered_map<const OpDef*, bool> leave;
  };

  Facts& facts_of(const std::string& home) {
    const auto [found, fresh] = facts_.try_emplace(home);
    Facts& facts = found->second;
    if (!fresh) return facts;
    facts.home = home;
    const DeviceFacts* const device = topology_->find(Device::parse(home));
    if (device == nullptr || device->kernels == "cpu") return facts;
    facts.kernels = device->kernels;
    facts.host = host_of(device->device);
    return facts;
  }

  std::string host_of(const Device& device) const {
    for (const DeviceFacts& other : topology_->devices()) {
      const bool same_process = other.device.job == device.job && other.device.task == device.task;
      if (other.device.kind == DeviceKind::kCpu && same_process) return other.device.to_string();
    }
    return {};
  }

  const Topology* topology_;
  NameMap<Facts> facts_;   // by device
  Facts* last_ = nullptr;  // neighbours are often on one device
};

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
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    internal::check_devices(name(), options_.devices, context.topology);
    for (const std::string& device : {options_.fallback, options_.variables}) {
      if (!device.empty()) internal::check_devices(name(), {&device, 1}, context.topology);
    }
    first_ = context.first_replica;
    bool changed = place_variables(graph);
    KernelHomes homes(context.topology);
    changed = place_nodes(graph, graph, homes) || changed;
    return outcome_of(changed);
  }

  // The device for a replica; null if there is none.
  const std::string* device(std::int64_t replica) const {
    if (replica < 0) return options_.fallback.empty() ? &options_.devices[0] : &options_.fallback;
    const auto at = static_cast<std::size_t>(replica);
    return at < options_.devices.size() ? &options_.devices[at] : nullptr;
  }
  [[noreturn]] void fail(std::int64_t replica, const std::string& what, ErrorPlace place) const {
    throw PassError(
        name(),
        str(what, " is for replica ", replica, ", and there ", options_.devices.size() == 1 ? "is " : "are ",
            counted(options_.devices.size(), "device"), "; name one for each replica"),
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
    SmallVector<std::string, 1> names = updated_variables(node);
    const auto& read = node.op().traits.reads_variable;
    const auto* variable = read ? node.find<VariableRef>(*read) : nullptr;
    if (variable != nullptr) names.push_back(variable->name);
    const VariableDecl* decl = names.empty() ? nullptr : outermost.find_variable(names[0]);
    return decl == nullptr ? none : decl->device;
  }

  bool place_nodes(Graph& graph, const Graph& outermost, KernelHomes& homes) const {
    bool changed = false;
    for (std::size_t i = 0; i < graph.id_bound(); ++i) {
      const NodeId id(i);
      if (!graph.contains(id)) continue;
      const Node& node = graph.node(id);
      if (node.device().empty()) {
        const std::string& own = home_of(node, outermost);
        const std::int64_t replica = node.provenance().replica;
        const std::string* home = own.empty() ? device(replica < 0 ? replica : replica - first_) : &own;
        if (home == nullptr) fail(node.provenance().replica, "the node", place_of(node));
        const std::string* instead = homes.instead_of(*home, node.op());
        if (instead != nullptr && !updated_variables(node).empty()) {
          throw PassError(name(),
                          str("op '", node.op().name, "' has no kernel for ", *home,
                              ", where the variable is that it updates: place the variable elsewhere, or ",
                              "register a kernel (OpRegistry::add_kernel)"),
                          place_of(node));
        }
        if (instead != nullptr) {
          Provenance provenance = node.provenance();
          provenance.why = graph.intern(str("no kernel for ", *home));
          graph.set_provenance(id, provenance);
        }
        graph.set_device(id, instead == nullptr ? *home : *instead);
        changed = true;
      }
      for (std::size_t r = 0; r < node.regions().size(); ++r)
        changed = place_nodes(graph.region(id, r), outermost, homes) || changed;
    }
    return changed;
  }

  PlaceOptions options_;
  std::int64_t first_ = 0;  // the number of devices[0]'s replica
};

}  // namespace

std::unique_ptr<Pass> make_place(PlaceOptions options) { return std::make_unique<Place>(std::move(options)); }

void internal::register_place(PassRegistry& registry) { add_pass(registry, place_options(), make_place); }

}  // namespace lockstep
