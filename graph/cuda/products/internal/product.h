// graph/cuda/products/internal/product.h - products of row-major matrices of floating values, by cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/core/compute_device.h"
#include "lockstep/core/dtype.h"

namespace lockstep::internal::cuda {

// c = a b, or of equally many matrices.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t batch = 1, a_step = 0, b_step = 0;  // elements from one matrix to the next; c's are dense
  std::uint32_t alignment = 16;                    // bytes, of what it is called with
  DType dtype = DType::kF32;
  bool tf32 = false;  // factors of f32 may be rounded to TF32
  // What cuBLASLt may do besides. A bias is added to c = a b + added, an element for each column; then what is below 0
  // becomes 0. Or a or b is summed along k, beside a plain product alone.
  enum class Sums : std::uint8_t { kNone, kOfA, kOfB };
  bool bias = false, relu = false;
  Sums sums = Sums::kNone;
};

// How cuBLASLt computes it is chosen once for each card, by its heuristic, from the shapes alone. Copies are the same product.
// Thread safety: any thread.
class FloatProduct {
 public:
  // Memory of the card that a call needs besides its matrices.
  static constexpr std::size_t kRoom = (std::size_t{32} << 20) + 256;

  explicit FloatProduct(const Product& product);
  // `add`: to what c holds.
  void run(Stream& stream, const void* a, const void* b, void* c, void* room, bool add = false) const;

  struct Matrices {
    const void *a = nullptr, *b = nullptr;
    void* c = nullptr;
    const void* added = nullptr;  // as c; null: nothing is
    const void* bias = nullptr;
    void* sums = nullptr;
  };
  // False: cuBLASLt has no way to do it all there. Then c is a b, and nothing else is done; it is so for each call there.
  bool run(Stream& stream, const Matrices& matrices, void* room) const;

 private:
  class Plan;
  class Plans;
  std::shared_ptr<Plans> plans_;
};

}  // namespace lockstep::internal::cuda
