// io/state/internal/logical_variables.h - the variables of a store at rest, each with its copies, and whether
// saved variables fit them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/core/store_at_rest.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/run/logical_variable.h"
#include "lockstep/io/state/snapshot.h"

namespace lockstep::internal {

// By name.
std::vector<LogicalVariable> logical_variables(const StoreAtRest& rest);

// A variable that is about to be restored.
struct Offered {
  std::string_view name;
  TensorSpec spec;         // of the value, or of each copy
  std::size_t copies = 0;  // 0: it is one value
};
// Compares the offered variables (by name) with those of the program. Throws FailedPrecondition, naming
// everything that does not fit; `source` names what is restored.
RestoreReport match(std::span<const LogicalVariable> variables, std::span<const Offered> offered,
                    const RestoreOptions& options, std::string_view source);

}  // namespace lockstep::internal
