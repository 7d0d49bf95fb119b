// tests/support/drawn_graphs.h - graphs that the tests of dumps draw.
#pragma once

#include <string>

#include "lockstep/core/error.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/text/text.h"

namespace lockstep::testing {

// Two replicas, what joins them, and something that waits for one of them.
inline constexpr const char* kTwoReplicas = R"(
    %x = placeholder() : f32[?,4]
    %"x/replica_1" = placeholder() : f32[?,4]
    %a = square(%x) : f32[?,4] on "cpu:0" replica 0
    %"replica_1/a" = square(%"x/replica_1") : f32[?,4] on "cpu:1" replica 1
    %layer/b = relu(%a) : f32[?,4] on "cpu:0" replica 0
    %"replica_1/layer/b" = relu(%"replica_1/a") : f32[?,4] on "cpu:1" replica 1
    %sum = reduce_replicas[reduce="sum", replicas=2](%layer/b, %"replica_1/layer/b") : f32[?,4]
    %log = log(%sum) : f32[?,4] after(%a, %"replica_1/a")
    return %log
)";

// A model of `layers` equal layers but for the sixth, one behind the other, on each of `replicas` replicas.
inline Graph layered_graph(int layers, int replicas) {
  std::string text;
  std::string results;
  for (int r = 0; r < replicas; ++r) {
    const std::string scope = r == 0 ? "" : str("replica_", r, "/");
    const std::string where = replicas == 1 ? "" : str(" on \"cpu:", r, "\" replica ", r);
    const auto name = [&](const std::string& plain) { return "%\"" + scope + plain + "\""; };
    std::string before = name("x");
    text += before + " = placeholder() : f32[8]\n";
    for (int i = 0; i < layers; ++i) {
      const std::string layer = str("model/layer_", i, "/");
      const char* op = i == 5 ? "tanh" : "relu";
      text += str(name(layer + op), " = ", op, "(", before, ") : f32[8]", where, "\n");
      text += str(name(layer + "square"), " = square(", name(layer + op), ") : f32[8]", where, "\n");
      text += str(name(layer + "add"), " = add(", name(layer + "square"), ", ", before, ") : f32[8]", where,
                  "\n");
      before = name(layer + "add");
    }
    text += str(name("head"), " = neg(", before, ") : f32[8]", where, "\n");
    results += str(r == 0 ? "" : ", ", name("head"));
  }
  return parse(text + "return " + results + "\n");
}

}  // namespace lockstep::testing
