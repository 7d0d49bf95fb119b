// core/kernels/reduce.cpp - reductions over axes, on plain memory, in an order that only the shape decides.
#include "lockstep/core/kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/internal/reduce_geometry.h"
#include "lockstep/core/kernels/simd/internal/lanes.h"
#include "lockstep/core/kernels/simd/internal/span_math.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kBlock = 1024;         // elements of a row per block
constexpr std::int64_t kSmallBlock = 64;      // elements one after another per block
constexpr std::int64_t kChunk = 512;          // output elements side by side
constexpr std::int64_t kGrain = 64 << 10;     // input elements a shard; about 20 us
constexpr std::int64_t kExpGrain = 16 << 10;  // the same if each needs an exponential
constexpr std::int64_t kMinWidth = 64;        // columns that a shard has at least

// The type in which T is added and multiplied: unsigned for integers, which wrap around on overflow.
template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, std::uint64_t, Wide<T>>;

template <class S, class T>
S widen(T value) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, S>) {
    return static_cast<S>(static_cast<std::int64_t>(value));
  } else {
    return static_cast<S>(value);
  }
}

template <class T, class S>
T narrow(S value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(value);
  }
}

// A range of outputs, and the part of each output's elements to reduce.
struct Cut {
  std::int64_t out_begin, out_end;
  std::int64_t row_begin, row_end;
  std::int64_t inner_begin, inner_end;  // if the inner axis is reduced
  std::int64_t elements() const { return (row_end - row_begin) * (inner_end - inner_begin); }
};

// --- the value read for an element: itself, or a function of it and of a number that belongs to the output
template <class T, class S>
struct Itself {
  static constexpr bool kDirect = std::is_same_v<T, S>;
  template <class From>
  static const S* block(const T* in, std::int64_t count, S* buffer, From) {
    if constexpr (std::is_integral_v<T>) {
      for (std::int64_t i = 0; i < count; ++i) buffer[i] = widen<S>(in[i]);
      return buffer;
    } else {
      return wide_span(in, buffer, count);
    }
  }
};

// in - from; `from` is one number, or one per element.
template <class T, class S>
void subtract(const T* in, std::int64_t count, S* to, S from) {
  const S* values = wide_span(in, to, count);
  map_span(values, values, to, count, [from](auto x, auto) { return x - from; });
}
template <class T, class S>
void subtract(const T* in, std::int64_t count, S* to, const S* from) {
  map_span(wide_span(in, to, count), from, to, count, [](auto x, auto y) { return x - y; });
}

template <class T, class S>
struct ExpOfDistance {
  static constexpr bool kDirect = false;
  template <class From>
  static const S* block(const T* in, std::int64_t count, S* buffer, From from) {
    subtract(in, count, buffer, from);
    exp_span(buffer, buffer, count);
    return buffer;
  }
};
template <class T, class S>
struct SquareOfDistance {
  static constexpr bool kDirect = false;
  template <class From>
  static const S* block(const T* in, std::int64_t count, S* buffer, From from) {
    subtract(in, count, buffer, from);
    map_span(buffer, buffer, buffer, count, [](auto a, auto b) { return a * b; });
    return buffer;
  }
};

// --- at most kChunk outputs from `at` on, from one part
template <class Op, class Load, class T, class S>
S reduce_row(const T* in, std::int64_t count, S* buffer, S from) {
  S total = Op::template identity<S>();
  for (std::int64_t i = 0; i < count; i += kBlock) {
    const std::int64_t n = std::min(kBlock, count - i);
    if constexpr (Load::kDirect) {
      total = Op::apply(total, reduce_span<Op>(in + i, n));
    } else {
      total = Op::apply(total, reduce_span<Op>(Load::block(in + i, n, buffer, from), n));
    }
  }
  return total;
}

template <class Op, class Load, class T, class S>
void reduce_last_axis(const T* in, const ReduceGeometry& geometry, const Cut& cut, std::int64_t at,
                      std::int64_t width, const S* from, S* result) {
  S buffer[kBlock];
  Walker kept(geometry.kept, at);
  for (std::int64_t i = 0; i < width; ++i, kept.advance(1)) {
    const T* base = in + kept.offset() + cut.inner_begin;
    S total = Op::template identity<S>(), block = total;
    Walker rows(geometry.reduced, cut.row_begin);
    for (std::int64_t r = cut.row_begin; r < cut.row_end; ++r, rows.advance(1)) {
      if (r > cut.row_begin && (r - cut.row_begin) % kSmallBlock == 0) {
        total = Op::apply(total, block);
        block = Op::template identity<S>();
      }
      block = Op::apply(block, reduce_row<Op, Load>(base + rows.offset(), cut.inner_end - cut.inner_begin,
                                                    buffer, from == nullptr ? S{} : from[i]));
    }
    result[i] = Op::apply(total, block);
  }
}

// `width` outputs that lie side by side.
template <class Op, class Load, class T, class S>
void reduce_outer_axes(const T* in, const ReduceGeometry& geometry, const Cut& cut, std::int64_t at,
                       std::int64_t width, const S* from, S* result) {
  S block[kChunk], buffer[kChunk];
  const Walker kept(geometry.kept, at / geometry.inner);
  const T* base = in + kept.offset() + at % geometry.inner;
  std::fill_n(result, width, Op::template identity<S>());
  Walker rows(geometry.reduced, cut.row_begin);
  for (std::int64_t r = cut.row_begin; r < cut.row_end;) {
    std::fill_n(block, width, Op::template identity<S>());
    const std::int64_t end = std::min(cut.row_end, r + kSmallBlock);
    while (r < end) {
      const std::int64_t run = std::min(rows.run(), end - r);
      const T* row = base + rows.offset();
      if constexpr (Load::kDirect) {
        fold_rows<Op>(block, row, rows.stride(), run, width);
      } else {
        for (std::int64_t i = 0; i < run; ++i) {
          fold_span<Op>(block, Load::block(row + i * rows.stride(), width, buffer, from), width);
        }
      }
      rows.advance(run);
      r += run;
    }
    fold_span<Op>(result, block, width);
  }
}

template <class Op, class Load, class T, class S>
void reduce_chunk(const T* in, const ReduceGeometry& geometry, const Cut& cut, std::int64_t at,
                  std::int64_t width, const S* from, S* result) {
  if (geometry.inner_reduced) {
    reduce_last_axis<Op, Load>(in, geometry, cut, at, width, from, result);
  } else {
    reduce_outer_axes<Op, Load>(in, geometry, cut, at, width, from, result);
  }
}

// --- the operations: what a part keeps for an output (one or two numbers), how parts are joined, and the
// result
template <class Op, class T, class S>
struct Plain {
  using Element = T;
  using State = S;
  static constexpr std::int64_t kStates = 1;
  std::int64_t count = 1;  // elements per output; if not 1, the result is divided by it

  static void part(const T* in, const ReduceGeometry& geometry, const Cut& cut, std::int64_t at,
                   std::int64_t width, S* first, S*) {
    reduce_chunk<Op, Itself<T, S>>(in, geometry, cut, at, width, static_cast<const S*>(nullptr), first);
  }
  // The parts of one output, which lie `stride` apart.
  template <class SizeOf>
  static void join(const S* parts, std::int64_t stride, std::int64_t, const SizeOf&, std::int64_t number,
                   S& first, S&) {
    S total = Op::template identity<S>(), block = total;
    for (std::int64_t i = 0; i < number; ++i) {
      if (i > 0 && i % kSmallBlock == 0) {
        total = Op::apply(total, block);
        block = Op::template identity<S>();
      }
      block = Op::apply(block, parts[i * stride]);
    }
    first = Op::apply(total, block);
  }
  void give(S first, S, T* out, T*) const {
    if constexpr (std::is_floating_point_v<S>) {
      *out = narrow<T>(count == 1 ? first : first / static_cast<S>(count));
    } else {
      *out = narrow<T>(first);
    }
  }
};

// An output is log(second) + first.
template <class T, class S>
struct LogSumExp {
  using Element = T;
  using State = S;
  static constexpr std::int64_t kStates = 2;

  static void part(const T* in, const ReduceGeometry& geometry, const Cut& cut, std::int64_t at,
                   std::int64_t width, S* first, S* second) {
    reduce_chunk<MaxOp, Itself<T, S>>(in, geometry, cut, at, width, static_cast<const S*>(nullptr), first);
    // If the largest is not finite, the exponentials themselves give the result: inf, NaN or 0.
    for (std::int64_t i = 0; i < width; ++i) first[i] = std::isfinite(first[i]) ? first[i] : S{0};
    reduce_chunk<AddOp, ExpOfDistance<T, S>>(in, geometry, cut, at, width, first, second);
  }
  template <class SizeOf>
  static void join(const S* parts, std::int64_t stride, std::int64_t to_second, const SizeOf&,
                   std::int64_t number, S& first, S& second) {
    first = parts[0];
    second = parts[to_second];
    for (std::int64_t i = 1; i < number; ++i) {
      const S shift = parts[i * stride], sum = parts[i * stride + to_second];
      if (sum == 0) continue;
      if (second == 0) {
        first = shift;
        second = sum;
      } else if (!std::isfinite(second) || !std::isfinite(sum)) {
        second += sum;
      } else {
        const S larger = std::max(first, shift);
        second = second * std::exp(first - larger) + sum * std::exp(shift - larger);
        first = larger;
      }
    }
  }
  static void give(S first, S second, T* out, T*) { *out = narrow<T>(std::log(second) + first); }
};

// The mean, and the sum of the squared distances from it.
template <class T, class S>
struct Moments {
  using Element = T;
  using State = S;
  static constexpr std::int64_t kStates = 2;
  std::int64_t count = 1;

  static void part(const T* in, const ReduceGeometry& geometry, const Cut& cut, std::int64_t at,
                   std::int64_t width, S* first, S* second) {
    reduce_chunk<AddOp, Itself<T, S>>(in, geometry, cut, at, width, static_cast<const S*>(nullptr), first);
    for (std::int64_t i = 0; i < width; ++i) first[i] /= static_cast<S>(cut.elements());
    reduce_chunk<AddOp, SquareOfDistance<T, S>>(in, geometry, cut, at, width, first, second);
  }
  template <class SizeOf>
  static void join(const S* parts, std::int64_t stride, std::int64_t to_second, const SizeOf& size_of,
                   std::int64_t number, S& first, S& second) {
    first = parts[0];
    second = parts[to_second];
    auto size = static_cast<S>(size_of(0));
    for (std::int64_t i = 1; i < number; ++i) {
      const auto more = static_cast<S>(size_of(i));
      const S distance = parts[i * stride] - first;
      const S share = more / (size + more);
      first += distance * share;
      second += parts[i * stride + to_second] + distance * distance * size * share;
      size += more;
    }
  }
  void give(S first, S second, T* out, T* other) const {
    *out = narrow<T>(first);
    *other = narrow<T>(second / static_cast<S>(count));
  }
};

// Calls f with the operation.
template <class F>
void visit_reduction(AxisReduce op, DType dtype, std::int64_t count, F&& f) {
  if (op == AxisReduce::kAny || op == AxisReduce::kAll) {
    static_assert(sizeof(bool) == 1);
    op == AxisReduce::kAny ? f(Plain<MaxOp, std::uint8_t, std::uint8_t>{})
                           : f(Plain<AllOp, std::uint8_t, std::uint8_t>{});
    return;
  }
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      if (op == AxisReduce::kSum) return f(Plain<AddOp, T, Sum<T>>{});
      if (op == AxisReduce::kProd) return f(Plain<MulOp, T, Sum<T>>{});
      if (op == AxisReduce::kMax) return f(Plain<MaxOp, T, Wide<T>>{});
      if (op == AxisReduce::kMin) return f(Plain<MinOp, T, Wide<T>>{});
      if constexpr (!std::is_integral_v<T>) {
        if (op == AxisReduce::kMean) return f(Plain<AddOp, T, Wide<T>>{count});
        if (op == AxisReduce::kLogSumExp) return f(LogSumExp<T, Wide<T>>{});
        if (op == AxisReduce::kMoments) return f(Moments<T, Wide<T>>{count});
      }
    }
  });
}

const char* name_of(AxisReduce op) {
  switch (op) {
    case AxisReduce::kSum: return "sum";
    case AxisReduce::kMean: return "mean";
    case AxisReduce::kProd: return "prod";
    case AxisReduce::kMax: return "max";
    case AxisReduce::kMin: return "min";
    case AxisReduce::kAny: return "any";
    case AxisReduce::kAll: return "all";
    case AxisReduce::kLogSumExp: return "logsumexp";
    case AxisReduce::kMoments: return "moments";
  }
  return "reduction";
}

void check_dtype(AxisReduce op, DType dtype) {
  const bool logical = op == AxisReduce::kAny || op == AxisReduce::kAll;
  const bool floating = op == AxisReduce::kMean || op == AxisReduce::kLogSumExp || op == AxisReduce::kMoments;
  if (logical != (dtype == DType::kBool) || (floating && !is_floating(dtype))) {
    throw InvalidArgument(str(name_of(op), ": takes ",
                              logical    ? "bool"
                              : floating ? "floating"
                                         : "numeric",
                              " tensors, got ", dtype, ": convert (cast) first"));
  }
}

std::int64_t outputs_of(const Shape& shape, std::span<const std::int64_t> axes) {
  std::int64_t elements = 1;
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    if (!std::ranges::binary_search(axes, static_cast<std::int64_t>(axis))) elements *= shape[axis];
  }
  return elements;
}

// Outputs [begin, end) from the elements of `cut`: finished, or as parts.
template <class R>
void run_cut(const R& reduction, const void* in, const ReduceGeometry& geometry, const Cut& cut, void* out,
             void* second, typename R::State* parts, std::int64_t outputs) {
  using S = typename R::State;
  using T = typename R::Element;
  S first_states[kChunk], second_states[kChunk];
  for (std::int64_t at = cut.out_begin; at < cut.out_end;) {
    std::int64_t width = std::min(kChunk, cut.out_end - at);
    if (!geometry.inner_reduced) width = std::min(width, geometry.inner - at % geometry.inner);
    S* first = parts == nullptr ? first_states : parts + at;
    S* other = parts == nullptr ? second_states : parts + outputs + at;
    R::part(static_cast<const T*>(in), geometry, cut, at, width, first, other);
    if (parts == nullptr) {
      for (std::int64_t i = 0; i < width; ++i) {
        reduction.give(first[i], R::kStates == 2 ? other[i] : S{}, static_cast<T*>(out) + at + i,
                       second == nullptr ? nullptr : static_cast<T*>(second) + at + i);
      }
    }
    at += width;
  }
}

// The elements that part `part` of `parts` covers.
Cut cut_of(const ReduceGeometry& geometry, std::int64_t part, std::int64_t parts) {
  Cut cut{0, 0, 0, geometry.rows, 0, geometry.inner_reduced ? geometry.inner : 1};
  if (parts == 1) return cut;
  if (geometry.rows >= parts) {
    cut.row_begin = geometry.rows * part / parts;
    cut.row_end = geometry.rows * (part + 1) / parts;
  } else {
    const std::int64_t blocks = (geometry.inner + kBlock - 1) / kBlock;
    cut.inner_begin = blocks * part / parts * kBlock;
    cut.inner_end = std::min(geometry.inner, blocks * (part + 1) / parts * kBlock);
  }
  return cut;
}

}  // namespace

void check_axes(const char* what, const Shape& shape, std::span<const std::int64_t> axes) {
  const auto rank = static_cast<std::int64_t>(shape.rank());
  std::int64_t before = -1;
  for (const std::int64_t axis : axes) {
    if (axis <= before || axis >= rank) {
      throw InvalidArgument(
          str(what, ": axis ", axis, " of ", shape, ": axes must be sorted, unique and in [0, ", rank, ")"));
    }
    before = axis;
  }
}

Reduction::Reduction(AxisReduce op, DType dtype, const Shape& shape, std::span<const std::int64_t> axes)
    : op_(op), dtype_(dtype) {
  check_dtype(op, dtype);
  check_axes(name_of(op), shape, axes);
  outputs_ = outputs_of(shape, axes);
  auto geometry = std::make_shared<ReduceGeometry>(make_geometry(shape, axes));
  const std::int64_t elements = geometry->elements;
  if (elements == 0 && outputs_ > 0 && (op == AxisReduce::kMax || op == AxisReduce::kMin)) {
    throw InvalidArgument(str(name_of(op), ": the reduced axes of ", shape,
                              " hold no elements, and nothing has no ", name_of(op)));
  }
  const std::int64_t grain = op == AxisReduce::kLogSumExp ? kExpGrain : kGrain;
  const std::int64_t wanted = (elements + grain - 1) / grain;
  if (wanted > 1) {
    const std::int64_t most = geometry->inner_reduced ? outputs_ : outputs_ / kMinWidth;
    out_shards_ = std::clamp<std::int64_t>(most, 1, wanted);
    parts_ = wanted / out_shards_;
    const std::int64_t blocks = (geometry->inner + kBlock - 1) / kBlock;
    if (geometry->rows < parts_) {
      parts_ = geometry->inner_reduced ? std::min(parts_, std::max(blocks, geometry->rows)) : geometry->rows;
    }
  }
  geometry_ = std::move(geometry);
}

std::size_t Reduction::scratch_bytes() const {
  return parts_ == 1 ? 0 : static_cast<std::size_t>(parts_ * outputs_ * 2) * sizeof(std::uint64_t);
}

void Reduction::run(const void* in, void* out, void* scratch, std::int64_t shard, void* second) const {
  LOCKSTEP_CHECK(0 <= shard && shard < shards(), name_of(op_), ": shard ", shard, " of ", shards());
  const std::int64_t part = shard / out_shards_, place = shard % out_shards_;
  const std::int64_t begin = outputs_ * place / out_shards_, end = outputs_ * (place + 1) / out_shards_;
  const std::int64_t count = outputs_ == 0 ? 1 : geometry_->elements / outputs_;
  visit_reduction(op_, dtype_, count, [&]<class R>(const R& reduction) {
    using S = typename R::State;
    if (geometry_->elements == 0) {  // an extent of zero: the geometry has no meaning
      for (std::int64_t i = begin; i < end; ++i) {
        using T = typename R::Element;
        S first{}, other{};
        if constexpr (R::kStates == 1) R::join(nullptr, 0, 0, 0, 0, first, other);
        if constexpr (std::is_same_v<R, Moments<T, S>>) first = std::numeric_limits<S>::quiet_NaN();
        if (op_ == AxisReduce::kMean) first = std::numeric_limits<S>::quiet_NaN();
        reduction.give(first, other, static_cast<T*>(out) + i,
                       second == nullptr ? nullptr : static_cast<T*>(second) + i);
      }
      return;
    }
    Cut cut = cut_of(*geometry_, part, parts_);
    cut.out_begin = begin;
    cut.out_end = end;
    S* parts = parts_ == 1 ? nullptr : static_cast<S*>(scratch) + part * outputs_ * R::kStates;
    run_cut(reduction, in, *geometry_, cut, out, second, parts, outputs_);
  });
}

void Reduction::finish(const void* scratch, void* out, void* second) const {
  const auto size_of = [this](std::int64_t part) { return cut_of(*geometry_, part, parts_).elements(); };
  visit_reduction(op_, dtype_, geometry_->elements / outputs_, [&]<class R>(const R& reduction) {
    using S = typename R::State;
    using T = typename R::Element;
    const S* parts = static_cast<const S*>(scratch);
    for (std::int64_t i = 0; i < outputs_; ++i) {
      S first{}, other{};
      R::join(parts + i, outputs_ * R::kStates, outputs_, size_of, parts_, first, other);
      reduction.give(first, other, static_cast<T*>(out) + i,
                     second == nullptr ? nullptr : static_cast<T*>(second) + i);
    }
  });
}

void Reduction::run_all(const void* in, void* out, void* second) const {
  std::vector<std::uint64_t> scratch(scratch_bytes() / sizeof(std::uint64_t));
  for (std::int64_t i = 0; i < shards(); ++i) run(in, out, scratch.data(), i, second);
  if (has_finish()) finish(scratch.data(), out, second);
}

void sum(DType dtype, const void* in, const Shape& in_shape, std::span<const std::int64_t> axes, void* out,
         std::int64_t out_begin, std::int64_t out_end) {
  check_dtype(AxisReduce::kSum, dtype);
  check_axes("sum", in_shape, axes);
  const std::int64_t elements = outputs_of(in_shape, axes);
  LOCKSTEP_CHECK(0 <= out_begin && out_begin <= out_end && out_end <= elements, "sum: range [", out_begin,
                 ", ", out_end, ") of ", elements, " elements");
  if (out_begin == out_end) return;
  const ReduceGeometry geometry = make_geometry(in_shape, axes);
  visit_reduction(AxisReduce::kSum, dtype, 1, [&]<class R>(const R& reduction) {
    using T = typename R::Element;
    if (geometry.elements == 0) {
      std::fill(static_cast<T*>(out) + out_begin, static_cast<T*>(out) + out_end, T{});
      return;
    }
    Cut cut = cut_of(geometry, 0, 1);
    cut.out_begin = out_begin;
    cut.out_end = out_end;
    run_cut(reduction, in, geometry, cut, out, nullptr, static_cast<typename R::State*>(nullptr), 0);
  });
}

}  // namespace lockstep::kernels
