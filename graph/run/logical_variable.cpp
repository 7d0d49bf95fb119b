// graph/run/logical_variable.cpp - a variable of a store as the program sees it: with its copies, which count
// as one value if they are one.
#include "lockstep/graph/run/logical_variable.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "lockstep/core/kernels/reduce_replicas.h"

namespace lockstep::internal {
namespace {

// Copy `i`'s share of `value`; the shares, added in order, give `value`.
template <class T>
T share(T value, std::size_t i, std::size_t copies) {
  if constexpr (std::is_integral_v<T>) {
    const auto wide = static_cast<std::int64_t>(value);
    const std::int64_t rest = wide % static_cast<std::int64_t>(copies);
    const std::int64_t extra = static_cast<std::int64_t>(i) < std::abs(rest) ? (rest < 0 ? -1 : 1) : 0;
    return static_cast<T>(wide / static_cast<std::int64_t>(copies) + extra);
  } else {
    using Exact = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const auto whole = static_cast<Exact>(value);
    const T equal(whole / static_cast<Exact>(copies));
    if (i + 1 < copies || whole == 0 || !std::isfinite(whole)) return equal;
    // The other shares sum up to at least half of the value and hardly more than all of it, so the difference
    // that is left for the last share loses no digit. Half floats lose some digits in the share, but less
    // than is kept when the sum, which is made in f32, is rounded.
    Exact before = 0;
    for (std::size_t other = 0; other + 1 < copies; ++other) before += static_cast<Exact>(equal);
    return T(whole - before);
  }
}

// The memory of slice `i` in a value, block by block: copy(byte of the value, byte of the slice, bytes).
template <class Copy>
void visit_slice(const TensorSpec& slice, const VariableRole& role, std::size_t i, const Copy& copy) {
  const auto axis = static_cast<std::size_t>(role.slice_axis);
  std::int64_t outer = 1, inner = static_cast<std::int64_t>(size_of(slice.dtype));
  for (std::size_t d = 0; d < slice.shape.rank(); ++d) {
    if (d != axis) (d < axis ? outer : inner) *= slice.shape[d];
  }
  const std::int64_t rows = slice.shape[axis], first = rows * static_cast<std::int64_t>(i);
  const std::int64_t kept = std::clamp<std::int64_t>(role.slice_extent - first, 0, rows);
  for (std::int64_t o = 0; o < outer && kept > 0; ++o)
    copy((o * role.slice_extent + first) * inner, o * rows * inner, static_cast<std::size_t>(kept * inner));
}

}  // namespace

LogicalVariable::LogicalVariable(std::vector<StoredVariable*> copies, const VariableRole& role)
    : copies_(std::move(copies)), role_(role), spec_(copies_[0]->spec()) {
  for (StoredVariable* copy : copies_) {
    const bool here = copy->memory() == kHostMemory;
    staging_.push_back(here ? Tensor() : Tensor::empty(copy->spec().dtype, copy->spec().shape));
    memory_.push_back(here ? copy->storage().raw() : staging_.back().raw());
  }
  if (role_.copies != CopyRule::kSlices) return;
  std::vector<std::int64_t> dims(spec_.shape.dims().begin(), spec_.shape.dims().end());
  const auto axis = static_cast<std::size_t>(role_.slice_axis);
  if (axis < dims.size()) dims[axis] = role_.slice_extent;
  spec_.shape = Shape(dims);
}

Decision LogicalVariable::has_value() const {
  if (role_.copies == CopyRule::kSlices) {
    const auto axis = static_cast<std::size_t>(role_.slice_axis);
    const auto count = static_cast<std::int64_t>(copies_.size());
    if (axis < copy_spec().shape.rank() && copy_spec().shape[axis] * count >= role_.slice_extent)
      return Decision::yes();
    return Decision::no(str("its ", count, " slices of ", copy_spec(), " do not make up the ",
                            role_.slice_extent, " elements along axis ", role_.slice_axis,
                            " that it has; compile the function that uses it on all replicas first"));
  }
  if (copies_.size() == 1) return Decision::yes();
  if (role_.copies == CopyRule::kOwn) {
    return Decision::no(
        "every replica has a copy of its own, and together they are no one value: copies() gives each, or "
        "give "
        "the variable an aggregation");
  }
  if (spec().dtype == DType::kBool && (role_.copies == CopyRule::kSum || role_.copies == CopyRule::kMean)) {
    return Decision::no("truth values have no sum or mean; give it the aggregation of the first replica");
  }
  if (is_integer(spec().dtype) && role_.copies == CopyRule::kMean) {
    return Decision::no(
        "the mean of integers over replicas is no integer: use Aggregation::kSum or kOnlyFirstReplica");
  }
  return Decision::yes();
}

void LogicalVariable::stage() const {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (Tensor staged = staging_[i]; staged.defined()) staged.assign(copies_[i]->storage());
  }
}

void LogicalVariable::read(Tensor& into) const {
  stage();
  if (role_.copies == CopyRule::kSlices) {
    join(into);
    return;
  }
  const bool all = role_.copies == CopyRule::kSum || role_.copies == CopyRule::kMean;
  // The mean of equal values is that value, but adding up and dividing may round: return the value itself, so
  // that what was restored is saved as it was.
  const bool equal = role_.copies == CopyRule::kMean && std::ranges::all_of(memory_, [&](const void* copy) {
                       return std::memcmp(copy, memory_[0], into.num_bytes()) == 0;
                     });
  if (!all || equal || copies_.size() == 1) {
    if (into.num_bytes() > 0) std::memcpy(into.raw(), memory_[0], into.num_bytes());
  } else {
    kernels::reduce_replicas(role_.copies == CopyRule::kSum ? ReplicaReduce::kSum : ReplicaReduce::kMean,
                             spec().dtype, memory_, into.raw(), 0, into.num_elements());
  }
}

void LogicalVariable::join(Tensor& into) const {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    visit_slice(copy_spec(), role_, i, [&](std::int64_t whole, std::int64_t slice, std::size_t bytes) {
      std::memcpy(static_cast<char*>(into.raw()) + whole, static_cast<const char*>(memory_[i]) + slice,
                  bytes);
    });
  }
}

void LogicalVariable::write(const Tensor& value) const {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    Tensor staged = staging_[i];
    part(value, i, staged.defined() ? staged : copies_[i]->storage());
    if (staged.defined()) copies_[i]->storage().assign(staged);
  }
}

void LogicalVariable::part(const Tensor& value, std::size_t i, Tensor& into) const {
  if (role_.copies == CopyRule::kSlices) {
    if (into.num_bytes() > 0) std::memset(into.raw(), 0, into.num_bytes());
    visit_slice(copy_spec(), role_, i, [&](std::int64_t whole, std::int64_t slice, std::size_t bytes) {
      std::memcpy(static_cast<char*>(into.raw()) + slice, static_cast<const char*>(value.raw()) + whole,
                  bytes);
    });
    return;
  }
  if (role_.copies != CopyRule::kSum || copies_.size() == 1) {
    into.assign(value);
    return;
  }
  visit_dtype(spec().dtype, [&]<class T>(T) {
    const std::span<const T> whole = value.data<T>();
    const std::span<T> mine = into.data<T>();
    for (std::size_t e = 0; e < whole.size(); ++e) mine[e] = share(whole[e], i, copies_.size());
  });
}

}  // namespace lockstep::internal
