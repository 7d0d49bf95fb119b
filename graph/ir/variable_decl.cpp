// graph/ir/variable_decl.cpp - names of the options of a declaration.
#include "lockstep/graph/ir/variable_decl.h"

namespace lockstep {

std::string_view to_string(Synchronization value) {
  switch (value) {
    case Synchronization::kAuto: return "auto";
    case Synchronization::kNone: return "none";
    case Synchronization::kOnWrite: return "on_write";
    case Synchronization::kOnRead: return "on_read";
  }
  return "?";
}

std::string_view to_string(Aggregation value) {
  switch (value) {
    case Aggregation::kNone: return "none";
    case Aggregation::kSum: return "sum";
    case Aggregation::kMean: return "mean";
    case Aggregation::kOnlyFirstReplica: return "only_first_replica";
    case Aggregation::kSlices: return "slices";
  }
  return "?";
}

std::string copy_name(std::string_view variable, std::int64_t replica) {
  std::string name(variable);
  if (replica > 0) name.append("/replica_").append(std::to_string(replica));
  return name;
}

}  // namespace lockstep
