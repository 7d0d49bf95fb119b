// strategies/passes/internal/copies.h - which variables have copies for replicas, and making them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/name_set.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// Names of all variables that replicated regions use, regions of other nodes included.
NameSet replicated_variables(const Graph& graph);
// The largest number of replicas of a replicated region; 0 if there is none.
std::int64_t max_replicas(const Graph& graph);

// Declares copies 1 to replicas-1 of the named variables that lack them. True if it declared any. Throws
// InvalidArgument if another variable has the name of a copy.
bool declare_copies(Graph& graph, const NameSet& names, std::int64_t replicas,
                    std::span<const std::string> devices);

// The copies that a graph declares. The graph must declare no more variables while this is in use.
class VariableCopies {
 public:
  explicit VariableCopies(const Graph& outermost);
  // The name of replica r's copy; the variable's own name if there is no copy for r.
  const std::string& name(const std::string& variable, std::int64_t replica) const;
  // The copy for r of the variable at this place of the graph's list; null if there is none.
  const VariableDecl* copy(std::size_t variable, std::int64_t replica) const;
  // Do replicas keep their copies equal? (Not those that are synchronized on read.)
  bool is_mirrored(const std::string& name) const;

 private:
  std::size_t place_of(const VariableDecl& decl) const {
    return static_cast<std::size_t>(&decl - graph_.variables().data());
  }

  const Graph& graph_;
  std::size_t replicas_ = 0;
  // By place of the variable, then by replica: the place of the copy. 0: no copy; a copy always comes after
  // its variable.
  std::vector<std::uint32_t> copies_;
};

}  // namespace lockstep::internal
