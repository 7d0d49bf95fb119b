// bench/support/small_chain.h - steps of many small element-wise nodes, and what runs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/run/program.h"

namespace lockstep::bench {

// `chains` chains of `ops` cheap element-wise nodes each, over one placeholder of so many floats; they meet
// in a sum.
Graph small_chains(int chains, int ops, std::int64_t elements);

// Uniform in [-2, 2), the same every time.
Tensor random_floats(std::int64_t elements);

// A program with its feed and the memory of its result, which has the feed's shape.
class Runner {
 public:
  Runner(Graph graph, const Runtime& runtime, const Tensor& feed);
  void run(std::size_t times, const RunOptions& options = {});
  const Tensor& result() const { return results_[0]; }
  const Program& program() const { return program_; }

 private:
  Program program_;
  std::vector<Tensor> feeds_;
  std::vector<Tensor> results_;
};

}  // namespace lockstep::bench
