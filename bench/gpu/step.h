// bench/gpu/step.h - training steps of Lockstep on a card.
//
//   TrainingStep step(runtime, parse_case("mlp-tf32"), 1024);       // on gpu:0
//   step.put(10);                                           // on the streams
//   step.finish();
//   double loss = step.loss();
//
// The batch lies on the card. Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/run/program.h"
#include "models.h"
#include "support/measure.h"

namespace lockstep::bench {

inline constexpr const char* kCard = "gpu:0";

// The step as it was built, and its batch on the card.
struct BuiltStep {
  Graph graph;
  std::vector<Tensor> feeds;
};
BuiltStep build_step(const Runtime& runtime, const Case& what, std::int64_t batch);
// Optimizes and compiles it, with variables of its own.
Program compile_step(Graph graph, const Runtime& runtime, const Case& what);
// Bytes of the program's variables, the optimizer's slots included.
std::int64_t variable_bytes(const Program& program);

class TrainingStep {
 public:
  TrainingStep(const Runtime& runtime, const Case& what, std::int64_t batch);
  void put(std::size_t steps);
  void finish() const { program_.wait(); }
  // Of the last step; waits for it.
  double loss() const;
  const Program& program() const { return program_; }
  const std::vector<Tensor>& feeds() const { return feeds_; }

 private:
  std::vector<Tensor> feeds_, results_;
  Program program_;
};

// Runs so often, and waits for all of it.
Contender contender(std::string name, const Program& program, std::vector<Tensor> feeds = {});

}  // namespace lockstep::bench
