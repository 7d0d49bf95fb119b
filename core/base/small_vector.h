// core/base/small_vector.h - a vector whose first N elements live inside it.
//
// For the lists of a graph node, which nearly always hold one or two elements: no allocation, half the bytes
// of std::vector plus its heap block. Sizes fit into 32 bits. Thread safety: as std::vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace lockstep {

template <class T, std::size_t N>
class SmallVector {
 public:
  SmallVector() noexcept {}
  SmallVector(std::initializer_list<T> values) { append(values.begin(), values.size()); }
  explicit SmallVector(std::span<const T> values) { append(values.data(), values.size()); }
  SmallVector(const SmallVector& other) { append(other.data(), other.size()); }
  SmallVector(SmallVector&& other) noexcept { steal(other); }
  SmallVector& operator=(const SmallVector& other) {
    if (this != &other) {
      clear();
      append(other.data(), other.size());
    }
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this != &other) {
      release();
      steal(other);
    }
    return *this;
  }
  ~SmallVector() { release(); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return is_inline() ? inline_data() : heap_; }
  const T* data() const { return is_inline() ? inline_data() : heap_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& back() { return data()[size_ - 1]; }

  void reserve(std::size_t wanted) {
    if (wanted <= capacity_) return;
    T* block = static_cast<T*>(::operator new (wanted * sizeof(T), std::align_val_t{alignof(T)}));
    std::uninitialized_move_n(data(), size_, block);
    std::destroy_n(data(), size_);
    free_heap();
    heap_ = block;
    capacity_ = static_cast<std::uint32_t>(wanted);
  }
  template <class... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == capacity_) {
      T value(std::forward<Args>(args)...);  // the arguments may live in this vector
      reserve(std::size_t{capacity_} * 2);
      return *std::construct_at(data() + size_++, std::move(value));
    }
    return *std::construct_at(data() + size_++, std::forward<Args>(args)...);
  }
  void push_back(const T& value) { emplace_back(value); }
  void push_back(T&& value) { emplace_back(std::move(value)); }
  void erase(std::size_t index) {
    for (std::size_t i = index + 1; i < size_; ++i) data()[i - 1] = std::move(data()[i]);
    std::destroy_at(data() + --size_);
  }
  void clear() {
    std::destroy_n(data(), size_);
    size_ = 0;
  }
  friend bool operator==(const SmallVector& a, const SmallVector& b) {
    if (a.size_ != b.size_) return false;
    for (std::size_t i = 0; i < a.size_; ++i) {
      if (!(a[i] == b[i])) return false;
    }
    return true;
  }

 private:
  static_assert(N > 0);
  bool is_inline() const { return capacity_ == N; }
  T* inline_data() { return std::launder(reinterpret_cast<T*>(inline_)); }
  const T* inline_data() const { return std::launder(reinterpret_cast<const T*>(inline_)); }
  void append(const T* values, std::size_t count) {
    reserve(size_ + count);
    std::uninitialized_copy_n(values, count, data() + size_);
    size_ += static_cast<std::uint32_t>(count);
  }
  void free_heap() {
    if (!is_inline()) ::operator delete (heap_, std::align_val_t{alignof(T)});
  }
  void release() {
    std::destroy_n(data(), size_);
    free_heap();
    size_ = 0;
    capacity_ = N;
  }
  void steal(SmallVector& other) {  // this is empty and inline
    if (other.is_inline()) {
      std::uninitialized_move_n(other.data(), other.size_, inline_data());
      size_ = other.size_;
      other.clear();
    } else {
      heap_ = other.heap_;
      size_ = std::exchange(other.size_, 0);
      capacity_ = std::exchange(other.capacity_, static_cast<std::uint32_t>(N));
    }
  }

  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = N;
  union {
    T* heap_;
    alignas(T) std::byte inline_[N * sizeof(T)];
  };
};

}  // namespace lockstep
