// core/kernels/attention.h - scaled dot-product attention of one head, on plain memory.
//
//   scores = q kT * scale [+ mask]      shares = softmax(scores) [, dropout]      out = shares v
//   logs = log(sum(exp(scores)))        one for each query
//
// Scores are made for some rows at a time and never rounded to f16 or bf16: these compute in f32, and so do logs. Sums are in an
// order that follows from the sizes alone. A row whose scores are all -inf gives NaN, as softmax does; no keys give zeros.
//
// Thread safety: any thread, any number at once, on outputs and scratch memory that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/random.h"

namespace lockstep::kernels {

// Rows of neighbours, each `step` elements after the one before.
struct AttentionInput {
  const void* data = nullptr;
  std::int64_t step = 0;
};
struct AttentionOutput {
  void* data = nullptr;
  std::int64_t step = 0;
};

struct AttentionHead {
  std::int64_t queries = 0, keys = 0, width = 0, value_width = 0;
  double scale = 1;
  AttentionInput q, k, v;
  AttentionInput mask;                   // null: none
  std::int64_t mask_column = 0;          // elements from one column of the mask to the next
  const RandomStream* stream = nullptr;  // of the dropout; null: none
  double rate = 0;
  std::int64_t first_share =
      0;  // the dropout's number of the head's first share; the next row begins `keys` later
};

// Of a call with these sizes; data and steps do not matter. Whole cache lines.
LOCKSTEP_API std::size_t attention_scratch_bytes(DType dtype, const AttentionHead& head);
LOCKSTEP_API std::size_t attention_grad_scratch_bytes(DType dtype, const AttentionHead& head);

// Queries [begin, end). `out` and `logs` are those of the head, from query 0 on. Scratch memory is aligned to a cache line.
LOCKSTEP_API void attention(DType dtype, const AttentionHead& head, std::int64_t begin, std::int64_t end,
                            const AttentionOutput& out, void* logs, void* scratch);

// What flows back into q, k and v, given what flows back into out.
struct AttentionFlow {
  AttentionInput out, g;
  const void* logs = nullptr;
  AttentionOutput dq, dk, dv;
};
LOCKSTEP_API void attention_grad(DType dtype, const AttentionHead& head, const AttentionFlow& flow,
                                 void* scratch);

}  // namespace lockstep::kernels
