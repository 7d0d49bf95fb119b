// core/memory.h - pooled memory of one device, with statistics.
//
// A MemoryPool hands out 64-byte aligned blocks. CPU pools sit on oneTBB's scalable allocator, whose
// thread-local caches make a block that was freed cheap to take again. Blocks know their pool: it must
// outlive them, which std::shared_ptr handles for tensors. Thread safety: all methods may be called from any
// thread.
//
// A pool of another memory than the host's derives from it: take() and give(), and read(), write() and copy()
// if the host must not touch its blocks.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/core/device.h"

namespace lockstep {

inline constexpr std::size_t kAlignment = 64;

// A memory that devices compute in; devices that have the same one read each other's values without a copy.
struct MemoryId {
  std::uint32_t value = 0;  // 0: this process's host memory
  friend auto operator<=>(const MemoryId&, const MemoryId&) = default;
};
inline constexpr MemoryId kHostMemory{};

struct MemoryStats {
  std::int64_t live_bytes = 0;   // handed out and not yet given back
  std::int64_t peak_bytes = 0;   // highest live_bytes since the start or reset_peak()
  std::int64_t allocations = 0;  // blocks ever handed out
};

class LOCKSTEP_API MemoryPool {
 public:
  explicit MemoryPool(DeviceKind kind = DeviceKind::kCpu, MemoryId memory = kHostMemory);
  virtual ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // 64-byte aligned; never null (0 bytes give a valid, unique block). Throws Error(kOutOfMemory) when out of
  // memory.
  void* allocate(std::size_t bytes);
  void deallocate(void* block, std::size_t bytes) noexcept;  // bytes as asked for

  DeviceKind kind() const { return kind_; }
  MemoryId memory() const { return memory_; }
  bool is_host() const { return memory_ == kHostMemory; }
  // The pool whose blocks these are: this one, or the one that it is a share of.
  virtual const MemoryPool& whole() const { return *this; }
  MemoryStats stats() const;
  void reset_peak();

  // Copy from a block of this pool to host memory, and back; they return when the bytes are there. Throw what
  // the device reports.
  virtual void read(void* host, const void* block, std::size_t bytes);
  virtual void write(void* block, const void* host, std::size_t bytes);
  // Copies between two places in blocks of this memory that do not overlap.
  virtual void copy(void* to, const void* from, std::size_t bytes);

 private:
  virtual void* take(std::size_t bytes);  // null when out of memory
  virtual void give(void* block, std::size_t bytes) noexcept;

  DeviceKind kind_;
  MemoryId memory_;
  std::atomic<std::int64_t> live_{0};
  std::atomic<std::int64_t> peak_{0};
  std::atomic<std::int64_t> allocations_{0};
};

// A share of another pool: the same memory, and no more than so many bytes of it at one time. What logical devices
// of one card allocate from.
class LOCKSTEP_API LimitedPool final : public MemoryPool {
 public:
  // Throws InvalidArgument if the pool is missing, or the limit is not positive.
  LimitedPool(std::shared_ptr<MemoryPool> whole, std::int64_t bytes);
  const MemoryPool& whole() const override { return whole_->whole(); }
  void read(void* host, const void* block, std::size_t bytes) override;
  void write(void* block, const void* host, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;

 private:
  void* take(std::size_t bytes) override;
  void give(void* block, std::size_t bytes) noexcept override;

  std::shared_ptr<MemoryPool> whole_;
  const std::int64_t limit_;
  std::atomic<std::int64_t> taken_{0};
};

// The pool that tensors made without a Runtime use. Lives as long as anything allocated from it.
LOCKSTEP_API const std::shared_ptr<MemoryPool>& default_host_pool();

}  // namespace lockstep
