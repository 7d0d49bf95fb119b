// Every way to the heap that C++ code of this executable has.
#include "support/failing_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

#include "lockstep/testing/fake_gpu.h"

namespace lockstep::testing {
namespace {

// Both counted down: from zero on as many fail as `times` says.
struct Countdown {
  std::atomic<std::int64_t> left{-1};  // before the first that fails; -1 and less: none will
  std::atomic<std::int64_t> failures{0};
  std::atomic<std::int64_t> times{0};

  void set(const FailingAllocations::Which& which) {
    failures = 0;
    times = which.times;
    left = which.nth;
  }
  void clear() { left = -1; }
  bool fails() {
    if (left.load(std::memory_order_relaxed) < 0) return false;
    if (left.fetch_sub(1, std::memory_order_relaxed) > 1) return false;
    left.store(0, std::memory_order_relaxed);
    if (times.fetch_sub(1, std::memory_order_relaxed) <= 0) return false;
    failures.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
};

std::atomic<std::int64_t> allocations{0};
Countdown of_process;
thread_local Countdown of_thread;

[[maybe_unused]] void count_or_fail() {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (FakeGpu::is_at_work()) return;
  if (of_thread.fails() || of_process.fails()) throw std::bad_alloc();
}

}  // namespace

std::int64_t allocations_so_far() { return allocations.load(std::memory_order_relaxed); }

FailingAllocations::FailingAllocations(const Which& which) : of_(which.of) {
  (of_ == Of::kThisThread ? of_thread : of_process).set(which);
}

FailingAllocations::~FailingAllocations() { (of_ == Of::kThisThread ? of_thread : of_process).clear(); }

bool FailingAllocations::reached() const {
  return (of_ == Of::kThisThread ? of_thread : of_process).failures.load() > 0;
}

}  // namespace lockstep::testing

#if !LOCKSTEP_TEST_SANITIZED
[[gnu::noinline]] void* operator new(std::size_t size) {
  lockstep::testing::count_or_fail();
  if (void* block = std::malloc(size == 0 ? 1 : size)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  lockstep::testing::count_or_fail();
  const auto align = static_cast<std::size_t>(alignment);
  if (void* block = std::aligned_alloc(align, (size + align - 1) / align * align)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t, std::align_val_t) noexcept {
  std::free(block);
}
#endif
