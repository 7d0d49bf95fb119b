// graph/train/clipping.cpp - gradients kept within bounds.
#include "lockstep/graph/train/clipping.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {

namespace {

ErrorPlace place_at(std::string_view function, const SourceSite& site) {
  return {{}, std::string(function), {}, site.file, site.line, -1};
}

// The numbers of a gradient: all of them, or the rows of slices.
Value numbers_of(const Gradient& gradient) {
  return gradient.is_sparse() ? gradient.slices().values : gradient.dense();
}

// The gradient with other numbers in the same places.
Gradient with_numbers(const Gradient& gradient, const Value& numbers) {
  if (!gradient.is_sparse()) return numbers;
  const IndexedSlices rows = gradient.slices();
  return IndexedSlices{rows.indices, numbers, rows.dense_shape};
}

void check(std::string_view function, std::span<const Gradient> gradients, const SourceSite& site) {
  if (gradients.empty())
    throw InvalidArgument(str(function, ": there are no gradients"), place_at(function, site));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].valid()) {
      throw InvalidArgument(str(function, ": gradient ", i, " is empty: nothing flows back; leave it out"),
                            place_at(function, site));
    }
    if (!is_floating(numbers_of(gradients[i]).dtype())) {
      throw InvalidArgument(str(function, ": gradient ", i, " is ", numbers_of(gradients[i]).spec(),
                                "; gradients are floating"),
                            place_at(function, site));
    }
  }
}

void check_norm(std::string_view function, double max_norm, const SourceSite& site) {
  if (std::isfinite(max_norm) && max_norm > 0) return;
  throw InvalidArgument(str(function, ": the largest norm is ", max_norm, "; it must be finite and above 0"),
                        place_at(function, site));
}

std::vector<Gradient> gradients_of(std::span<const GradientAndVariable> list) {
  std::vector<Gradient> gradients;
  for (const GradientAndVariable& one : list) gradients.push_back(one.gradient);
  return gradients;
}

// 16-bit numbers would overflow when squared, and would be rounded twice when scaled.
Value norm_of(std::span<const Gradient> gradients) {
  const bool wide = std::ranges::any_of(
      gradients, [](const Gradient& gradient) { return numbers_of(gradient).dtype() == DType::kF64; });
  Value total;
  for (const Gradient& gradient : gradients) {
    const Value numbers = cast(numbers_of(gradient), wide ? DType::kF64 : DType::kF32);
    const Value squares = sum(square(numbers));
    total = total.valid() ? total + squares : squares;
  }
  return sqrt(total);
}

// A bound that the norm's dtype cannot hold would be infinite, or 0, and make the quotient NaN.
Value scale_of(const Value& norm, double max_norm) {
  using Float = std::numeric_limits<float>;
  if (norm.dtype() == DType::kF32) max_norm = std::clamp<double>(max_norm, Float::min(), Float::max());
  const Value largest = maximum(norm, max_norm);
  return max_norm / largest;
}

Gradient scaled(const Gradient& gradient, const Value& scale) {
  const Value numbers = numbers_of(gradient);
  const DType wide = numbers.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  const Value factor = cast(scale, wide);
  const Value product = cast(numbers, wide) * factor;
  return with_numbers(gradient, cast(product, numbers.dtype()));
}

std::vector<Gradient> all_scaled(std::span<const Gradient> gradients, const Value& norm, double max_norm) {
  const Value scale = scale_of(norm, max_norm);
  std::vector<Gradient> result;
  for (const Gradient& gradient : gradients) result.push_back(scaled(gradient, scale));
  return result;
}

}  // namespace

Gradient clip_by_value(const Gradient& gradient, double low, double high, SourceSite site) {
  check("clip_by_value", {&gradient, 1}, site);
  if (!(low <= high)) {
    throw InvalidArgument(
        str("clip_by_value: the bounds are [", low, ", ", high, "]; the low one must not be above the high"),
        place_at("clip_by_value", site));
  }
  const Value numbers = numbers_of(gradient);
  const auto made_at = internal::BuilderAccess(numbers.builder()).made_at(site);
  return with_numbers(gradient, clip(numbers, low, high));
}

Gradient clip_by_norm(const Gradient& gradient, double max_norm, SourceSite site) {
  check("clip_by_norm", {&gradient, 1}, site);
  check_norm("clip_by_norm", max_norm, site);
  const auto made_at = internal::BuilderAccess(numbers_of(gradient).builder()).made_at(site);
  return scaled(gradient, scale_of(norm_of({&gradient, 1}), max_norm));
}

Value global_norm(std::span<const Gradient> gradients, SourceSite site) {
  check("global_norm", gradients, site);
  const auto made_at = internal::BuilderAccess(numbers_of(gradients[0]).builder()).made_at(site);
  return norm_of(gradients);
}

Value global_norm(std::span<const GradientAndVariable> gradients, SourceSite site) {
  return global_norm(gradients_of(gradients), site);
}

std::vector<Gradient> clip_by_global_norm(std::span<const Gradient> gradients, double max_norm,
                                          SourceSite site) {
  check("clip_by_global_norm", gradients, site);
  check_norm("clip_by_global_norm", max_norm, site);
  const auto made_at = internal::BuilderAccess(numbers_of(gradients[0]).builder()).made_at(site);
  return all_scaled(gradients, norm_of(gradients), max_norm);
}

ClippedGradients clip_by_global_norm(std::span<const GradientAndVariable> list, double max_norm,
                                     SourceSite site) {
  const std::vector<Gradient> gradients = gradients_of(list);
  check("clip_by_global_norm", gradients, site);
  check_norm("clip_by_global_norm", max_norm, site);
  const auto made_at = internal::BuilderAccess(numbers_of(gradients[0]).builder()).made_at(site);
  ClippedGradients result;
  result.norm = norm_of(gradients);
  const std::vector<Gradient> clipped = all_scaled(gradients, result.norm, max_norm);
  for (std::size_t i = 0; i < list.size(); ++i) result.gradients.push_back({clipped[i], list[i].variable});
  return result;
}

}  // namespace lockstep
