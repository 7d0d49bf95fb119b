// core/memory.cpp - where buffers come from; the only code that uses oneTBB's allocator.
#include "lockstep/core/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "lockstep/core/base/large_pages.h"
#include "lockstep/core/error.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LOCKSTEP_PLAIN_MALLOC 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCKSTEP_PLAIN_MALLOC 1
#endif

// Sanitizers see overruns and hand-overs between threads only through the allocator that they know.
#ifndef LOCKSTEP_PLAIN_MALLOC
#include <tbb/scalable_allocator.h>
#endif

namespace lockstep {

MemoryPool::MemoryPool(DeviceKind kind, MemoryId memory) : kind_(kind), memory_(memory) {}
MemoryPool::~MemoryPool() = default;

void MemoryPool::read(void* host, const void* block, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, block, bytes);
}

void MemoryPool::write(void* block, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(block, host, bytes);
}

void MemoryPool::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void* MemoryPool::allocate(std::size_t bytes) {
  constexpr auto kLimit = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max());
  void* block = bytes <= kLimit ? take(bytes) : nullptr;
  if (block == nullptr) {
    throw Error(ErrorCode::kOutOfMemory,
                str("out of ", to_string(kind_), " memory: asked for ", bytes, " bytes while ",
                    live_.load(std::memory_order_relaxed), " bytes of this pool are in use"));
  }
  const auto size = static_cast<std::int64_t>(bytes);
  const std::int64_t live = live_.fetch_add(size, std::memory_order_relaxed) + size;
  std::int64_t peak = peak_.load(std::memory_order_relaxed);
  while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
  allocations_.fetch_add(1, std::memory_order_relaxed);
  return block;
}

void MemoryPool::deallocate(void* block, std::size_t bytes) noexcept {
  if (block == nullptr) return;
  give(block, bytes);
  live_.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
}

MemoryStats MemoryPool::stats() const {
  return MemoryStats{.live_bytes = live_.load(std::memory_order_relaxed),
                     .peak_bytes = peak_.load(std::memory_order_relaxed),
                     .allocations = allocations_.load(std::memory_order_relaxed)};
}

void MemoryPool::reset_peak() {
  peak_.store(live_.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

LimitedPool::LimitedPool(std::shared_ptr<MemoryPool> whole, std::int64_t bytes)
    : MemoryPool(whole == nullptr ? DeviceKind::kCpu : whole->kind(),
                 whole == nullptr ? kHostMemory : whole->memory()),
      whole_(std::move(whole)),
      limit_(bytes) {
  if (whole_ == nullptr) throw InvalidArgument("LimitedPool: the pool is missing");
  if (bytes <= 0) throw InvalidArgument(str("LimitedPool: a limit of ", bytes, " bytes: expected 1 or more"));
}

void LimitedPool::read(void* host, const void* block, std::size_t bytes) { whole_->read(host, block, bytes); }
void LimitedPool::write(void* block, const void* host, std::size_t bytes) {
  whole_->write(block, host, bytes);
}
void LimitedPool::copy(void* to, const void* from, std::size_t bytes) { whole_->copy(to, from, bytes); }

void* LimitedPool::take(std::size_t bytes) {
  const auto wanted = static_cast<std::int64_t>(bytes);
  std::int64_t taken = taken_.load(std::memory_order_relaxed);
  do {
    if (wanted > limit_ - taken) return nullptr;
  } while (!taken_.compare_exchange_weak(taken, taken + wanted, std::memory_order_relaxed));
  try {
    return whole_->allocate(bytes);
  } catch (...) {
    taken_.fetch_sub(wanted, std::memory_order_relaxed);
    throw;
  }
}

void LimitedPool::give(void* block, std::size_t bytes) noexcept {
  whole_->deallocate(block, bytes);
  taken_.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
}

void* MemoryPool::take(std::size_t bytes) {
#ifdef LOCKSTEP_PLAIN_MALLOC
  void* block = nullptr;
  return posix_memalign(&block, kAlignment, std::max<std::size_t>(bytes, 1)) == 0 ? block : nullptr;
#else
  void* const block = scalable_aligned_malloc(std::max<std::size_t>(bytes, 1), kAlignment);
  if (block != nullptr) prefer_large_pages(block, bytes);
  return block;
#endif
}

void MemoryPool::give(void* block, std::size_t /*bytes*/) noexcept {
#ifdef LOCKSTEP_PLAIN_MALLOC
  std::free(block);
#else
  scalable_aligned_free(block);
#endif
}

const std::shared_ptr<MemoryPool>& default_host_pool() {
  // Never destroyed: static objects of the application may hold tensors until the very end.
  static const auto* const pool =
      new std::shared_ptr<MemoryPool>(std::make_shared<MemoryPool>(DeviceKind::kCpu));
  return *pool;
}

}  // namespace lockstep
