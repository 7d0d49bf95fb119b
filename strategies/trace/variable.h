// strategies/trace/variable.h - named state of a strategy: a handle that reads as a value while a step is
// traced.
//
//   auto scope = strategy.scope();
//   Variable w("w", Tensor::zeros({2, 1}));                              // mirrored: one copy per replica, kept equal
//   Variable seen("seen", Tensor::scalar(0.F),
//                 {.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum});
//
//   strategy.function({x_spec}, [=](Value x) {
//     seen.assign_add(global_sum(x));                                    // this replica's own copy
//     return matmul(x, w);                                               // reads this replica's copy of w
//   });
//   w.value();  seen.value();                                            // outside: the value; the sum of all copies
//
// A Variable is a cheap handle; copies of it are the same variable, so [=] is safe. It belongs to the
// strategy whose scope it was made in (outside of all scopes: to default_strategy()), which must outlive it.
// Names are unique in a strategy; inside a traced function a name that is taken refers to the existing
// variable, so that tracing twice makes it once, and a name scope that is open there is part of the name.
//
// What reading and assigning mean depends on the context and on synchronization and aggregation:
// strategies/trace/variable_rules.h has the whole table. A wrong use is an error when the step is traced.
// Thread safety: as the strategy's store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/strategies/trace/values.h"
#include "lockstep/strategies/trace/variable_rules.h"

namespace lockstep {

class Variable;

namespace internal {
struct VariableState;
class Tracer;
Tracer& tracer_of(const Variable& variable);
}  // namespace internal

struct VariableOptions {
  Synchronization synchronization = Synchronization::kAuto;  // kAuto: kOnWrite
  Aggregation aggregation = Aggregation::kNone;  // of what replicas assign, or of the copies when read
  // Absent: true, but false for kOnRead.
  std::optional<bool> trainable = std::nullopt;
  // For Aggregation::kSlices: the axis along which the value is cut into as many slices as there are
  // replicas; the last ones are padded with zeros.
  std::int64_t slice_axis = 0;
};

class LOCKSTEP_API Variable {
 public:
  // Throws InvalidArgument for a taken name, an empty value, Synchronization::kNone with more than one
  // replica, or slices that are not synchronized on read; inside a traced function, for a taken name with
  // another dtype, shape, synchronization, aggregation or trainable, naming both lines. A variable made in a
  // function whose trace throws afterwards stays: the function can be traced again, but the name is taken for
  // everything else.
  Variable(std::string name, const Tensor& initial, const VariableOptions& options = {},
           SourceSite site = SourceSite::current());
  // A separate initial value for each replica, if it is synchronized on read.
  Variable(std::string name, const PerReplica<Tensor>& initial, const VariableOptions& options = {},
           SourceSite site = SourceSite::current());

  const std::string& name() const;
  const TensorSpec& spec() const;  // as the store has it
  // As the store has it: if a pass declared the variable anew, what that declaration says.
  Synchronization synchronization() const;
  Aggregation aggregation() const;
  bool trainable() const;
  Strategy& strategy() const;

  // --- while a step is traced
  Value read(SourceSite site = SourceSite::current()) const;
  // These return the new value.
  Value assign(const Operand& value, SourceSite site = SourceSite::current()) const;
  Value assign_add(const Operand& delta, SourceSite site = SourceSite::current()) const;
  Value assign_sub(const Operand& delta, SourceSite site = SourceSite::current()) const;
  // For gradients() and optimizers.
  operator VariableRef() const;  // NOLINT(google-explicit-constructor)

  // Change some rows: row i of `rows` goes to row indices[i] (i32 or i64) along axis 0, one after the other
  // if a row is named twice. Return the new value. An index out of range fails the step, and so does dividing
  // an integer by 0.
  // Rows of replicas are applied replica by replica, for sum and mean alike (with mean the rows are divided
  // by the number of replicas). Setting rows and taking the larger or smaller has no such meaning and is
  // refused with sum and mean. Variables that are synchronized on read have none of these methods.
  Value scatter_add(const Operand& indices, const Operand& rows,
                    SourceSite site = SourceSite::current()) const;
  Value scatter_sub(const Operand& indices, const Operand& rows,
                    SourceSite site = SourceSite::current()) const;
  Value scatter_mul(const Operand& indices, const Operand& rows,
                    SourceSite site = SourceSite::current()) const;
  Value scatter_div(const Operand& indices, const Operand& rows,
                    SourceSite site = SourceSite::current()) const;
  Value scatter_update(const Operand& indices, const Operand& rows,
                       SourceSite site = SourceSite::current()) const;
  Value scatter_min(const Operand& indices, const Operand& rows,
                    SourceSite site = SourceSite::current()) const;
  Value scatter_max(const Operand& indices, const Operand& rows,
                    SourceSite site = SourceSite::current()) const;

  // --- at once, outside of traced functions, from any thread. All copies are read or changed together: these
  // methods wait for the runs that use the variable, and no run can come in between. Do not call them in a
  // node of a run that uses the variable. value() throws InvalidArgument if the copies do not form one value
  // (they may drift apart, or have no aggregation): use copies() then.
  Tensor value(SourceSite site = SourceSite::current()) const;
  void assign(const Tensor& value, SourceSite site = SourceSite::current()) const;
  void assign_add(const Tensor& delta, SourceSite site = SourceSite::current()) const;
  void assign_sub(const Tensor& delta, SourceSite site = SourceSite::current()) const;
  // The copy of every replica: mirrored if the copies are meant to be equal and are, bit for bit. Until the
  // first function that uses the variable is compiled there is one for all.
  PerReplica<Tensor> copies(SourceSite site = SourceSite::current()) const;

 private:
  friend internal::Tracer& internal::tracer_of(const Variable& variable);
  enum class RowChange : std::uint8_t { kAdd, kMul, kDiv, kSet, kMin, kMax };
  Value scatter(RowChange change, const Operand& indices, const Operand& rows, bool negate,
                SourceSite site) const;
  // Applies `make` to the value(s); in cross-replica context on every copy.
  Value apply(const std::vector<Value>& values,
              const std::function<Value(GraphBuilder&, std::span<const Value>)>& make, SourceSite site) const;
  // What the action means here, as far as it is known; throws if it is refused whatever the value.
  VariableMeaning allowed(VariableAction action, const SourceSite& site) const;
  Value share_of(const Value& value) const;
  Value change(VariableAction action, const Operand& value, bool negate, SourceSite site) const;
  Tensor value_of_all(VariableMeaning meaning, SourceSite site) const;
  void change_now(VariableAction action, const Tensor& given, bool negate, SourceSite site) const;
  ErrorPlace place(const SourceSite& site) const;
  // The builder that nodes go into; throws FailedPrecondition if nothing is traced, naming what the variable
  // can do only there.
  GraphBuilder& require_trace(std::string_view only, std::string_view instead, const SourceSite& site) const;
  // Throws FailedPrecondition if another strategy is active.
  void check_strategy(const SourceSite& site) const;
  VariableQuestion question(VariableAction action, ReplicaKind value, const SourceSite& site) const;
  VariableRef declare(GraphBuilder& builder, SourceSite site) const;
  std::shared_ptr<const internal::VariableState> state_;
};

// "Variable 'w' f32[2,1], mirrored on 2 replicas" and, if it is not the default, its aggregation.
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const Variable& variable);

}  // namespace lockstep
