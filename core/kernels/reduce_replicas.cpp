// core/kernels/reduce_replicas.cpp - N arrays of one shape reduced into one, element by element, in one pass
// over memory.
#include "lockstep/core/kernels/reduce_replicas.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "lockstep/core/kernels/simd/internal/lanes.h"
#include "lockstep/core/kernels/simd/internal/vector_table.h"

namespace lockstep {

std::string_view to_string(ReplicaReduce op) {
  switch (op) {
    case ReplicaReduce::kSum: return "sum";
    case ReplicaReduce::kMean: return "mean";
    case ReplicaReduce::kMin: return "min";
    case ReplicaReduce::kMax: return "max";
    case ReplicaReduce::kProd: return "prod";
  }
  return "unknown";
}

Decision can_reduce(ReplicaReduce op, DType dtype) {
  if (dtype == DType::kBool)
    return Decision::no(str("cannot ", to_string(op), " bool over replicas; cast to u8 first"));
  if (op == ReplicaReduce::kMean && !is_floating(dtype)) {
    return Decision::no(str("cannot take the mean of ", dtype,
                            " over replicas: a mean needs a floating dtype; cast first, or take the sum"));
  }
  return Decision::yes();
}

namespace kernels {
namespace {

using Inputs = std::span<const void* const>;
using Outputs = std::span<void* const>;

// Integers wrap around, so they are added and multiplied unsigned. A cache line of each array at a time, in
// registers.
template <class Op, class S>
void reduce_integers(Inputs inputs, Outputs outputs, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kWidth = VectorOf<S>::kWidth;
  constexpr std::size_t kVectors = 4;
  constexpr std::int64_t kLine = kWidth * static_cast<std::int64_t>(kVectors);
  const auto input = [inputs](std::size_t i) { return static_cast<const S*>(inputs[i]); };
  const auto place = [](auto k) { return static_cast<std::int64_t>(k()) * kWidth; };
  std::int64_t at = begin;
  for (; at + kLine <= end; at += kLine) {
    std::array<Vector<S>, kVectors> line;
    const S* first = input(0) + at;
    unrolled<kVectors>([&](auto k) { line[k] = load_vector(first + place(k)); });
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      const S* next = input(i) + at;
      unrolled<kVectors>([&](auto k) { line[k] = Op::apply(line[k], load_vector(next + place(k))); });
    }
    for (void* output : outputs) {
      S* to = static_cast<S*>(output) + at;
      unrolled<kVectors>([&](auto k) { store_vector(to + place(k), line[k]); });
    }
  }
  // The rest in a copy, padded to a vector.
  for (; at < end; at += kWidth) {
    const std::size_t bytes = static_cast<std::size_t>(std::min(kWidth, end - at)) * sizeof(S);
    Vector<S> result{}, next{};
    std::memcpy(&result, input(0) + at, bytes);
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      std::memcpy(&next, input(i) + at, bytes);
      result = Op::apply(result, next);
    }
    for (void* output : outputs) std::memcpy(static_cast<S*>(output) + at, &result, bytes);
  }
}

template <class T>
void reduce_integers(ReplicaReduce op, Inputs inputs, Outputs outputs, std::int64_t begin, std::int64_t end) {
  using Wrapping = std::make_unsigned_t<T>;
  switch (op) {
    case ReplicaReduce::kSum: return reduce_integers<AddOp, Wrapping>(inputs, outputs, begin, end);
    case ReplicaReduce::kProd: return reduce_integers<MulOp, Wrapping>(inputs, outputs, begin, end);
    case ReplicaReduce::kMin: return reduce_integers<MinOp, T>(inputs, outputs, begin, end);
    case ReplicaReduce::kMax: return reduce_integers<MaxOp, T>(inputs, outputs, begin, end);
    case ReplicaReduce::kMean: return;  // refused before
  }
}

void copy_one(DType dtype, const void* input, Outputs outputs, std::int64_t begin, std::int64_t end) {
  const std::size_t size = size_of(dtype);
  const auto offset = static_cast<std::size_t>(begin) * size;
  const auto bytes = static_cast<std::size_t>(end - begin) * size;
  for (void* output : outputs) {
    if (output == input) continue;
    std::memcpy(static_cast<std::byte*>(output) + offset, static_cast<const std::byte*>(input) + offset,
                bytes);
  }
}

}  // namespace

void reduce_replicas(ReplicaReduce op, DType dtype, Inputs inputs, Outputs outputs, std::int64_t begin,
                     std::int64_t end) {
  if (const Decision can = can_reduce(op, dtype); !can)
    throw InvalidArgument(str("reduce_replicas: ", can.reason()));
  if (inputs.empty()) throw InvalidArgument("reduce_replicas: expected at least one input, got none");
  if (begin < 0 || end < begin)
    throw InvalidArgument(str("reduce_replicas: expected 0 <= begin <= end, got [", begin, ", ", end, ")"));
  if (begin == end || outputs.empty()) return;
  if (inputs.size() == 1) return copy_one(dtype, inputs[0], outputs, begin, end);
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (std::is_same_v<T, bool>) {
      return;
    } else if constexpr (std::is_integral_v<T>) {
      reduce_integers<T>(op, inputs, outputs, begin, end);
    } else {
      const double divisor = op == ReplicaReduce::kMean ? static_cast<double>(inputs.size()) : 1;
      vector_table().replicas[static_cast<std::size_t>(op)][static_cast<std::size_t>(dtype)](
          {inputs.data(), inputs.size(), outputs.data(), outputs.size(), divisor}, begin, end);
    }
  });
}

void reduce_replicas(ReplicaReduce op, DType dtype, Inputs inputs, void* output, std::int64_t begin,
                     std::int64_t end) {
  reduce_replicas(op, dtype, inputs, Outputs(&output, 1), begin, end);
}

}  // namespace kernels
}  // namespace lockstep
