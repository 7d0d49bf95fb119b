// graph/ir/internal/gradient_nodes.h - which nodes are a replica's share of a gradient: Provenance::gradient
// says so, and the forms of files keep it.
#pragma once

#include <string_view>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

inline constexpr std::string_view kGradients = "gradients";  // Provenance::made_by of what gradients() made

inline constexpr std::string_view kGradientSeed = "gradient_seed";  // of what gradients() began with

// Does gradients() begin with its value? The text form does not keep it.
inline bool is_gradient_seed(const Node& node) {
  const StringId maker = node.provenance().made_by;
  return maker.valid() && node.graph().text(maker) == kGradientSeed;
}

inline bool is_gradient_share(const Node& node) { return node.provenance().gradient == GradientMark::kShare; }

}  // namespace lockstep::internal
