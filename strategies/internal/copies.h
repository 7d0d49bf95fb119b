// strategies/internal/copies.h - which variables have copies for replicas, and making them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep::internal {

// Names of all variables that replicated regions use, regions of other nodes included.
std::unordered_set<std::string> replicated_variables(const Graph& graph);
// The largest number of replicas of a replicated region; 0 where there is none.
std::int64_t max_replicas(const Graph& graph);

// Declares copies 1 to replicas-1 of those variables that lack them. True where it declared any. Throws InvalidArgument where
// another variable has the name of a copy.
bool declare_copies(Graph& graph, const std::unordered_set<std::string>& names, std::int64_t replicas,
                    std::span<const std::string> devices);

// The copies a graph declares.
class VariableCopies {
 public:
  explicit VariableCopies(const Graph& outermost);
  // What replica r calls the variable: its own name where there is no copy for r.
  const std::string& name(const std::string& variable, std::int64_t replica) const;
  // The variable itself, for the name of any copy.
  const std::string& original(const std::string& name) const;
  bool has_copies(const std::string& variable) const { return copies_.contains(variable); }
  // Do replicas keep their copies equal? (Not those that are synchronized on read.)
  bool is_mirrored(const std::string& name) const;

 private:
  const Graph& graph_;
  std::unordered_map<std::string, std::vector<std::string>> copies_;  // by replica
};

}  // namespace lockstep::internal
