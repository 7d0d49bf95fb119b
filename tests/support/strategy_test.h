// tests/support/strategy_test.h - what tests of strategies repeat: devices, values of replicas, the text of
// an error.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/strategies/trace/step.h"
#include "lockstep/strategies/trace/values.h"
#include "support/test_devices.h"

namespace lockstep::testing {

// What f throws says; "no error" where it throws none.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline Tensor vec(std::initializer_list<float> values) {
  return Tensor::from(Shape{static_cast<std::int64_t>(values.size())}, values);
}

// A scalar for each replica.
inline PerReplica<Tensor> scalars(std::initializer_list<float> values) {
  std::vector<Tensor> slots;
  for (const float value : values) slots.push_back(Tensor::scalar(value));
  return PerReplica<Tensor>(std::move(slots));
}

inline const InputSpec kScalar(DType::kF32, Shape{}, "x");
inline const InputSpec kVector(DType::kF32, Shape{kUnknown}, "x");

// The devices of the nodes of an op, in the order of the nodes.
inline std::vector<std::string> devices_of(const Graph& graph, std::string_view op) {
  std::vector<std::string> devices;
  for (const Node& node : graph.nodes()) {
    if (node.op().name == op) devices.push_back(node.device());
  }
  return devices;
}

}  // namespace lockstep::testing
