// bench/gpu/programs.h - the programs of Lockstep that the rows of the benchmark run.
//
// What they read lies in variables on the card, and of what they compute one element is the result, since each run copies feeds
// and results. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/run/program.h"
#include "lockstep/strategies/mirrored.h"
#include "models.h"

namespace lockstep::bench {

// `kernels` additions of 4 floats, one after another, as they were built: nothing is fused.
Program tiny_chain(const Runtime& runtime, int kernels);

// A program, and the bytes that one run has to read and write, with the reason.
struct Moving {
  std::string name;
  Program program;
  double bytes = 0;
  std::string formula = {};
};

// Twelve element-wise ops on so many floats, through optimize().
Moving element_chain(const Runtime& runtime, std::int64_t elements);
// AdamW on `tensors` variables of side x side floats.
Moving adamw_updates(const Runtime& runtime, int tensors, std::int64_t side);
// Of [side, side] floats, each on its own: softmax, layer_norm, cross_entropy; forward or what flows back.
Moving row_op(const Runtime& runtime, const std::string& op, bool backward, std::int64_t side);

// An all-reduce of so many floats over the GPUs of the runtime, which are logical ones of one card.
class LogicalSum {
 public:
  LogicalSum(const Runtime& runtime, std::int64_t elements);
  const Program& program() const { return step_.program(); }
  double bytes() const;
  std::string formula() const;
  // Do all replicas have the sum?
  bool is_right() const;

 private:
  bool is_shared() const;  // one sum for all of them
  std::int64_t elements_, replicas_;
  MirroredStrategy strategy_;
  Step step_;
};

// The training step mirrored over all GPUs of the runtime, which are logical ones of one card.
class MirroredTraining {
 public:
  MirroredTraining(const Runtime& runtime, const Case& what, std::int64_t joined_batch);
  const Program& program() const { return step_.program(); }
  const std::vector<Tensor>& feeds() const { return feeds_; }

 private:
  MirroredStrategy strategy_;
  Step step_;
  std::vector<Tensor> feeds_;
};

}  // namespace lockstep::bench
