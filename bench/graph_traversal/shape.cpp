#include "shape.h"

#include <algorithm>
#include <array>
#include <random>

namespace lockstep::bench {
namespace {

using Ids = std::vector<std::uint32_t>;

Shape make_chain(std::uint32_t nodes) {
  Shape shape{"chain"};
  shape.add({});
  for (std::uint32_t n = 1; n < nodes; ++n) shape.add(std::array{n - 1});
  return shape;
}

Shape make_independent(std::uint32_t nodes) {
  Shape shape{"independent"};
  for (std::uint32_t n = 0; n < nodes; ++n) shape.add({});
  return shape;
}

Shape make_wavefront(std::uint32_t side) {
  Shape shape{"wavefront"};
  for (std::uint32_t i = 0; i < side; ++i) {
    for (std::uint32_t j = 0; j < side; ++j) {
      Ids before;
      if (i > 0) before.push_back((i - 1) * side + j);
      if (j > 0) before.push_back(i * side + j - 1);
      shape.add(before);
    }
  }
  return shape;
}

Shape make_tree(std::uint32_t depth) {
  Shape shape{"tree"};
  shape.add({});
  for (std::uint32_t n = 1; n < (1U << depth) - 1; ++n) shape.add(std::array{(n - 1) / 2});
  return shape;
}

Shape make_layered(std::uint32_t layers, std::uint32_t width, std::size_t in_degree) {
  Shape shape{"layered"};
  std::mt19937 random(12345);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (std::uint32_t n = 0; n < width; ++n) {
      Ids before;
      while (layer > 0 && before.size() < in_degree) {
        const std::uint32_t pick = (layer - 1) * width + static_cast<std::uint32_t>(random() % width);
        if (std::find(before.begin(), before.end(), pick) == before.end()) before.push_back(pick);
      }
      shape.add(before);
    }
  }
  return shape;
}

Shape make_replicas(std::uint32_t replicas, std::uint32_t layers, bool gated) {
  Shape shape{gated ? "gated" : "overlapped"};
  Ids ends;
  Ids joins;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    Ids next;
    for (std::uint32_t r = 0; r < replicas; ++r) {
      Ids before;
      if (layer > 0) before.push_back(ends[r]);
      if (layer > 0 && gated) before.push_back(joins.back());
      next.push_back(shape.add(before));
    }
    ends = next;
    joins.push_back(shape.add(ends));
  }
  if (!gated) shape.add(joins);
  return shape;
}

Shape make_one() {
  Shape shape{"one"};
  shape.add({});
  return shape;
}

}  // namespace

std::uint32_t Shape::add(std::span<const std::uint32_t> predecessors) {
  before.insert(before.end(), predecessors.begin(), predecessors.end());
  first.push_back(static_cast<std::uint32_t>(before.size()));
  return static_cast<std::uint32_t>(nodes() - 1);
}

std::vector<Shape> all_shapes() {
  return {make_chain(10'000),        make_independent(10'000),   make_wavefront(100),         make_tree(13),
          make_layered(100, 100, 4), make_replicas(8, 64, true), make_replicas(8, 64, false), make_one()};
}

}  // namespace lockstep::bench
