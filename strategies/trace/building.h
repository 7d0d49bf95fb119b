// strategies/trace/building.h - making nodes inside a function that is being traced, without its builder.
//
//   auto step = strategy.function(specs, [=](Value x) {
//     const auto layer = name_scope("layer");                       // names inside read "layer/..."
//     return matmul(x, w) + constant(Tensor::from({2}, {1.F, 2.F}));
//   });
//
// The nodes go to the same place as the function's other nodes: into the step, or the branch, loop body or
// replica that is being traced. Numbers need no constant(): `x + 1.F` makes one. For everything else that a
// builder does use current_builder() (strategies/trace/context.h). Outside of a traced function each call is
// an error (FailedPrecondition). Thread safety: tracing belongs to its thread.
#pragma once

#include <string_view>
#include <type_traits>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// Copies the tensor: later changes to it do not change the step.
LOCKSTEP_API Value constant(const Tensor& value, std::string_view name = "constant",
                            SourceSite site = SourceSite::current());
template <class T>
requires std::is_arithmetic_v<T> Value constant(T value, SourceSite site = SourceSite::current()) {
  return constant(Tensor::scalar(value), "constant", site);
}

// Prefixes the names of nodes that are made while the guard lives with "name/". The guard must not outlive
// the function that made it.
[[nodiscard]] LOCKSTEP_API GraphBuilder::Guard name_scope(std::string_view name,
                                                          SourceSite site = SourceSite::current());

}  // namespace lockstep
