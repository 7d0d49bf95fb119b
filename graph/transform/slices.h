// graph/transform/slices.h - lets each replica hold one slice of a variable.
//
//   declare_slices(graph, "w/adam/m", replicas);           // [10, 4] becomes [4, 4] on each of 3 replicas
//
// The variable becomes synchronized on read with Aggregation::kSlices: replica r holds rows r * n to (r + 1)
// * n along axis 0, with n the extent divided by the number of replicas, rounded up; the last slices are
// padded with zeros. The initial value is cut in the same way. Checkpoints join the slices, so they fit the
// variable as it was before, and any number of replicas. The caller must change the nodes that use the
// variable. Thread safety: one writer of the graph.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

// `graph` is the outermost one. Throws InvalidArgument if the variable does not exist, has copies already or
// is a scalar.
LOCKSTEP_API void declare_slices(Graph& graph, std::string_view variable, std::int64_t replicas);

}  // namespace lockstep
