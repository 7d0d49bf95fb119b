// graph/run/internal/feed_check.h - what a graph expects of its feeds.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/run/program.h"

namespace lockstep::internal {

// All of it throws InvalidArgument. The graph must outlive it.
class FeedCheck {
 public:
  explicit FeedCheck(const Graph& graph) : graph_(graph) {}

  void count(std::size_t feeds) const {
    if (feeds != graph_.parameters().size()) wrong_count(feeds);
  }
  void feed(std::size_t i, const Tensor& feed) const;
  void spec(std::size_t i, const TensorSpec& spec) const;
  void all(std::span<const Tensor> feeds) const;
  // In the order of the placeholders; those that were not fed are empty.
  std::vector<Tensor> in_order(std::span<const Feed> feeds) const;

 private:
  [[noreturn]] void wrong_count(std::size_t got) const;
  std::string placeholders() const;

  const Graph& graph_;
};

}  // namespace lockstep::internal
