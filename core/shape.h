// core/shape.h - the extents of a tensor, some of which may be unknown while a graph is built.
//
// A Shape is a list of dimensions; a dimension is >= 0, or kUnknown. Rank 0 is a scalar. Arithmetic is
// checked: a shape whose number of elements does not fit into 62 bits is refused (InvalidArgument) where it
// is made or combined, so that products and byte counts of known shapes never overflow afterwards.
//
// TensorSpec is dtype + shape: what an output of a node is known to be. Thread safety: plain values.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"

namespace lockstep {

inline constexpr std::int64_t kUnknown = -1;

class LOCKSTEP_API Shape {
 public:
  static constexpr std::size_t kInlineRank = 4;
  static constexpr std::size_t kMaxRank = 255;

  Shape() noexcept : rank_(0), inline_{} {}
  Shape(std::initializer_list<std::int64_t> dims);  // throws InvalidArgument for a dimension < -1 or overflow
  explicit Shape(std::span<const std::int64_t> dims);
  Shape(const Shape& other);
  Shape(Shape&& other) noexcept;
  Shape& operator=(const Shape& other);
  Shape& operator=(Shape&& other) noexcept;
  ~Shape();

  std::size_t rank() const { return rank_; }
  std::span<const std::int64_t> dims() const { return {data(), rank_}; }
  std::int64_t operator[](std::size_t axis) const { return data()[axis]; }  // axis < rank()
  // The dimension at an axis that may count from the end (-1 is the last); throws InvalidArgument if out of
  // range.
  std::int64_t dim(std::int64_t axis) const;
  bool is_known() const;
  // Product of the dimensions; throws FailedPrecondition if one is unknown.
  std::int64_t num_elements() const;
  // A copy with one dimension replaced, removed, or inserted.
  Shape with_dim(std::size_t axis, std::int64_t extent) const;
  Shape without_dim(std::size_t axis) const;
  Shape with_inserted(std::size_t axis, std::int64_t extent) const;
  // Could a tensor of shape `concrete` (all known) be a value of this shape?
  bool admits(const Shape& concrete) const;
  // Could values of the two turn out to have the same shape? An unknown dimension fits any other.
  bool may_equal(const Shape& other) const;
  // "[2,?,4]"; "[]" for a scalar.
  std::string to_string() const;

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (std::size_t i = 0; i < a.rank_; ++i) {
      if (a.data()[i] != b.data()[i]) return false;
    }
    return true;
  }

 private:
  const std::int64_t* data() const { return rank_ <= kInlineRank ? inline_ : heap_; }
  void assign(const std::int64_t* dims, std::size_t rank);

  std::uint8_t rank_;
  union {
    std::int64_t inline_[kInlineRank];
    std::int64_t* heap_;
  };
};

LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const Shape& shape);

// a * b for sizes >= 0; throws InvalidArgument naming `what` on overflow of 62 bits.
LOCKSTEP_API std::int64_t checked_mul(std::int64_t a, std::int64_t b, const char* what);
LOCKSTEP_API std::int64_t checked_add(std::int64_t a, std::int64_t b, const char* what);

// NumPy broadcasting of two shapes; unknown against 1 or unknown stays unknown, unknown against n > 1 is n.
// Throws InvalidArgument naming both shapes if they do not fit.
LOCKSTEP_API Shape broadcast_shapes(const Shape& a, const Shape& b);
// The most precise shape that admits everything that either of them admits (dimensions that differ become
// unknown). Throws InvalidArgument if ranks differ.
LOCKSTEP_API Shape join_shapes(const Shape& a, const Shape& b);

struct TensorSpec {
  DType dtype = DType::kF32;
  Shape shape;
  // Could values of the two turn out to have the same spec? See Shape::may_equal.
  bool may_equal(const TensorSpec& other) const {
    return dtype == other.dtype && shape.may_equal(other.shape);
  }
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

LOCKSTEP_API std::string to_string(const TensorSpec& spec);  // "f32[2,?]"
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const TensorSpec& spec);
// Bytes of a tensor of this spec, which must be known.
LOCKSTEP_API std::int64_t num_bytes(const TensorSpec& spec);

}  // namespace lockstep
