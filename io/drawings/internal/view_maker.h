// io/drawings/internal/view_maker.h - the second step of making a GraphView, after boxes and edges
// (graph_view.cpp): scopes and folding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/io/drawings/graph_view.h"
#include "lockstep/io/drawings/internal/view_likeness.h"

namespace lockstep::internal {

class ViewFolder {
 public:
  ViewFolder(GraphView& view, const ViewOptions& options) : view_(view), options_(options) {}
  // Fills view.scopes(), and the parts of nodes and edges that depend on them.
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
  void add_size(ViewScope& scope, const ViewNode& node) const;
  void cut_into_parts();
  void number();
  std::uint32_t first_node(std::uint32_t scope) const;

  GraphView& view_;
  const ViewOptions& options_;
  NameMap<std::uint32_t> by_name_;
  std::vector<bool> in_region_;             // by scope: it shows regions, or lies in one that does
  std::vector<std::uint64_t> hashes_;       // by scope: its structure
  std::vector<std::uint32_t> twins_;        // by node: its twin if its scope is folded, else itself
  std::vector<std::uint32_t> tree_scope_;   // by node: before anything is folded
  std::vector<std::uint32_t> tree_parent_;  // by scope: likewise
  std::vector<std::vector<std::uint32_t>> tree_scopes_, tree_nodes_;  // by scope: likewise
  mutable std::vector<std::uint32_t> first_;                          // by scope: its first node
};

}  // namespace lockstep::internal
