// graph/ir/internal/gradient_nodes.h - which nodes gradients() made: Provenance::made_by says so, and the
// text form keeps it.
#pragma once

#include <string_view>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

inline constexpr std::string_view kGradients = "gradients";  // Provenance::made_by

inline bool made_by_gradients(const Node& node) {
  return node.graph().text(node.provenance().made_by) == kGradients;
}

}  // namespace lockstep::internal
