// io/internal/view_maker.h - the two steps that make a GraphView: boxes and edges of all stages, then scopes and folding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/io/graph_view.h"

namespace lockstep {

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

// What a node is besides its name and what it reads: op, specs, attributes (the contents of tensors aside), the ops in its
// regions. Nodes in the same place differ between replicas in which copy of a variable they name, and between layers in which
// variable they name and which random key they have.
enum class SamePlace : std::uint8_t { kNode, kOtherReplica, kOtherLayer };
std::uint64_t hash_of_node(const Node& node, SamePlace place);
// The name without components that say which replica: "replica_1/a", "a/replica_1" and "a" are "a".
std::string without_replica(std::string_view name);

class ViewFolder {
 public:
  ViewFolder(GraphView& view, const ViewOptions& options) : view_(view), options_(options) {}
  // Fills view.scopes(), and what nodes and edges say of them.
  void run();

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;
  void make_tree();
  std::uint32_t scope_of(std::string_view path);
  void hash_scopes();
  void fold_layers();
  void pair(std::uint32_t copy, std::uint32_t with);
  void pair_regions(std::uint32_t copy, std::uint32_t with);
  std::vector<std::uint32_t> nodes_below(std::uint32_t scope) const;
  std::uint32_t common_scope(std::uint32_t a, std::uint32_t b) const;
  std::string_view label_within(std::uint32_t node) const;
  std::uint64_t hash_within(std::uint32_t scope, std::uint32_t node) const;
  void fold_edges();
  void leave_out_single();
  void count();
  void cut_into_parts();
  void number();
  std::uint32_t first_node(std::uint32_t scope) const;

  GraphView& view_;
  const ViewOptions& options_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
  std::vector<bool> in_region_;             // by scope: it shows regions, or lies in one that does
  std::vector<std::uint64_t> hashes_;       // by scope: its structure
  std::vector<std::uint32_t> twins_;        // by node: that of the scope it is folded into; itself otherwise
  std::vector<std::uint32_t> tree_scope_;   // by node: before anything is folded
  std::vector<std::uint32_t> tree_parent_;  // by scope: likewise
  std::vector<std::vector<std::uint32_t>> tree_scopes_, tree_nodes_;  // by scope: likewise
  mutable std::vector<std::uint32_t> first_;                          // by scope: its first node
};

}  // namespace lockstep
