// bench/graph_traversal/shape.h - the graphs that are walked: who runs after whom, nothing else.
//
//   chain         0 -> 1 -> 2 -> ...                                        10,000 nodes
//   independent   no edges                                                  10,000
//   wavefront     (i,j) after (i-1,j) and (i,j-1)                           100 x 100
//   tree          a node, its two children, theirs, ... root first          8,191 (depth 13)
//   layered       each node after 4 random ones of the layer before         100 x 100
//   gated         8 chains of 64; a join reads each layer, the next layer waits for it      576
//   overlapped    the same, but the chains do not wait; one last node after all joins       577
//   one           a single node
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::bench {

struct Shape {
  std::string name;
  std::vector<std::uint32_t> first{0};  // node n runs after before[first[n]] .. before[first[n + 1] - 1]
  std::vector<std::uint32_t> before{};  // each a smaller number: 0, 1, 2, ... is a topological order

  std::size_t nodes() const { return first.size() - 1; }
  std::span<const std::uint32_t> after(std::size_t node) const {
    return {before.data() + first[node], before.data() + first[node + 1]};
  }
  std::uint32_t add(std::span<const std::uint32_t> predecessors);
};

std::vector<Shape> all_shapes();

}  // namespace lockstep::bench
