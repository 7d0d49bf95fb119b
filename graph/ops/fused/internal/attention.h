// graph/ops/fused/internal/attention.h - what an `attention` node and its `attention_grad` compute, as their attributes say.
//
//   scores = q kT * scale [+ mask]           for each head of each batch: q is [queries, width], k is [keys, width]
//   shares = softmax(scores) [, dropout]     `rate` and `key`, as the op dropout has them, on shares as [batch.., queries, keys]
//   out = shares v                           v is [keys, value_width]; in the layout of q
//   logs = log(sum(exp(scores)))             f32, of f64 f64: [batch.., queries]
//
// The inputs of `attention` are q, k and v, then with `mask` a mask that broadcasts to the scores. `layout` says how q, k, v and
// out lie: "heads_first", [batch.., rows, width] (the default), or "rows_first", [batch, rows, heads, width]. With `packed` q, k
// and v are one input, [batch, rows, 3, heads, width], which is "rows_first".
//
// `attention_grad` reads what `attention` read, then its out, its logs, and what flows back into out. It gives what flows back
// into q, k and v; with `packed` as one value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

inline constexpr std::string_view kAttention = "attention";
inline constexpr std::string_view kAttentionGrad = "attention_grad";

// Where the rows of a value lie, of each head of each batch: in elements. The elements of a row are neighbours.
struct AttentionRows {
  std::size_t operand = 0;  // of the node's inputs, or outputs
  std::int64_t offset = 0, batch = 0, head = 0, row = 0;
};

// Where the elements of the mask lie, for scores as [batch, heads, queries, keys]; steps of 0 where it is broadcast.
struct AttentionMask {
  std::size_t operand = 0;
  std::int64_t batch = 0, head = 0, row = 0, column = 0;
};

// Of both ops. Batch axes of "heads_first" are counted as one, `heads`, if the mask does not need two; more than two cannot be told
// apart by a mask: it broadcasts along the first, or the last, of them, or has all.
struct Attention {
  std::int64_t batch = 1, heads = 1, queries = 0, keys = 0, width = 0, value_width = 0;
  double scale = 1, rate = 0;
  std::optional<std::int64_t> key;  // of the dropout, if there is one
  bool packed = false;
  AttentionRows q, k, v;
  std::optional<AttentionMask> mask;
  AttentionRows out;  // of `attention`: output 0. Of its gradient: an input.
  // Of `attention_grad` alone: inputs, then outputs.
  std::size_t logs = 0;
  AttentionRows flow;  // back into out
  AttentionRows dq, dk, dv;
};

// Shapes have to be known.
Attention attention_of(const NodeView& node);

}  // namespace lockstep::internal
