// graph/internal/replica_shares.h - for passes that touch gradients: is a value a replica's part of a sum, or the whole?
//
// Inside replicated regions a gradient is a share, which replicas have yet to sum, unless it was computed from such sums. This
// tells them apart by traits alone. (Whether values are equal on all replicas is another question: a share may be.)
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep::internal {

enum class Share : std::uint8_t {
  kConstant,  // of no replica in particular, and no part of anything: a number, a variable
  kWhole,     // computed from what replicas made together
  kPart,      // of one replica
};

// A graph, or a region anywhere inside it.
struct SharedLevel {
  Graph& graph;
  std::int64_t replicas;  // that run it; 1 outside of replicated regions
  const std::vector<Share>&
      shares;  // by node: the most that any of its outputs is; says nothing where replicas is 1
};
// Visits all levels, regions before what stands around them; the visitor may edit the level. Linear.
void visit_shares(Graph& outermost, const std::function<void(const SharedLevel& level)>& visit);

// Does each replica have a value of its own (synchronization on read)?
bool is_own_variable(const Graph& outermost, const std::string& name);

}  // namespace lockstep::internal
