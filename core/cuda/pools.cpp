// core/cuda/pools.cpp - memory of a card, and host memory that cards copy from and to by themselves.
#include "lockstep/core/cuda/internal/pools.h"

#include <algorithm>
#include <bit>

namespace lockstep::internal::cuda {

namespace {

constexpr std::size_t kSmallest = 512;

}  // namespace

// Eight sizes for each power of two: at most an eighth is lost.
std::size_t BlockCache::rounded(std::size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  const std::size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}

void* BlockCache::take(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<void*>& blocks = kept_[size];
  if (!blocks.empty()) {
    void* const block = blocks.back();
    blocks.pop_back();
    return block;
  }
  // Room for it to be kept one day: giving it back must not fail.
  blocks.reserve(blocks.capacity() + 1);
  if (void* const block = make_(size)) return block;
  for (auto& [other, list] : kept_) {
    for (void* block : list) free_(block);
    list.clear();
  }
  return make_(size);
}

void BlockCache::give(void* block, std::size_t bytes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    kept_[rounded(bytes)].push_back(block);
  } catch (const std::bad_alloc&) {
    free_(block);
  }
}

CardPool::CardPool(Card& card)
    : MemoryPool(DeviceKind::kGpu, card.memory()),
      card_(card),
      cache_(
          [&card](std::size_t bytes) -> void* {
            card.use();
            void* block = nullptr;
            const cudaError_t status = cudaMalloc(&block, bytes);
            if (status == cudaErrorMemoryAllocation) {
              static_cast<void>(cudaGetLastError());
              return nullptr;
            }
            card.check(status, "cudaMalloc");
            return block;
          },
          [&card](void* block) {
            static_cast<void>(cudaSetDevice(card.number()));
            static_cast<void>(cudaFree(block));
          }) {}

// On a stream of the calling thread: the card's own streams go on meanwhile.
void CardPool::move(void* to, const void* from, std::size_t bytes, const char* what) {
  if (bytes == 0) return;
  card_.use();
  card_.check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread), what);
  card_.check(cudaStreamSynchronize(cudaStreamPerThread), what);
}

void CardPool::read(void* host, const void* block, std::size_t bytes) {
  move(host, block, bytes, "a copy to the host");
}
void CardPool::write(void* block, const void* host, std::size_t bytes) {
  move(block, host, bytes, "a copy from the host");
}
void CardPool::copy(void* to, const void* from, std::size_t bytes) {
  move(to, from, bytes, "a copy within the card");
}

PinnedPool::PinnedPool()
    : MemoryPool(DeviceKind::kCpu, kHostMemory),
      cache_(
          [](std::size_t bytes) -> void* {
            void* block = nullptr;
            if (cudaHostAlloc(&block, bytes, cudaHostAllocPortable) == cudaSuccess) return block;
            static_cast<void>(cudaGetLastError());
            return nullptr;
          },
          [](void* block) { static_cast<void>(cudaFreeHost(block)); }) {}

}  // namespace lockstep::internal::cuda
