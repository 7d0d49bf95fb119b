// core/kernels/updates.h - the updates of a variable and its slots by optimizers, on plain memory.
//
// w is the variable, g its gradient, lr the learning rate; the slots of each kind stand in the order in which
// they are passed. Every formula is applied element by element:
//
//   kSgd              w -= lr * g
//   kMomentum         m = momentum * m + g;  w -= lr * m
//     nesterov        m = momentum * m + g;  w -= lr * (g + momentum * m)
//   kAdagrad          a += g^2;  w -= lr * g / (sqrt(a) + epsilon)
//   kRmsProp          s = decay * s + (1 - decay) * g^2;  w -= lr * g / sqrt(s + epsilon)
//   kRmsPropMomentum  s as above;  m = momentum * m + lr * g / sqrt(s + epsilon);  w -= m
//   kRmsPropCentered  s as above;  m' = decay * m' + (1 - decay) * g;
//                     m = momentum * m + lr * g / sqrt(s - m'^2 + epsilon);  w -= m           slots s, m', m
//   kAdam             m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2;
//                     w -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)     slots m, v
//   kAdamW            w -= lr * weight_decay * w first, then kAdam
//
// Variables and gradients are f16, bf16, f32 or f64; slots have slot_dtype(). With the 16-bit dtypes, slots
// and arithmetic are f32 and the variable is rounded once: their own precision would swallow a decay close to
// one. Nothing here throws or allocates.
//
// Thread safety: any thread, any number at once, on ranges or shards of one update.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"

namespace lockstep::kernels {

enum class UpdateKind : std::uint8_t {
  kSgd,
  kMomentum,
  kAdagrad,
  kRmsProp,
  kRmsPropMomentum,
  kRmsPropCentered,
  kAdam,
  kAdamW
};

// The parameters of the formulas above; those that are not in the formula of a kind are not read.
struct UpdateRule {
  UpdateKind kind = UpdateKind::kSgd;
  double learning_rate = 0;
  double momentum = 0;
  double decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  bool nesterov = false;
  std::int64_t step = 1;  // t, counted from 1; less counts as 1
};

inline constexpr std::size_t kMaxSlots = 3;
LOCKSTEP_API std::size_t num_slots(UpdateKind kind);
constexpr DType slot_dtype(DType variable) { return variable == DType::kF64 ? DType::kF64 : DType::kF32; }

// Where the tensors of one update lie. A new value may lie where its old value does; for update() also where
// the gradient does.
struct UpdateArgs {
  const void* variable = nullptr;
  const void* slots[kMaxSlots] = {};
  const void* gradient = nullptr;
  void* new_variable = nullptr;
  void* new_slots[kMaxSlots] = {};
};

// The elements [begin, end).
LOCKSTEP_API void update(const UpdateRule& rule, DType dtype, const UpdateArgs& args, std::int64_t begin,
                         std::int64_t end);

// A part of one of many updates by one rule.
struct UpdatePart {
  UpdateArgs args;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
// All parts that `next` gives until it returns false: what follows from the rule alone is computed once for them. (A
// std::ref of a lambda keeps the std::function from allocating.)
LOCKSTEP_API void update(const UpdateRule& rule, DType dtype, const std::function<bool(UpdatePart&)>& next);

// Some rows of a variable of shape [rows, columns]: row i of the gradient, of `count` rows, belongs to row
// indices[i]. Rows named several times are summed first, in the order of i and in the arithmetic type, and
// updated once; rows that are not named keep their value and their slots. An index outside of [0, rows) is
// skipped.
struct SparseRows {
  const std::int64_t* indices = nullptr;
  std::int64_t count = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};
// One of `shards` parts, which own disjoint sets of the variable's rows: the result does not depend on their
// number. All parts share `order`, room for `count` numbers.
LOCKSTEP_API void update_rows(const UpdateRule& rule, DType dtype, const SparseRows& rows,
                              const UpdateArgs& args, std::int64_t shard, std::int64_t shards,
                              std::int64_t* order);

}  // namespace lockstep::kernels
