// io/drawings/internal/view_likeness.h - which nodes of a view are alike: of several replicas, of several
// layers, of two stages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/hasher.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

inline std::uint64_t mix(std::uint64_t seed, std::uint64_t value) { return Hasher(seed).add(value).result(); }
inline std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0) {
  return Hasher(seed).add(text).result();
}

// A hash of a node without its name and inputs: of op, specs, attributes, the ops in its regions. It leaves
// out how nodes in the same place differ. Between replicas, that is the copy of a variable they name. Between
// layers, it is the variable they name, their random key and their weights: of constants only scalars and the
// like count. Of very large constants the first kilobytes count.
enum class SamePlace : std::uint8_t { kOtherReplica, kOtherLayer };
std::uint64_t hash_of_node(const Node& node, SamePlace place);

// Is it the same node in two stages, apart from its name and inputs: op, specs, attributes to the last bit,
// regions? Code inside lambdas does not count.
bool same_but_for_wires(const Node& a, const Node& b);

// The name without components that say which replica: "replica_1/a", "a/replica_1" and "a" are "a".
std::string without_replica(std::string_view name);

}  // namespace lockstep::internal
