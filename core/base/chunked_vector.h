// core/base/chunked_vector.h - a vector whose elements stay where they are when it grows.
//
//   ChunkedVector<Node> nodes;
//   Node& first = nodes.emplace_back();
//   nodes.emplace_back();                 // `first` is still good
//
// Chunk k holds 8 << k elements: a short vector takes little memory, a long one has few chunks.
//
// Thread safety: any number of readers, or one writer.
#pragma once

#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

#include "lockstep/core/base/large_pages.h"

namespace lockstep::internal {

template <class T>
class ChunkedVector {
 public:
  ChunkedVector() noexcept = default;
  ChunkedVector(const ChunkedVector& other) {
    chunks_.reserve(other.chunks_.size());
    for (const std::vector<T>& chunk : other.chunks_) {
      std::vector<T>& copy = add_chunk();
      copy.insert(copy.end(), chunk.begin(), chunk.end());
    }
    size_ = other.size_;
  }
  ChunkedVector(ChunkedVector&& other) noexcept
      : chunks_(std::move(other.chunks_)), size_(std::exchange(other.size_, 0)) {}
  ChunkedVector& operator=(const ChunkedVector& other) {
    if (this != &other) *this = ChunkedVector(other);
    return *this;
  }
  ChunkedVector& operator=(ChunkedVector&& other) noexcept {
    chunks_ = std::move(other.chunks_);
    other.chunks_.clear();
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  ~ChunkedVector() = default;

  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) {
    const Place place = place_of(i);
    return chunks_[place.chunk][place.offset];
  }
  const T& operator[](std::size_t i) const {
    const Place place = place_of(i);
    return chunks_[place.chunk][place.offset];
  }
  T& emplace_back() {
    const std::size_t chunk = place_of(size_).chunk;
    T& fresh = (chunk == chunks_.size() ? add_chunk() : chunks_[chunk]).emplace_back();
    ++size_;
    return fresh;
  }
  // Drops the last elements.
  void truncate(std::size_t size) {
    const Place end = place_of(size);
    chunks_.resize(end.chunk + 1);
    chunks_.back().resize(end.offset);
    size_ = size;
  }

 private:
  static constexpr std::size_t kFirst = 8;
  struct Place {
    std::size_t chunk, offset;
  };
  static Place place_of(std::size_t i) {
    const std::size_t shifted = i + kFirst;
    const std::size_t size = std::bit_floor(shifted);
    return {static_cast<std::size_t>(std::countr_zero(size) - std::countr_zero(kFirst)), shifted - size};
  }
  std::vector<T>& add_chunk() {
    const std::size_t elements = kFirst << chunks_.size();
    std::vector<T> chunk;
    chunk.reserve(elements);
    prefer_large_pages(chunk.data(), elements * sizeof(T));
    return chunks_.emplace_back(std::move(chunk));
  }

  std::vector<std::vector<T>> chunks_;  // a chunk never grows past the capacity it reserved
  std::size_t size_ = 0;
};

}  // namespace lockstep::internal
