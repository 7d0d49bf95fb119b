// strategies/trace/values.h - values that exist once per replica.
//
//   PerReplica<Tensor> loss = train(x, y);
//   for (const Tensor& mine : loss) ...                  // in the order of the replicas
//   Tensor total = strategy.reduce(ReduceOp::kSum, loss);
//
// T is Tensor (data) or Value (in a graph being traced). The kind of a value follows
// from the step, never from comparing contents:
//   kSingle      it depends on no replica: there is one slot, whatever the number of replicas
//   kMirrored    one slot per replica, proven equal (an all-reduce made it)
//   kPerReplica  one slot per replica, which may differ
//
// A method that makes nodes while a function is being traced, and computes elsewhere, returns a PlaceResult:
// one of the two.
//
// While a function is traced, outside of the replicas, + - * / and unary - work on PerReplica<Value> slot by
// slot, together with Values, numbers and variables (each replica's own copy): as if the operator were in a
// function given to run(). The result is single if both operands are.
//
// Slots are handles. The slots of a mirrored Tensor, from a step or from Strategy::broadcast(), are one and
// the same: equal values are stored once, and writing into the data of one slot writes into all. clone() a
// slot to change it.
//
// Thread safety: values; const methods may be called from any thread. The data of a slot is as safe as a
// Tensor's, a Value as its builder.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"
#include "lockstep/core/source_site.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/transform/replica_kind.h"

namespace lockstep {

template <class T>
class PerReplica;

namespace internal {

// An operand of an operator on slots, and its source line.
template <class T>
struct SlotOperand {
  SlotOperand(const PerReplica<T>& value,
              SourceSite at = SourceSite::current())  // NOLINT(google-explicit-constructor)
      : slots(value), site(at) {}
  template <class Other>
  requires std::is_convertible_v<const Other&, Operand> SlotOperand(
      const Other& other, SourceSite at = SourceSite::current())  // NOLINT(google-explicit-constructor)
      : site(at) {
    if constexpr (std::is_convertible_v<const Other&, T>) {
      slots = PerReplica<T>(other);
    } else {
      read = [other, at] { return Operand(other, at); };
    }
  }

  PerReplica<T> slots;            // or none
  std::function<Operand()> read;  // a number, or a value that each replica reads
  SourceSite site;
};

// The number of a slot, and the line that asks for it.
struct SlotIndex {
  template <std::integral Number>
  SlotIndex(Number slot, SourceSite at = SourceSite::current())  // NOLINT(google-explicit-constructor)
      : number(static_cast<std::int64_t>(slot)), site(at) {}
  bool is_below(std::size_t size) const { return number >= 0 && std::cmp_less(number, size); }

  std::int64_t number;
  SourceSite site;
};

using SlotFunction = Value (*)(const Operand& a, const Operand& b);
LOCKSTEP_API PerReplica<Value> slot_by_slot(SlotFunction function, const SlotOperand<Value>& a,
                                            const SlotOperand<Value>& b);

}  // namespace internal

template <class T>
class PerReplica {
 public:
  PerReplica() = default;
  // One value for all replicas. PerReplica<Tensor>({t}) calls this constructor too: for one replica's own
  // slot write PerReplica<Tensor>(std::vector{t}).
  PerReplica(T value) : values_{std::move(value)} {}  // NOLINT(google-explicit-constructor)
  // One per replica.
  explicit PerReplica(std::vector<T> values, ReplicaKind kind = ReplicaKind::kPerReplica,
                      SourceSite site = SourceSite::current())
      : values_(std::move(values)), kind_(kind) {
    if (values_.empty())
      throw InvalidArgument("a per-replica value needs at least one slot", place_of_call("PerReplica", site));
    if (kind_ == ReplicaKind::kSingle && values_.size() != 1)
      throw InvalidArgument(str("a single value has one slot, got ", values_.size()),
                            place_of_call("PerReplica", site));
  }

  ReplicaKind kind() const { return kind_; }
  bool is_single() const { return kind_ == ReplicaKind::kSingle; }
  bool empty() const { return values_.empty(); }
  std::size_t size() const { return values_.size(); }  // slots
  // What replica r sees: its slot, or the only one. Throws InvalidArgument for a replica that does not exist.
  const T& operator[](internal::SlotIndex replica) const {
    if (is_single() && !values_.empty()) return values_[0];
    if (!replica.is_below(values_.size())) {
      throw InvalidArgument(
          values_.empty() ? str("there is no replica ", replica.number, ": the value is empty")
                          : str("there is no replica ", replica.number, "; the value has ", values_.size()),
          place_of_call("PerReplica::operator[]", replica.site));
    }
    return values_[static_cast<std::size_t>(replica.number)];
  }
  const std::vector<T>& values() const { return values_; }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

  // Chosen if one side is a PerReplica<Value>.
  friend PerReplica operator+(const internal::SlotOperand<T>& a,
                              const internal::SlotOperand<T>& b) requires std::is_same_v<T, Value> {
    return internal::slot_by_slot([](const Operand& x, const Operand& y) { return x + y; }, a, b);
  }
  friend PerReplica operator-(const internal::SlotOperand<T>& a,
                              const internal::SlotOperand<T>& b) requires std::is_same_v<T, Value> {
    return internal::slot_by_slot([](const Operand& x, const Operand& y) { return x - y; }, a, b);
  }
  friend PerReplica operator*(const internal::SlotOperand<T>& a,
                              const internal::SlotOperand<T>& b) requires std::is_same_v<T, Value> {
    return internal::slot_by_slot([](const Operand& x, const Operand& y) { return x * y; }, a, b);
  }
  friend PerReplica operator/(const internal::SlotOperand<T>& a,
                              const internal::SlotOperand<T>& b) requires std::is_same_v<T, Value> {
    return internal::slot_by_slot([](const Operand& x, const Operand& y) { return x / y; }, a, b);
  }
  friend PerReplica operator-(const internal::SlotOperand<T>& a) requires std::is_same_v<T, Value> {
    return internal::slot_by_slot([](const Operand& x, const Operand&) { return -x; }, a, a);
  }

 private:
  std::vector<T> values_;
  ReplicaKind kind_ = ReplicaKind::kSingle;
};

// A value with one slot per replica; the slots are known to be equal.
template <class T>
PerReplica<T> mirrored(std::vector<T> values, SourceSite site = SourceSite::current()) {
  return PerReplica<T>(std::move(values), ReplicaKind::kMirrored, site);
}

namespace internal {

// An argument of a function that takes any number of them, and its source line.
struct SlotArgument {
  template <class A>
  requires std::is_convertible_v<const A&, PerReplica<Value>> SlotArgument(
      const A& value, SourceSite at = SourceSite::current())  // NOLINT(google-explicit-constructor)
      : slots(value), site(at) {}

  PerReplica<Value> slots;
  SourceSite site;
};

}  // namespace internal

// The result of a method whose arguments do not say whether to make nodes or to compute (run() of a function
// without arguments, and methods applied to its result): `Traced` while a function is being traced,
// `Computed` elsewhere. It converts to the one that it holds:
//
//   PerReplica<Tensor> losses = strategy.run(step);
//   Tensor total = strategy.reduce(ReduceOp::kSum, strategy.run(step));
//   double total = strategy.reduce(ReduceOp::kSum, strategy.run(step)).computed().item();
//
// Asked for the other one it throws FailedPrecondition, which names the line of the method that gave it.
template <class Traced, class Computed>
class PlaceResult {
 public:
  PlaceResult() = default;
  explicit PlaceResult(Traced traced, SourceSite site = SourceSite::current())
      : result_(std::in_place_index<0>, std::move(traced)), made_(site) {}
  explicit PlaceResult(Computed computed, SourceSite site = SourceSite::current())
      : result_(std::in_place_index<1>, std::move(computed)), made_(site) {}

  bool is_traced() const { return result_.index() == 0; }
  const Traced& traced() const {
    if (!is_traced()) refuse("the result holds tensors: no function was being traced");
    return std::get<0>(result_);
  }
  const Computed& computed() const {
    if (is_traced()) refuse("the result holds no tensors yet: it is a Value of the function being traced");
    return std::get<1>(result_);
  }
  operator const Traced&() const { return traced(); }      // NOLINT(google-explicit-constructor)
  operator const Computed&() const { return computed(); }  // NOLINT(google-explicit-constructor)

  // Like those of PerReplica, or of a list.
  std::size_t size() const {
    return std::visit([](const auto& value) { return value.size(); }, result_);
  }
  auto operator[](internal::SlotIndex slot) const {
    using Item = PlaceResult<std::decay_t<decltype(std::declval<Traced>()[0])>,
                             std::decay_t<decltype(std::declval<Computed>()[0])>>;
    return std::visit(
        [&](const auto& value) {
          if constexpr (requires { value.kind(); }) {
            return Item(value[slot], made_);
          } else {  // a list
            if (!slot.is_below(value.size()))
              throw InvalidArgument(str("there is no item ", slot.number, "; the list has ", value.size()),
                                    place_of_call("operator[]", slot.site));
            return Item(value[static_cast<std::size_t>(slot.number)], made_);
          }
        },
        result_);
  }

 private:
  [[noreturn]] void refuse(const char* why) const {
    throw FailedPrecondition(why,
                             {.node = {}, .op = {}, .device = {}, .file = made_.file, .line = made_.line});
  }

  std::variant<Traced, Computed> result_;
  SourceSite made_;
};
// For one value of a step, and for one value for all replicas.
using RunResult = PlaceResult<PerReplica<Value>, PerReplica<Tensor>>;
using ReduceResult = PlaceResult<Value, Tensor>;

// "per replica {0: f32[2] {1, 2}, 1: f32[2] {3, 4}}"
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const PerReplica<Tensor>& value);
// "per replica {0: x: f32[2], 1: x/replica_1: f32[2]}"
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const PerReplica<Value>& value);
// Prints the one that it holds.
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const RunResult& result);
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const ReduceResult& result);

}  // namespace lockstep
