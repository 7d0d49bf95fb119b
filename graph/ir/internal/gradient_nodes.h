// graph/ir/internal/gradient_nodes.h - which nodes are a replica's share of a gradient: Provenance::gradient
// says so, and the forms of files keep it.
#pragma once

#include <string_view>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

inline constexpr std::string_view kGradients = "gradients";  // Provenance::made_by of what gradients() made

inline bool is_gradient_share(const Node& node) { return node.provenance().gradient == GradientMark::kShare; }

}  // namespace lockstep::internal
