// strategies/trace/element_spec.h - an input signature from a batch.
//
//   auto step = strategy.function(element_spec(batch), fn);      // batch: a PerReplica<Tensor>, or any nest of them
//
// One InputSpec for each leaf, in the order of nest::flatten: its dtype and shape. Dimensions in which slots
// differ become unknown, and so does the first, which is the batch's, so that a partial last batch fits. A
// single value is an input that all replicas share, and keeps its shape. Throws InvalidArgument if the slots
// of a leaf differ in dtype or rank. Thread safety: any thread.
#pragma once

#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"
#include "lockstep/strategies/trace/nest.h"
#include "lockstep/strategies/trace/step.h"
#include "lockstep/strategies/trace/values.h"

namespace lockstep {

LOCKSTEP_API InputSpec input_spec_of(const PerReplica<Tensor>& value);

namespace internal {
LOCKSTEP_API std::vector<InputSpec> element_specs(std::span<const PerReplica<Tensor>> leaves);
}  // namespace internal

template <class N>
std::vector<InputSpec> element_spec(const N& nest_of_values) {
  return internal::element_specs(nest::leaves<PerReplica<Tensor>>(nest_of_values));
}

}  // namespace lockstep
