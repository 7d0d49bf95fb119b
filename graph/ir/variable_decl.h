// graph/ir/variable_decl.h - the declaration of a variable in a graph.
//
// Thread safety: plain values; copies of a Tensor share its data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// How copies of a variable relate, and how values assigned by several replicas become one (strategies read
// both).
enum class Synchronization : std::uint8_t { kAuto, kNone, kOnWrite, kOnRead };
enum class Aggregation : std::uint8_t {
  kNone,
  kSum,
  kMean,
  kOnlyFirstReplica,
  kSlices,  // synchronized on read only: the copies are slices of one value along an axis
};
LOCKSTEP_API std::string_view to_string(Synchronization value);  // "auto", "none", "on_write", "on_read"
LOCKSTEP_API std::string_view to_string(Aggregation value);      // "none", "sum", "only_first_replica", ...

struct VariableDecl {
  std::string name;
  TensorSpec spec;  // fully known
  Tensor initial;   // of that spec; undefined: zeros
  Synchronization synchronization = Synchronization::kAuto;
  Aggregation aggregation = Aggregation::kNone;
  bool trainable = true;
  std::string device = {};  // canonical name of where it lives; empty: not placed
  // Set for a copy of another variable, which must be declared before it: replica `replica` uses the copy in
  // its place. It starts with the original's value, or with an initial value of its own if the variable is
  // synchronized on read. A copy that `shares` lies in the original's memory: one variable under two names.
  std::string copy_of = {};
  std::int32_t replica = -1;
  bool shares = false;
  // For Aggregation::kSlices: `spec` is one slice, dims[slice_axis] long. In the order of the replicas, the
  // slices make up a value that is `slice_extent` long along that axis; elements of the last slices beyond it
  // do not count.
  std::int32_t slice_axis = 0;
  std::int64_t slice_extent = 0;
  std::string made_at = {};  // "train.cpp:12", for messages; empty: not known
};
// The name of replica r's copy: "w" for 0, "w/replica_1" for 1.
LOCKSTEP_API std::string copy_name(std::string_view variable, std::int64_t replica);

}  // namespace lockstep
