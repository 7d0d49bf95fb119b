// core/kernels/updates.cpp - the updates of a variable and its slots by optimizers, on plain memory.
#include "lockstep/core/kernels/updates.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "lockstep/core/kernels/internal/independent.h"

namespace lockstep::kernels {
namespace {

// --- the formulas: A is the arithmetic type; w, then the slots, are changed in place

template <class A>
struct Sgd {
  static constexpr std::size_t kSlots = 0;
  A lr;
  explicit Sgd(const UpdateRule& rule) : lr(static_cast<A>(rule.learning_rate)) {}
  void operator()(A g, A& w, A&, A&, A&) const { w -= lr * g; }
};

template <class A, bool nesterov>
struct Momentum {
  static constexpr std::size_t kSlots = 1;
  A lr, momentum;
  explicit Momentum(const UpdateRule& rule)
      : lr(static_cast<A>(rule.learning_rate)), momentum(static_cast<A>(rule.momentum)) {}
  void operator()(A g, A& w, A& m, A&, A&) const {
    m = momentum * m + g;
    w -= lr * (nesterov ? g + momentum * m : m);
  }
};

template <class A>
struct Adagrad {
  static constexpr std::size_t kSlots = 1;
  A lr, epsilon;
  explicit Adagrad(const UpdateRule& rule)
      : lr(static_cast<A>(rule.learning_rate)), epsilon(static_cast<A>(rule.epsilon)) {}
  void operator()(A g, A& w, A& a, A&, A&) const {
    a += g * g;
    w -= lr * g / (std::sqrt(a) + epsilon);
  }
};

template <class A, bool with_momentum>
struct RmsProp {
  static constexpr std::size_t kSlots = with_momentum ? 2 : 1;
  A lr, decay, rest, epsilon, momentum;
  explicit RmsProp(const UpdateRule& rule)
      : lr(static_cast<A>(rule.learning_rate)),
        decay(static_cast<A>(rule.decay)),
        rest(static_cast<A>(1 - rule.decay)),
        epsilon(static_cast<A>(rule.epsilon)),
        momentum(static_cast<A>(rule.momentum)) {}
  void operator()(A g, A& w, A& s, A& m, A&) const {
    s = decay * s + rest * (g * g);
    const A by = lr * g / std::sqrt(s + epsilon);
    if constexpr (with_momentum) {
      m = momentum * m + by;
      w -= m;
    } else {
      w -= by;
    }
  }
};

template <class A>
struct RmsPropCentered : RmsProp<A, true> {
  static constexpr std::size_t kSlots = 3;
  using RmsProp<A, true>::RmsProp;
  void operator()(A g, A& w, A& s, A& mean, A& m) const {
    s = this->decay * s + this->rest * (g * g);
    mean = this->decay * mean + this->rest * g;
    // Rounding may leave the variance below zero, which must not become a NaN.
    const A variance = std::max(s - mean * mean, A{0});
    m = this->momentum * m + this->lr * g / std::sqrt(variance + this->epsilon);
    w -= m;
  }
};

template <class A, bool decoupled>
struct Adam {
  static constexpr std::size_t kSlots = 2;
  A beta1, rest1, beta2, rest2, epsilon;
  A rate;   // lr / (1 - beta1^t)
  A scale;  // 1 / sqrt(1 - beta2^t)
  A keep;   // 1 - lr * weight_decay
  explicit Adam(const UpdateRule& rule)
      : beta1(static_cast<A>(rule.beta1)),
        rest1(static_cast<A>(1 - rule.beta1)),
        beta2(static_cast<A>(rule.beta2)),
        rest2(static_cast<A>(1 - rule.beta2)),
        epsilon(static_cast<A>(rule.epsilon)) {
    const auto t = static_cast<double>(std::max<std::int64_t>(rule.step, 1));
    rate = static_cast<A>(rule.learning_rate / (1 - std::pow(rule.beta1, t)));
    scale = static_cast<A>(1 / std::sqrt(1 - std::pow(rule.beta2, t)));
    keep = static_cast<A>(1 - rule.learning_rate * rule.weight_decay);
  }
  void operator()(A g, A& w, A& m, A& v, A&) const {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * (g * g);
    if constexpr (decoupled) w *= keep;
    w -= rate * m / (std::sqrt(v) * scale + epsilon);
  }
};

// Calls f with the formula of the rule.
template <class A, class F>
void with_formula(const UpdateRule& rule, F&& f) {
  switch (rule.kind) {
    case UpdateKind::kSgd: return f(Sgd<A>(rule));
    case UpdateKind::kMomentum:
      return rule.nesterov ? f(Momentum<A, true>(rule)) : f(Momentum<A, false>(rule));
    case UpdateKind::kAdagrad: return f(Adagrad<A>(rule));
    case UpdateKind::kRmsProp: return f(RmsProp<A, false>(rule));
    case UpdateKind::kRmsPropMomentum: return f(RmsProp<A, true>(rule));
    case UpdateKind::kRmsPropCentered: return f(RmsPropCentered<A>(rule));
    case UpdateKind::kAdam: return f(Adam<A, false>(rule));
    case UpdateKind::kAdamW: return f(Adam<A, true>(rule));
  }
}

template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls f with an element of the variable's type; only floating dtypes get here.
template <class F>
void with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF16: return f(F16{});
    case DType::kBF16: return f(BF16{});
    case DType::kF64: return f(double{});
    default: return f(float{});
  }
}

// --- loops

template <class T>
struct Pointers {
  using A = Arithmetic<T>;
  const T* w_in;
  const A* in[kMaxSlots];
  T* w_out;
  A* out[kMaxSlots];

  explicit Pointers(const UpdateArgs& args)
      : w_in(static_cast<const T*>(args.variable)), w_out(static_cast<T*>(args.new_variable)) {
    for (std::size_t i = 0; i < kMaxSlots; ++i) {
      in[i] = static_cast<const A*>(args.slots[i]);
      out[i] = static_cast<A*>(args.new_slots[i]);
    }
  }
};

// Elements [begin, begin + count), for which the gradient G (of the variable's type, or a sum in the
// arithmetic type) begins at g.
template <class Formula, class T, class G>
void run(const Formula& formula, const Pointers<T>& at, const G* g, std::int64_t begin, std::int64_t count) {
  using A = Arithmetic<T>;
  constexpr std::size_t kSlots = Formula::kSlots;
  const Formula f = formula;
  const T* w_in = at.w_in + begin;
  T* w_out = at.w_out + begin;
  const A* in0 = kSlots > 0 ? at.in[0] + begin : nullptr;
  const A* in1 = kSlots > 1 ? at.in[1] + begin : nullptr;
  const A* in2 = kSlots > 2 ? at.in[2] + begin : nullptr;
  A* out0 = kSlots > 0 ? at.out[0] + begin : nullptr;
  A* out1 = kSlots > 1 ? at.out[1] + begin : nullptr;
  A* out2 = kSlots > 2 ? at.out[2] + begin : nullptr;
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) {
    A w = static_cast<A>(w_in[i]);
    A s0{}, s1{}, s2{};
    if constexpr (kSlots > 0) s0 = in0[i];
    if constexpr (kSlots > 1) s1 = in1[i];
    if constexpr (kSlots > 2) s2 = in2[i];
    f(static_cast<A>(g[i]), w, s0, s1, s2);
    w_out[i] = static_cast<T>(w);
    if constexpr (kSlots > 0) out0[i] = s0;
    if constexpr (kSlots > 1) out1[i] = s1;
    if constexpr (kSlots > 2) out2[i] = s2;
  }
}

// Which rows a shard of a sparse update owns: blocks of rows, in turn, so that frequent rows spread over the
// shards while no two shards write one cache line.
class Ownership {
 public:
  Ownership(std::int64_t columns, std::int64_t shard, std::int64_t shards)
      : block_(std::max<std::int64_t>(1, 256 / std::max<std::int64_t>(columns, 1))),
        shard_(shard),
        shards_(shards) {}
  std::int64_t owner(std::int64_t row) const { return row / block_ % shards_; }

  // Copies the old rows to the new ones, if these lie elsewhere.
  template <class T>
  void copy(const T* from, T* to, std::int64_t rows, std::int64_t columns) const {
    if (from == to || columns == 0) return;
    for (std::int64_t row = shard_ * block_; row < rows; row += shards_ * block_) {
      const std::int64_t count = std::min(block_, rows - row) * columns;
      std::memcpy(to + row * columns, from + row * columns, static_cast<std::size_t>(count) * sizeof(T));
    }
  }

 private:
  std::int64_t block_, shard_, shards_;
};

// The positions of the indices that the shard owns, sorted by row and then by position, in its part of
// `order`.
struct Owned {
  std::int64_t* begin;
  std::int64_t* end;
};
Owned sort_owned(const SparseRows& rows, const Ownership& ownership, std::int64_t shard,
                 std::int64_t* order) {
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.indices[i];
    if (row >= 0 && row < rows.rows && ownership.owner(row) < shard) ++before;
  }
  Owned owned{order + before, order + before};
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.indices[i];
    if (row >= 0 && row < rows.rows && ownership.owner(row) == shard) *owned.end++ = i;
  }
  std::sort(owned.begin, owned.end, [&](std::int64_t a, std::int64_t b) {
    return rows.indices[a] != rows.indices[b] ? rows.indices[a] < rows.indices[b] : a < b;
  });
  return owned;
}

constexpr std::int64_t kTile = 256;  // columns summed at a time

template <class Formula, class T>
void run_row(const Formula& formula, const Pointers<T>& at, const SparseRows& rows, const T* gradient,
             std::int64_t row, const Owned& same) {
  using A = Arithmetic<T>;
  const std::int64_t columns = rows.columns;
  if (same.end - same.begin == 1) {
    run(formula, at, gradient + *same.begin * columns, row * columns, columns);
    return;
  }
  A total[kTile];
  for (std::int64_t begin = 0; begin < columns; begin += kTile) {
    const std::int64_t count = std::min(kTile, columns - begin);
    std::fill_n(total, count, A{0});
    for (const std::int64_t* position = same.begin; position != same.end; ++position) {
      const T* g = gradient + *position * columns + begin;
      for (std::int64_t i = 0; i < count; ++i) total[i] += static_cast<A>(g[i]);
    }
    run(formula, at, static_cast<const A*>(total), row * columns + begin, count);
  }
}

}  // namespace

std::size_t num_slots(UpdateKind kind) {
  UpdateRule rule;
  rule.kind = kind;
  std::size_t slots = 0;
  with_formula<float>(rule, [&](const auto& formula) { slots = std::decay_t<decltype(formula)>::kSlots; });
  return slots;
}

void update(const UpdateRule& rule, DType dtype, const UpdateArgs& args, std::int64_t begin,
            std::int64_t end) {
  with_dtype(dtype, [&]<class T>(T) {
    const Pointers<T> at(args);
    const T* gradient = static_cast<const T*>(args.gradient) + begin;
    with_formula<Arithmetic<T>>(rule,
                                [&](const auto& formula) { run(formula, at, gradient, begin, end - begin); });
  });
}

void update(const UpdateRule& rule, DType dtype, const std::function<bool(UpdatePart&)>& next) {
  with_dtype(dtype, [&]<class T>(T) {
    with_formula<Arithmetic<T>>(rule, [&](const auto& formula) {
      UpdatePart part;
      while (next(part)) {
        const T* gradient = static_cast<const T*>(part.args.gradient) + part.begin;
        run(formula, Pointers<T>(part.args), gradient, part.begin, part.end - part.begin);
      }
    });
  });
}

void update_rows(const UpdateRule& rule, DType dtype, const SparseRows& rows, const UpdateArgs& args,
                 std::int64_t shard, std::int64_t shards, std::int64_t* order) {
  const Ownership ownership(rows.columns, shard, shards);
  const Owned owned = sort_owned(rows, ownership, shard, order);
  with_dtype(dtype, [&]<class T>(T) {
    Pointers<T> at(args);
    ownership.copy(at.w_in, at.w_out, rows.rows, rows.columns);
    at.w_in = at.w_out;
    for (std::size_t i = 0; i < num_slots(rule.kind); ++i) {
      ownership.copy(at.in[i], at.out[i], rows.rows, rows.columns);
      at.in[i] = at.out[i];
    }
    with_formula<Arithmetic<T>>(rule, [&](const auto& formula) {
      for (std::int64_t* first = owned.begin; first != owned.end;) {
        const std::int64_t row = rows.indices[*first];
        std::int64_t* last = first;
        while (last != owned.end && rows.indices[*last] == row) ++last;
        run_row(formula, at, rows, static_cast<const T*>(args.gradient), row, {first, last});
        first = last;
      }
    });
  });
}

}  // namespace lockstep::kernels
