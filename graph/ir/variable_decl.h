// graph/ir/variable_decl.h - what a graph says of a variable.
//
// Thread safety: plain values; copies of a Tensor share its data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"
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
  // A copy of another variable, which is declared before it: it is what replica `replica` uses in its place,
  // and starts with that one's value, or with an initial value of its own where the variable is synchronized
  // on read. Copies that `share` lie in the other one's memory: one variable under two names.
  std::string copy_of = {};
  std::int32_t replica = -1;
  bool shares = false;
  // Of Aggregation::kSlices: `spec` is one slice, dims[slice_axis] long; together, in the order of the replicas,
  // they are a value that is `slice_extent` long there. What the last slices hold beyond that does not count.
  std::int32_t slice_axis = 0;
  std::int64_t slice_extent = 0;
  std::string made_at = {};  // "train.cpp:12", for messages; empty: not known
};
// The name of replica r's copy: "w" for 0, "w/replica_1" for 1.
LOCKSTEP_API std::string copy_name(std::string_view variable, std::int64_t replica);

}  // namespace lockstep
