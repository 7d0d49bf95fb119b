// strategies/extended.h - the lower-level methods of a strategy, as tf.distribute's `extended` (and the older
// tower API) has them.
//
// All are cross-replica: see strategies/trace/context.h. Functions on Values make nodes, inside cross-replica
// and merge functions. Thread safety: as Strategy; a function that makes nodes belongs to the thread that
// traces, and a ColocationScope to the thread that entered it. Destinations are values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep::extended {

// Where a reduced or broadcast value should be: on a variable's devices (a variable of another strategy is
// InvalidArgument), on those of a value (a single value that is placed has one device), on one device, or on
// several listed devices.
class LOCKSTEP_API Destinations {
 public:
  Destinations(const Variable& variable);        // NOLINT(google-explicit-constructor)
  Destinations(const PerReplica<Value>& value);  // NOLINT(google-explicit-constructor)
  Destinations(std::string_view device);         // NOLINT(google-explicit-constructor)
  // NOLINTNEXTLINE(google-explicit-constructor)
  Destinations(const char* device) : Destinations(std::string_view(device)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Destinations(const std::string& device) : Destinations(std::string_view(device)) {}
  Destinations(const std::vector<std::string>& devices);  // NOLINT(google-explicit-constructor)

  bool every_replica() const { return devices_.empty(); }
  const std::vector<std::string>& devices() const { return devices_; }  // canonical; empty: every replica's
  // Throws InvalidArgument if the destinations come from a variable of another strategy.
  void check_strategy(const Strategy& strategy, std::string_view method, const SourceSite& site) const;

 private:
  std::vector<std::string> devices_;
  std::optional<Variable> variable_;
};

// Combines the slots and puts the result on the destinations: mirrored over the replicas, a single value on
// one device, or, for a list of several devices, mirrored with one slot per listed device. Accepts sum and
// mean.
LOCKSTEP_API PerReplica<Value> reduce_to(Strategy& strategy, ReduceOp op, const PerReplica<Value>& value,
                                         const Destinations& destinations,
                                         SourceSite site = SourceSite::current());
// For slices, as merge_call() hands them to a merge function: the rows of all replicas, concatenated in
// replica order, with their indices; for a mean the rows are divided by the number of replicas.
using ReplicaSlices = IndexedSlicesOf<PerReplica<Value>>;
LOCKSTEP_API ReplicaSlices reduce_to(Strategy& strategy, ReduceOp op, const ReplicaSlices& slices,
                                     const Destinations& destinations,
                                     SourceSite site = SourceSite::current());
// Several values at once, in their order; values of one dtype that go to all replicas become one node.
LOCKSTEP_API std::vector<PerReplica<Value>> batch_reduce_to(
    Strategy& strategy, ReduceOp op, std::span<const std::pair<PerReplica<Value>, Destinations>> values,
    SourceSite site = SourceSite::current());
LOCKSTEP_API std::vector<ReplicaSlices> batch_reduce_to(
    Strategy& strategy, ReduceOp op, std::span<const std::pair<ReplicaSlices, Destinations>> values,
    SourceSite site = SourceSite::current());
// ONLY_FIRST_TOWER, ONLY_FIRST_REPLICA: replica 0's slot on every destination.
LOCKSTEP_API PerReplica<Value> first_replica_to(Strategy& strategy, const PerReplica<Value>& value,
                                                const Destinations& destinations,
                                                SourceSite site = SourceSite::current());
// The value on every destination, with slots as reduce_to gives them.
LOCKSTEP_API PerReplica<Value> broadcast_to(Strategy& strategy, const Value& value,
                                            const Destinations& destinations,
                                            SourceSite site = SourceSite::current());

// Calls fn once per device of `devices`, which must be those of the strategy, with the arguments' slots for
// that device (single or mirrored arguments). Returns fn's value, mirrored.
LOCKSTEP_API PerReplica<Value> update_non_slot(Strategy& strategy, std::span<const std::string> devices,
                                               const std::function<Value(std::span<const Value>)>& fn,
                                               std::span<const PerReplica<Value>> arguments,
                                               SourceSite site = SourceSite::current());
// Where state that belongs to no variable lives: all devices.
LOCKSTEP_API const std::vector<std::string>& non_slot_devices(Strategy& strategy,
                                                              std::span<const Variable> variables = {},
                                                              SourceSite site = SourceSite::current());

// Variables made while the guard lives get the devices of `variable`, which must belong to this strategy: the
// devices of all replicas. Enters the strategy's scope.
class LOCKSTEP_API ColocationScope {
 public:
  ColocationScope(Strategy& strategy, const Variable& variable, SourceSite site = SourceSite::current());

 private:
  internal::ContextFrame frame_;
};
[[nodiscard]] LOCKSTEP_API ColocationScope colocate_vars_with(Strategy& strategy, const Variable& variable,
                                                              SourceSite site = SourceSite::current());

// The variable's value in the current context; for a variable that is synchronized on read, the aggregate.
LOCKSTEP_API Value read_var(Strategy& strategy, const Variable& variable,
                            SourceSite site = SourceSite::current());

// One node that runs once all slots are computed; if there is one slot, the node of that slot.
LOCKSTEP_API NodeId group(Strategy& strategy, const PerReplica<Value>& value, std::string_view name = {},
                          SourceSite site = SourceSite::current());

// fn(item) for each item; item i is on device i mod the number of devices. Returns the values by device, in
// the order of the items. Devices that got no item have no entry. Only inside cross-replica and merge
// functions. With arguments (single or mirrored ones) fn gets the slots of the item's device after the item.
using Mapped = std::map<std::string, std::vector<Value>>;
LOCKSTEP_API Mapped map(Strategy& strategy, std::span<const Value> items,
                        const std::function<Value(const Value&)>& fn,
                        SourceSite site = SourceSite::current());
LOCKSTEP_API Mapped map(Strategy& strategy, std::span<const Value> items,
                        const std::function<Value(const Value&, std::span<const Value>)>& fn,
                        std::span<const PerReplica<Value>> arguments,
                        SourceSite site = SourceSite::current());
// Combines the items' values in the order of the items: their sum, or their mean over the number of items.
LOCKSTEP_API Value reduce_mapped(Strategy& strategy, ReduceOp op, const Mapped& mapped,
                                 SourceSite site = SourceSite::current());

// The number of each replica, i32, as a value to hand to run().
LOCKSTEP_API PerReplica<Tensor> worker_device_index(const Strategy& strategy,
                                                    SourceSite site = SourceSite::current());

// Adjusts runtime options to this strategy: as many logical CPUs as its devices name. Pure.
LOCKSTEP_API RuntimeOptions update_config(const Strategy& strategy, RuntimeOptions options);

}  // namespace lockstep::extended
