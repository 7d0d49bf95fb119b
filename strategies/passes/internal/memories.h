// strategies/passes/internal/memories.h - where values lie, and which devices there are.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// The name of a device's memory: all CPUs of this process, and values that are not placed, share one, whose
// name is empty.
std::string memory_of(std::string_view device);

// The same for many values: each name is parsed once.
class Memories {
 public:
  bool same(const std::string& a, const std::string& b) { return a == b || of(a) == of(b); }

 private:
  const std::string& of(const std::string& device);
  NameMap<std::string> known_;
};

// A runtime with as many logical CPUs as these devices need, in any spelling.
Runtime runtime_with(std::span<const std::string> devices);

// Throws InvalidArgument if the runtime has no such device, in any spelling.
void check_device(const Runtime& runtime, const std::string& name);

// The device a value is made on. A collective leaves each replica's values on their own device; a branch or
// loop leaves values on the device where its region made them.
const std::string& device_of(const Graph& level, ValueId value);

// The device on which a node needs input i; for a branch or loop, the device of its region's parameter.
const std::string& wanted_device(const Node& node, std::size_t input);

}  // namespace lockstep::internal
