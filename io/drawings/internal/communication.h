// io/drawings/internal/communication.h - which nodes bring values together, for dumps and traces alike.
#pragma once

#include <cstdint>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

enum class Communication : std::uint8_t {
  kNone,
  kJoinsReplicas,  // a collective, or a node that one was lowered to
  kTransfers,      // from one device to another
};

inline Communication communication_of(const Node& node) {
  const OpTraits& traits = node.op().traits;
  if (traits.is(ReplicaRole::kLoweredCollective) || traits.is(ReplicaRole::kCollective) ||
      has(node.op().effects, Effect::kCollective))
    return Communication::kJoinsReplicas;
  return traits.transfers ? Communication::kTransfers : Communication::kNone;
}

}  // namespace lockstep::internal
