// strategies/values.h - values that exist once per replica.
//
//   PerReplica<Tensor> loss = train(x, y);
//   for (const Tensor& mine : loss) ...                  // in the order of the replicas
//   Tensor total = strategy.reduce(ReduceOp::kSum, loss);
//
// T is Tensor (data) or Value (in a graph being traced). What kind of value it is follows from the step, never from
// comparing contents:
//   kSingle      it depends on no replica: there is one slot, whatever the number of replicas
//   kMirrored    one slot per replica, proven equal (an all-reduce made it)
//   kPerReplica  one slot per replica, which may differ
//
// Slots are handles. Those of a mirrored Tensor, from a step or from Strategy::broadcast(), are one and the same: equal values
// are stored once, and whoever writes into the data of one writes into all. clone() a slot to change it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/export.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/value.h"

namespace lockstep {

enum class ReplicaKind : std::uint8_t { kSingle, kMirrored, kPerReplica };
LOCKSTEP_API std::string_view to_string(ReplicaKind kind);  // "single", "mirrored", "per replica"

template <class T>
class PerReplica {
 public:
  PerReplica() = default;
  // One value for all replicas.
  PerReplica(T value) : values_{std::move(value)} {}  // NOLINT(google-explicit-constructor)
  // One per replica.
  explicit PerReplica(std::vector<T> values, ReplicaKind kind = ReplicaKind::kPerReplica)
      : values_(std::move(values)), kind_(kind) {
    if (values_.empty()) throw InvalidArgument("a per-replica value needs at least one slot");
    if (kind_ == ReplicaKind::kSingle && values_.size() != 1)
      throw InvalidArgument(str("a single value has one slot, got ", values_.size()));
  }

  ReplicaKind kind() const { return kind_; }
  bool is_single() const { return kind_ == ReplicaKind::kSingle; }
  bool empty() const { return values_.empty(); }
  std::size_t size() const { return values_.size(); }  // slots
  // What replica r sees: its slot, or the one there is. Throws InvalidArgument for a replica that is not there.
  const T& operator[](std::size_t replica) const {
    if (is_single() && !values_.empty()) return values_[0];
    if (replica >= values_.size())
      throw InvalidArgument(str("there is no replica ", replica, "; the value has ", values_.size()));
    return values_[replica];
  }
  const std::vector<T>& values() const { return values_; }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  std::vector<T> values_;
  ReplicaKind kind_ = ReplicaKind::kSingle;
};

// A value with a slot for each replica that are known to be equal.
template <class T>
PerReplica<T> mirrored(std::vector<T> values) {
  return PerReplica<T>(std::move(values), ReplicaKind::kMirrored);
}

// "per replica {0: f32[2] {1, 2}, 1: f32[2] {3, 4}}"
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const PerReplica<Tensor>& value);
// "per replica {0: x: f32[2], 1: x/replica_1: f32[2]}"
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const PerReplica<Value>& value);

}  // namespace lockstep
