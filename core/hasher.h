// core/hasher.h - hashes of values in memory, the same in every process.
//
//   const std::uint64_t hash = Hasher().add(shape).add("relu").result();
//
// For tables and for telling things apart, not for files: the numbers may change from version to version. For
// names from untrusted files use core/base/name_hash.h.
//
// Thread safety: as for any value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep::internal {

// Takes in one value after another; the order counts.
class Hasher {
 public:
  Hasher() = default;
  explicit Hasher(std::uint64_t seed) : state_(seed) {}

  Hasher& add(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x9E3779B97F4A7C15U;
    state_ ^= state_ >> 29U;
    return *this;
  }
  Hasher& add_bytes(const void* data, std::size_t size) {
    const auto* at = static_cast<const char*>(data);
    add(size);
    for (; size >= 8; size -= 8, at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, 8);
      add(word);
    }
    std::uint64_t rest = 0;
    if (size > 0) std::memcpy(&rest, at, size);
    return add(rest);
  }
  Hasher& add(std::string_view text) { return add_bytes(text.data(), text.size()); }
  Hasher& add(const Shape& shape) {
    add(shape.rank());
    for (const std::int64_t dim : shape.dims()) add(static_cast<std::uint64_t>(dim));
    return *this;
  }
  Hasher& add(const TensorSpec& spec) { return add(static_cast<std::uint64_t>(spec.dtype)).add(spec.shape); }
  // Spec and contents.
  Hasher& add(const Tensor& tensor) {
    if (!tensor.defined()) return add(std::uint64_t{0});
    return add(tensor.spec()).add_bytes(tensor.raw(), tensor.num_bytes());
  }

  // Every bit depends on everything that was added, so that results may be summed or truncated.
  std::uint64_t result() const {
    std::uint64_t x = state_;
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31U);
  }

 private:
  std::uint64_t state_ = 0x6C6F636B73746570U;
};

}  // namespace lockstep::internal
