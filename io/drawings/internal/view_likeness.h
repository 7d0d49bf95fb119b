// io/drawings/internal/view_likeness.h - which nodes of a view are alike: of several replicas, of several
// layers, of two stages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// Mixes a value into a hash: well, and the same in every process.
inline std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15U + value + 0x632BE59BD9B4E019U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}
inline std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0) {
  std::uint64_t h = 0xCBF29CE484222325U ^ seed;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return mix(h, text.size());
}

// What a node is besides its name and what it reads: op, specs, attributes, the ops in its regions. Nodes in
// the same place differ between replicas in which copy of a variable they name. Between layers they differ in
// which variable they name, which random key they have and what their weights are: of constants only scalars
// and the like count. Of very large constants the first kilobytes count.
enum class SamePlace : std::uint8_t { kOtherReplica, kOtherLayer };
std::uint64_t hash_of_node(const Node& node, SamePlace place);

// The same node in two stages, besides its name and what it reads: op, specs, attributes to the last bit,
// regions. Code inside lambdas does not count.
bool same_but_for_wires(const Node& a, const Node& b);

// The name without components that say which replica: "replica_1/a", "a/replica_1" and "a" are "a".
std::string without_replica(std::string_view name);

}  // namespace lockstep::internal
