// strategies/extended.cpp - the lower-level methods of a strategy, as tf.distribute's `extended` (and the
// older tower API) has them.
#include "lockstep/strategies/extended.h"

#include <algorithm>

#include "lockstep/core/device.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep::extended {

namespace {

PerReplica<Value> everywhere(const Strategy& strategy, const Value& value) {
  if (strategy.num_replicas_in_sync() == 1) return value;
  return mirrored(std::vector<Value>(static_cast<std::size_t>(strategy.num_local_replicas()), value));
}

// True if the destinations are every replica, or list the devices of all replicas.
bool on_every_replica(const Strategy& strategy, const Destinations& destinations) {
  return destinations.every_replica() ||
         (strategy.num_replicas_in_sync() > 1 && destinations.devices() == strategy.worker_devices());
}

GraphBuilder& require_builder(Strategy& strategy, std::string_view method, const SourceSite& site) {
  internal::require_cross_replica(&strategy, method, site);
  GraphBuilder* builder = current_builder();
  if (builder == nullptr)
    throw FailedPrecondition(str(method, " makes nodes: call it inside a cross-replica or merge function"),
                             place_of_call(method, site));
  return *builder;
}

void require_sum_or_mean(ReduceOp op, std::string_view method, const SourceSite& site) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMean) return;
  throw InvalidArgument(str(method, " takes sum or mean, got ", to_string(op)), place_of_call(method, site));
}

}  // namespace

Destinations::Destinations(const Variable& variable) : variable_(variable) {}
Destinations::Destinations(const PerReplica<Value>& value) {
  if (value.empty()) throw InvalidArgument("destinations can not be empty");
  if (!value.is_single()) return;
  const ValueId id = value[0].id();
  if (const std::string& device = value[0].builder().graph().node(id.node).device(); !device.empty())
    devices_ = {device};
}
Destinations::Destinations(std::string_view device) {
  if (device.empty()) throw InvalidArgument("destinations can not be empty: name a device");
  devices_ = {Device::parse(device).to_string()};
}
Destinations::Destinations(const std::vector<std::string>& devices) {
  if (devices.empty()) throw InvalidArgument("destinations can not be empty: list at least one device");
  for (const std::string& device : devices) {
    std::string name = Device::parse(device).to_string();
    if (std::ranges::find(devices_, name) != devices_.end())
      throw InvalidArgument(str("destinations: device '", name, "' is listed twice"));
    devices_.push_back(std::move(name));
  }
}

void Destinations::check_strategy(const Strategy& strategy, std::string_view method,
                                  const SourceSite& site) const {
  if (!variable_ || &variable_->strategy() == &strategy) return;
  throw InvalidArgument(str(method, ": the destination is variable '", variable_->name(),
                            "', which belongs to another strategy; name one of this"),
                        place_of_call(method, site));
}

PerReplica<Value> reduce_to(Strategy& strategy, ReduceOp op, const PerReplica<Value>& value,
                            const Destinations& destinations, SourceSite site) {
  require_sum_or_mean(op, "reduce_to()", site);
  GraphBuilder& builder = require_builder(strategy, "reduce_to()", site);
  destinations.check_strategy(strategy, "reduce_to()", site);
  if (on_every_replica(strategy, destinations))
    return everywhere(strategy, strategy.reduce(op, value, std::nullopt, site));
  const auto device = builder.device(destinations.devices()[0]);
  const Value reduced = strategy.reduce(op, value, std::nullopt, site);
  // Combined on the first device. Copies go to the other devices, and also to the first if nothing had to be
  // combined.
  const bool is_there = reduced.id() != value[0].id() && destinations.devices().size() == 1;
  return is_there ? PerReplica<Value>(reduced) : broadcast_to(strategy, reduced, destinations, site);
}

PerReplica<Value> first_replica_to(Strategy& strategy, const PerReplica<Value>& value,
                                   const Destinations& destinations, SourceSite site) {
  require_builder(strategy, "first_replica_to()", site);
  const auto replicas = static_cast<std::size_t>(strategy.num_local_replicas());
  if (replicas != static_cast<std::size_t>(strategy.num_replicas_in_sync()))
    throw Error(ErrorCode::kUnimplemented,
                "first_replica_to() has no form for several workers yet: use broadcast_replica() in run()",
                place_of_call("first_replica_to()", site));
  if (value.empty() || (!value.is_single() && value.size() != replicas)) {
    throw InvalidArgument(
        str("first_replica_to(): the value has ", value.size(), value.size() == 1 ? " slot" : " slots",
            " for ", replicas, replicas == 1 ? " replica" : " replicas"),
        place_of_call("first_replica_to()", site));
  }
  destinations.check_strategy(strategy, "first_replica_to()", site);
  return broadcast_to(strategy, value[0], destinations, site);
}

std::vector<PerReplica<Value>> batch_reduce_to(
    Strategy& strategy, ReduceOp op, std::span<const std::pair<PerReplica<Value>, Destinations>> values,
    SourceSite site) {
  require_sum_or_mean(op, "batch_reduce_to()", site);
  GraphBuilder& builder = require_builder(strategy, "batch_reduce_to()", site);
  for (const auto& [value, to] : values) to.check_strategy(strategy, "batch_reduce_to()", site);
  const auto replicas = static_cast<std::size_t>(strategy.num_local_replicas());
  const bool is_all = strategy.num_local_replicas() == strategy.num_replicas_in_sync();
  std::vector<PerReplica<Value>> results(values.size());
  std::vector<bool> done(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (done[i]) continue;
    // All values of one kind become one node, replica by replica.
    const auto alike = [&](std::size_t j) {
      const auto& [value, to] = values[j];
      return is_all && !done[j] && on_every_replica(strategy, to) && value.size() == replicas &&
             replicas > 1 && value.kind() == ReplicaKind::kPerReplica &&
             value[0].dtype() == values[i].first[0].dtype() && is_floating(value[0].dtype());
    };
    std::vector<std::size_t> group;
    for (std::size_t j = i; j < values.size() && alike(i); ++j) {
      if (alike(j)) group.push_back(j);
    }
    if (group.size() < 2) {
      results[i] = reduce_to(strategy, op, values[i].first, values[i].second, site);
      done[i] = true;
      continue;
    }
    std::vector<Value> inputs;
    for (std::size_t r = 0; r < replicas; ++r) {
      for (const std::size_t j : group) inputs.push_back(values[j].first[r]);
    }
    const std::vector<Value> reduced = builder.op(
        "reduce_replicas", inputs,
        {{"reduce", std::string(to_string(op))}, {"replicas", static_cast<std::int64_t>(replicas)}}, {},
        site);
    for (std::size_t k = 0; k < group.size(); ++k) {
      results[group[k]] = everywhere(strategy, reduced[k]);
      done[group[k]] = true;
    }
  }
  return results;
}

ReplicaSlices reduce_to(Strategy& strategy, ReduceOp op, const ReplicaSlices& slices,
                        const Destinations& destinations, SourceSite site) {
  require_sum_or_mean(op, "reduce_to()", site);
  GraphBuilder& builder = require_builder(strategy, "reduce_to()", site);
  destinations.check_strategy(strategy, "reduce_to()", site);
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(str("reduce_to() of slices: ", why), place_of_call("reduce_to()", site));
  };
  if (slices.indices.empty() || slices.values.empty() || slices.dense_shape.empty())
    refuse("indices, values and the dense shape are needed");
  const std::int64_t replicas = strategy.num_replicas_in_sync();
  const bool same =
      slices.values.kind() != ReplicaKind::kPerReplica && slices.indices.kind() != ReplicaKind::kPerReplica;
  if (same && replicas > 1 && op == ReduceOp::kSum)
    refuse(
        "they are the same on all replicas and cannot be summed; divide by their number first, or take the "
        "mean");
  const auto put = [&](const Value& value) {
    if (on_every_replica(strategy, destinations)) return everywhere(strategy, value);
    return broadcast_to(strategy, value, destinations, site);
  };
  const auto here = internal::BuilderAccess(builder).made_at(site);
  if (same) return {put(slices.indices[0]), put(slices.values[0]), put(slices.dense_shape[0])};
  const Value indices = strategy.gather(slices.indices, 0, site);
  Value rows = strategy.gather(slices.values, 0, site);
  if (op == ReduceOp::kMean) {
    if (is_integer(rows.dtype())) rows = cast(rows, DType::kF64);  // as for dense values
    rows = rows / static_cast<double>(replicas);
  }
  return {put(indices), put(rows), put(slices.dense_shape[0])};
}

std::vector<ReplicaSlices> batch_reduce_to(Strategy& strategy, ReduceOp op,
                                           std::span<const std::pair<ReplicaSlices, Destinations>> values,
                                           SourceSite site) {
  std::vector<ReplicaSlices> results;
  results.reserve(values.size());
  for (const auto& [slices, to] : values) results.push_back(reduce_to(strategy, op, slices, to, site));
  return results;
}

PerReplica<Value> broadcast_to(Strategy& strategy, const Value& value, const Destinations& destinations,
                               SourceSite site) {
  GraphBuilder& builder = require_builder(strategy, "broadcast_to()", site);
  destinations.check_strategy(strategy, "broadcast_to()", site);
  if (on_every_replica(strategy, destinations)) return everywhere(strategy, value);
  std::vector<Value> copies;
  for (const std::string& name : destinations.devices()) {
    const auto device = builder.device(name);
    copies.push_back(builder.op1("copy", {value}, {}, {}, site));
  }
  return copies.size() == 1 ? PerReplica<Value>(copies[0]) : mirrored(std::move(copies));
}

PerReplica<Value> update_non_slot(Strategy& strategy, std::span<const std::string> devices,
                                  const std::function<Value(std::span<const Value>)>& fn,
                                  std::span<const PerReplica<Value>> arguments, SourceSite site) {
  require_builder(strategy, "update_non_slot()", site);
  if (!std::ranges::equal(devices, strategy.worker_devices())) {
    throw InvalidArgument(
        "update_non_slot(): the devices must be those of the strategy: use non_slot_devices()",
        place_of_call("update_non_slot()", site));
  }
  return strategy.update_each(fn, arguments, "update_non_slot()", site);
}

const std::vector<std::string>& non_slot_devices(Strategy& strategy, std::span<const Variable>,
                                                 SourceSite site) {
  internal::require_cross_replica(&strategy, "non_slot_devices()", site);
  return strategy.worker_devices();
}

ColocationScope::ColocationScope(Strategy& strategy, const Variable& variable, SourceSite site)
    : frame_((internal::require_cross_replica(&strategy, "colocate_vars_with()", site), &strategy),
             internal::kind_of_scope(), current_builder()) {
  if (&variable.strategy() == &strategy) return;
  throw InvalidArgument(str("colocate_vars_with(): variable '", variable.name(),
                            "' belongs to another strategy; name one of this"),
                        place_of_call("colocate_vars_with()", site));
}

ColocationScope colocate_vars_with(Strategy& strategy, const Variable& variable, SourceSite site) {
  return ColocationScope(strategy, variable, site);
}

Value read_var(Strategy& strategy, const Variable& variable, SourceSite site) {
  require_builder(strategy, "read_var()", site);
  return variable.read(site);
}

NodeId group(Strategy& strategy, const PerReplica<Value>& value, std::string_view name, SourceSite site) {
  GraphBuilder& builder = require_builder(strategy, "group()", site);
  if (value.size() == 1 && name.empty()) return value[0].id().node;
  static const OpDef& op = OpRegistry::global().get("group");
  return builder.node(op, name, value.values(), {}, {}, site);
}

Mapped map(Strategy& strategy, std::span<const Value> items,
           const std::function<Value(const Value&, std::span<const Value>)>& fn,
           std::span<const PerReplica<Value>> arguments, SourceSite site) {
  GraphBuilder& builder = require_builder(strategy, "map()", site);
  for (const PerReplica<Value>& argument : arguments) {
    if (argument.kind() == ReplicaKind::kPerReplica && strategy.num_replicas_in_sync() > 1)
      throw InvalidArgument("map(): Expected value to be mirrored across replicas: reduce it first",
                            place_of_call("map()", site));
  }
  Mapped results;
  const std::vector<std::string>& devices = strategy.worker_devices();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t at = i % devices.size();
    std::vector<Value> own;
    own.reserve(arguments.size());
    for (const PerReplica<Value>& argument : arguments) own.push_back(argument[at]);
    const auto placed = builder.device(devices[at]);
    results[devices[at]].push_back(fn(items[i], own));
  }
  return results;
}

Mapped map(Strategy& strategy, std::span<const Value> items, const std::function<Value(const Value&)>& fn,
           SourceSite site) {
  return map(
      strategy, items, [&](const Value& item, std::span<const Value>) { return fn(item); }, {}, site);
}

Value reduce_mapped(Strategy& strategy, ReduceOp op, const Mapped& mapped, SourceSite site) {
  require_sum_or_mean(op, "reduce_mapped()", site);
  require_builder(strategy, "reduce_mapped()", site);
  std::size_t longest = 0;
  for (const auto& [device, values] : mapped) longest = std::max(longest, values.size());
  // Item i is the (i / devices)-th of its device; this restores the order in which map() saw the items.
  std::vector<Value> items;
  for (std::size_t i = 0; i < longest; ++i) {
    for (const std::string& device : strategy.worker_devices()) {
      const auto found = mapped.find(device);
      if (found != mapped.end() && i < found->second.size()) items.push_back(found->second[i]);
    }
  }
  if (items.empty())
    throw InvalidArgument("reduce_mapped(): there are no items", place_of_call("reduce_mapped()", site));
  const auto here = internal::BuilderAccess(items[0].builder()).made_at(site);
  if (op == ReduceOp::kMean && !is_floating(items[0].dtype())) {
    for (Value& item : items) item = cast(item, DType::kF64);
  }
  return items.size() == 1 ? items[0] : reduce_replicas(op, items, site);
}

PerReplica<Tensor> worker_device_index(const Strategy& strategy, SourceSite site) {
  internal::require_cross_replica(&strategy, "worker_device_index()", site);
  std::vector<Tensor> ids;
  ids.reserve(static_cast<std::size_t>(strategy.num_local_replicas()));
  for (std::int32_t r = 0; r < strategy.num_local_replicas(); ++r) ids.push_back(Tensor::scalar(r));
  return PerReplica<Tensor>(std::move(ids));
}

RuntimeOptions update_config(const Strategy& strategy, RuntimeOptions options) {
  for (const std::string& name : strategy.worker_devices()) {
    const Device device = Device::parse(name);
    if (device.kind == DeviceKind::kCpu)
      options.cpu_devices = std::max(options.cpu_devices, static_cast<std::size_t>(device.index) + 1);
  }
  return options;
}

}  // namespace lockstep::extended
