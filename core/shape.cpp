// core/shape.cpp - the extents of a tensor, some of which may be unknown while a graph is built.
#include "lockstep/core/shape.h"

#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMaxExtent = (std::int64_t{1} << 62U) - 1;

std::string print(std::span<const std::int64_t> dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ',';
    text += dims[i] == kUnknown ? std::string("?") : std::to_string(dims[i]);
  }
  return text + "]";
}

// Unknown and zero extents count as one, so that every stride of the shape fits as well, not only the
// product.
void check_dims(std::span<const std::int64_t> dims) {
  if (dims.size() > Shape::kMaxRank) {
    throw InvalidArgument(str("shape: rank ", dims.size(), " is too high: at most ", Shape::kMaxRank,
                              " dimensions are supported"));
  }
  std::int64_t product = 1;
  for (const std::int64_t dim : dims) {
    if (dim < kUnknown) {
      throw InvalidArgument(
          str("shape: dimension ", dim, " of ", print(dims),
              " is negative: use extents >= 0, or kUnknown (-1) for one that is not known yet"));
    }
    if (dim > 1 && __builtin_mul_overflow(product, dim, &product)) product = kMaxExtent + 1;
    if (product > kMaxExtent) {
      throw InvalidArgument(
          str("shape: the number of elements of ", print(dims), " does not fit into 62 bits"));
    }
  }
}

void check_axis(std::size_t axis, std::size_t limit, const Shape& shape, const char* what) {
  if (axis >= limit) {
    throw InvalidArgument(
        str("shape: ", what, ": axis ", axis, " is outside of ", shape, ": it must be below ", limit));
  }
}

// Extents of one broadcast axis; false if they do not fit.
bool broadcast_dim(std::int64_t a, std::int64_t b, std::int64_t& out) {
  if (a == b || b == 1) {
    out = a;
  } else if (a == 1 || a == kUnknown) {
    out = b;
  } else if (b == kUnknown) {
    out = a;
  } else {
    return false;
  }
  return true;
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> dims)
    : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const std::int64_t> dims) : Shape() {
  check_dims(dims);
  assign(dims.data(), dims.size());
}

Shape::Shape(const Shape& other) : Shape() { assign(other.data(), other.rank_); }

Shape::Shape(Shape&& other) noexcept : Shape() { *this = std::move(other); }

Shape& Shape::operator=(const Shape& other) {
  if (this != &other) assign(other.data(), other.rank_);
  return *this;
}

Shape& Shape::operator=(Shape&& other) noexcept {
  if (this == &other) return *this;
  if (rank_ > kInlineRank) delete[] heap_;
  rank_ = other.rank_;
  if (rank_ > kInlineRank) {
    heap_ = other.heap_;
    other.rank_ = 0;
  } else {
    std::copy_n(other.inline_, kInlineRank, inline_);
  }
  return *this;
}

Shape::~Shape() {
  if (rank_ > kInlineRank) delete[] heap_;
}

// Strong guarantee: allocates before it lets go of what it had.
void Shape::assign(const std::int64_t* dims, std::size_t rank) {
  if (rank > kInlineRank) {
    auto* fresh = new std::int64_t[rank];
    std::copy_n(dims, rank, fresh);
    if (rank_ > kInlineRank) delete[] heap_;
    heap_ = fresh;
  } else {
    std::array<std::int64_t, kInlineRank> copy{};
    std::copy_n(dims, rank, copy.data());
    if (rank_ > kInlineRank) delete[] heap_;
    std::copy_n(copy.data(), kInlineRank, inline_);
  }
  rank_ = static_cast<std::uint8_t>(rank);
}

std::int64_t Shape::dim(std::int64_t axis) const {
  const auto rank = static_cast<std::int64_t>(rank_);
  if (axis < -rank || axis >= rank) {
    throw InvalidArgument(
        str("shape: axis ", axis, " is outside of ", *this, ": it must lie in [", -rank, ", ", rank, ")"));
  }
  return data()[axis < 0 ? axis + rank : axis];
}

bool Shape::is_known() const {
  return std::all_of(data(), data() + rank_, [](std::int64_t dim) { return dim != kUnknown; });
}

std::int64_t Shape::num_elements() const {
  std::int64_t product = 1;
  for (const std::int64_t dim : dims()) {
    if (dim == kUnknown) {
      throw FailedPrecondition(
          str("shape: ", *this, " has unknown dimensions, so its number of elements is not known"));
    }
    product *= dim;
  }
  return product;
}

Shape Shape::with_dim(std::size_t axis, std::int64_t extent) const {
  check_axis(axis, rank_, *this, "with_dim");
  std::vector<std::int64_t> result(data(), data() + rank_);
  result[axis] = extent;
  return Shape(std::span<const std::int64_t>(result));
}

Shape Shape::without_dim(std::size_t axis) const {
  check_axis(axis, rank_, *this, "without_dim");
  std::vector<std::int64_t> result(data(), data() + rank_);
  result.erase(result.begin() + static_cast<std::ptrdiff_t>(axis));
  return Shape(std::span<const std::int64_t>(result));
}

Shape Shape::with_inserted(std::size_t axis, std::int64_t extent) const {
  check_axis(axis, std::size_t{rank_} + 1, *this, "with_inserted");
  std::vector<std::int64_t> result(data(), data() + rank_);
  result.insert(result.begin() + static_cast<std::ptrdiff_t>(axis), extent);
  return Shape(std::span<const std::int64_t>(result));
}

bool Shape::admits(const Shape& concrete) const {
  return std::equal(
      data(), data() + rank_, concrete.data(), concrete.data() + concrete.rank_,
      [](std::int64_t mine, std::int64_t theirs) { return mine == kUnknown || mine == theirs; });
}

bool Shape::may_equal(const Shape& other) const {
  const auto fits = [](std::int64_t a, std::int64_t b) { return a == b || a == kUnknown || b == kUnknown; };
  return std::ranges::equal(dims(), other.dims(), fits);
}

std::string Shape::to_string() const { return print(dims()); }

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.to_string(); }

std::int64_t checked_mul(std::int64_t a, std::int64_t b, const char* what) {
  LOCKSTEP_CHECK(a >= 0 && b >= 0, what, ": sizes cannot be negative: ", a, " * ", b);
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || result > kMaxExtent) {
    throw InvalidArgument(str(what, ": ", a, " * ", b, " does not fit into 62 bits"));
  }
  return result;
}

std::int64_t checked_add(std::int64_t a, std::int64_t b, const char* what) {
  LOCKSTEP_CHECK(a >= 0 && b >= 0, what, ": sizes cannot be negative: ", a, " + ", b);
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result) || result > kMaxExtent) {
    throw InvalidArgument(str(what, ": ", a, " + ", b, " does not fit into 62 bits"));
  }
  return result;
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  std::vector<std::int64_t> result(longer.dims().begin(), longer.dims().end());
  const std::size_t lead = longer.rank() - shorter.rank();
  for (std::size_t i = 0; i < shorter.rank(); ++i) {
    if (!broadcast_dim(longer[lead + i], shorter[i], result[lead + i])) {
      throw InvalidArgument(str("cannot broadcast ", a, " with ", b, ": dimensions ", longer[lead + i],
                                " and ", shorter[i],
                                " differ and neither is 1 (dimensions align from the last)"));
    }
  }
  return Shape(std::span<const std::int64_t>(result));
}

Shape join_shapes(const Shape& a, const Shape& b) {
  if (a.rank() != b.rank()) {
    throw InvalidArgument(
        str("cannot join ", a, " with ", b, ": ranks ", a.rank(), " and ", b.rank(), " differ"));
  }
  std::vector<std::int64_t> result(a.dims().begin(), a.dims().end());
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (result[i] != b[i]) result[i] = kUnknown;
  }
  return Shape(std::span<const std::int64_t>(result));
}

std::string to_string(const TensorSpec& spec) {
  return std::string(to_string(spec.dtype)) + spec.shape.to_string();
}

std::ostream& operator<<(std::ostream& out, const TensorSpec& spec) { return out << to_string(spec); }

std::int64_t num_bytes(const TensorSpec& spec) {
  return checked_mul(spec.shape.num_elements(), static_cast<std::int64_t>(size_of(spec.dtype)),
                     "bytes of a tensor");
}

}  // namespace lockstep
