// io/state/internal/logical_variables.h - the variables of a store as the program knows them, with their
// copies.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/store_at_rest.h"
#include "lockstep/core/tensor.h"
#include "lockstep/io/state/snapshot.h"

namespace lockstep::internal {

struct LogicalVariable {
  std::vector<StoredVariable*> copies;  // the variable itself, then those of further replicas in their order
  CopyRule rule = CopyRule::kEqual;
  std::vector<const void*> memory = {};  // of the copies

  const std::string& name() const { return copies[0]->name(); }
  const TensorSpec& spec() const { return copies[0]->spec(); }
  // Whether the copies are one value.
  Decision has_value() const;
  // The value into a tensor of the spec, and back. The store is at rest. They allocate nothing: of several
  // variables either none is read or written, or all are.
  void read(Tensor& into) const noexcept;
  void write(const Tensor& value) const noexcept;
};

// By name.
std::vector<LogicalVariable> logical_variables(const StoreAtRest& rest);

// What is about to be restored.
struct Offered {
  std::string_view name;
  TensorSpec spec;
};
// Compares what is offered (by name) with what the program has. Throws FailedPrecondition, naming everything
// that does not fit; `source` says what is restored.
RestoreReport match(std::span<const LogicalVariable> variables, std::span<const Offered> offered,
                    const RestoreOptions& options, std::string_view source);

}  // namespace lockstep::internal
