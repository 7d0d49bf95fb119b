// core/cuda/internal/pools.h - memory of a card, and host memory that cards copy from and to by themselves.
//
// Both keep what is given back and hand it out again: asking CUDA for memory stops the card. Blocks come back when
// nothing uses them any more (core/work_in_flight.h), so that no stream has to be asked.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "lockstep/core/cuda/internal/card.h"
#include "lockstep/core/memory.h"

namespace lockstep::internal::cuda {

// Blocks by size. Thread safety: any thread.
class BlockCache {
 public:
  using Make = std::function<void*(std::size_t bytes)>;  // null: there is no memory
  using Free = std::function<void(void*)>;
  BlockCache(Make make, Free free) : make_(std::move(make)), free_(std::move(free)) {}
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  void* take(std::size_t bytes);  // null: there is no memory, also not after all that is kept was freed
  void give(void* block, std::size_t bytes) noexcept;

 private:
  static std::size_t rounded(std::size_t bytes);

  Make make_;
  Free free_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> kept_;
};

class CardPool final : public MemoryPool {
 public:
  explicit CardPool(Card& card);
  void read(void* host, const void* block, std::size_t bytes) override;
  void write(void* block, const void* host, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;

 private:
  void* take(std::size_t bytes) override { return cache_.take(bytes); }
  void give(void* block, std::size_t bytes) noexcept override { cache_.give(block, bytes); }
  void move(void* to, const void* from, std::size_t bytes, const char* what);

  Card& card_;
  BlockCache cache_;
};

// Pinned host memory.
class PinnedPool final : public MemoryPool {
 public:
  PinnedPool();

 private:
  void* take(std::size_t bytes) override { return cache_.take(bytes); }
  void give(void* block, std::size_t bytes) noexcept override { cache_.give(block, bytes); }

  BlockCache cache_;
};

}  // namespace lockstep::internal::cuda
