// bench/graph_scale/layers.h - the wiring that both sides build: layers of equal width over random
// neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>

namespace lockstep::bench {

class Layers {
 public:
  static constexpr std::size_t kWidth = 1000;

  // The two inputs of node n as numbers of earlier nodes, none for those of the first layer. One is the node
  // straight above, so that every node has a reader in the next layer.
  static bool has_inputs(std::size_t n) { return n >= kWidth; }
  std::pair<std::size_t, std::size_t> inputs(std::size_t n) {
    const std::size_t layer = n / kWidth - 1;
    return {n - kWidth, layer * kWidth + random_() % kWidth};
  }

 private:
  std::mt19937 random_{4711};
};

}  // namespace lockstep::bench
