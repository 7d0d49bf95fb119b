// graph/ir/placement.h - where values of a placed graph are, and where nodes want them.
//
//   Memories memories(context.topology);
//   const std::string& from = device_of(graph, node.inputs()[i]);
//   if (!memories.same(from, wanted_device(node, i))) ...      // it has to be copied
//
// Passes and plans ask the same functions, so that a pass that inserts copies and the plan that lays out memory
// cannot disagree. Names are canonical; an empty one is the first device of the topology.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/topology.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

// The device a value is made on. A collective leaves each replica's values on the device of that replica's
// input; a branch or loop leaves values on the device where its region made them.
LOCKSTEP_API const std::string& device_of(const Graph& level, ValueId value);

// The device on which a node needs input i; for a branch or loop, the device of its region's parameter.
LOCKSTEP_API const std::string& wanted_device(const Node& node, std::size_t input);

// Which devices compute in one memory, by their names; each name is parsed once. Thread safety: one thread.
class LOCKSTEP_API Memories {
 public:
  // Null: nothing is known about the devices (Topology::same_memory() says what is assumed). The topology must
  // outlive this.
  explicit Memories(const Topology* topology);

  bool same(const std::string& a, const std::string& b);

 private:
  const Device& parsed(const std::string& name);

  const Topology* topology_;
  NameMap<Device> parsed_;
};

}  // namespace lockstep
