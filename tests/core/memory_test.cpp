// Tests: core/error.cpp, core/base/large_pages.cpp, core/memory.cpp
#include "lockstep/core/memory.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(MemoryPool, BlocksAreAlignedAndWritable) {
  MemoryPool pool;
  for (const std::size_t bytes : {1U, 3U, 63U, 64U, 65U, 4096U, 1U << 20U}) {
    void* block = pool.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % kAlignment, 0U) << bytes;
    std::memset(block, 0xAB, bytes);
    pool.deallocate(block, bytes);
  }
}

TEST(MemoryPool, EmptyBlocksAreUnique) {
  MemoryPool pool;
  void* first = pool.allocate(0);
  void* second = pool.allocate(0);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(first, second);
  pool.deallocate(first, 0);
  pool.deallocate(second, 0);
  EXPECT_EQ(pool.stats().allocations, 2);
}

TEST(MemoryPool, CountsLiveAndPeakBytes) {
  MemoryPool pool;
  void* a = pool.allocate(100);
  void* b = pool.allocate(50);
  pool.deallocate(a, 100);
  void* c = pool.allocate(20);
  EXPECT_EQ(pool.stats().live_bytes, 70);
  EXPECT_EQ(pool.stats().peak_bytes, 150);
  EXPECT_EQ(pool.stats().allocations, 3);
  pool.reset_peak();
  EXPECT_EQ(pool.stats().peak_bytes, 70);
  pool.deallocate(b, 50);
  pool.deallocate(c, 20);
  EXPECT_EQ(pool.stats().live_bytes, 0);
  EXPECT_EQ(pool.stats().peak_bytes, 70);
}

// A pool of some fixed size, as a device has.
class SmallPool final : public MemoryPool {
 public:
  SmallPool() : MemoryPool(DeviceKind::kGpu) {}
  int taken = 0;

 private:
  void* take(std::size_t bytes) override {
    ++taken;
    return bytes <= sizeof(memory_) ? memory_ : nullptr;
  }
  void give(void*, std::size_t) noexcept override { --taken; }
  alignas(kAlignment) std::byte memory_[256];
};

TEST(MemoryPool, SaysWhenMemoryIsOut) {
  SmallPool pool;
  void* block = pool.allocate(256);
  try {
    pool.allocate(257);
    FAIL() << "there was memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.message(), HasSubstr("out of gpu memory: asked for 257 bytes while 256 bytes"));
  }
  EXPECT_EQ(pool.stats().live_bytes, 256);
  EXPECT_EQ(pool.stats().allocations, 1);
  pool.deallocate(block, 256);
}

TEST(MemoryPool, RefusesSizesThatNothingCanHave) {
  SmallPool pool;
  EXPECT_THROW(pool.allocate(std::numeric_limits<std::size_t>::max()), Error);
  EXPECT_EQ(pool.taken, 0);
}

TEST(MemoryPool, CountsRightFromManyThreads) {
  MemoryPool pool;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (std::size_t i = 0; i < 500; ++i) {
        const std::size_t bytes = (i * 37 + t) % 1000;
        auto* block = static_cast<unsigned char*>(pool.allocate(bytes));
        std::memset(block, static_cast<int>(t), bytes);
        pool.deallocate(block, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MemoryStats stats = pool.stats();
  EXPECT_EQ(stats.live_bytes, 0);
  EXPECT_EQ(stats.allocations, 2000);
  EXPECT_GE(stats.peak_bytes, 999);
  EXPECT_LE(stats.peak_bytes, 4 * 999);
}

TEST(MemoryPool, BlocksMayBeGivenBackByAnotherThread) {
  MemoryPool pool;
  std::vector<void*> blocks(64);
  std::thread([&] {
    for (void*& block : blocks) {
      block = pool.allocate(128);
      std::memset(block, 1, 128);
    }
  }).join();
  EXPECT_EQ(pool.stats().live_bytes, 64 * 128);
  EXPECT_EQ(std::set<void*>(blocks.begin(), blocks.end()).size(), blocks.size());
  for (void* block : blocks) pool.deallocate(block, 128);
  EXPECT_EQ(pool.stats().live_bytes, 0);
}

TEST(LimitedPool, TakesNoMoreThanItsShare) {
  const auto whole = std::make_shared<MemoryPool>(DeviceKind::kGpu, MemoryId{7});
  LimitedPool first(whole, 1000), second(whole, 500);
  EXPECT_EQ(first.memory(), whole->memory());
  EXPECT_EQ(&first.whole(), whole.get());
  void* const block = first.allocate(600);
  EXPECT_EQ(whole->stats().live_bytes, 600);
  EXPECT_THROW(first.allocate(401), Error);
  EXPECT_THROW(second.allocate(501), Error);
  second.deallocate(second.allocate(500), 500);
  first.deallocate(first.allocate(400), 400);
  first.deallocate(block, 600);
  first.deallocate(first.allocate(1000), 1000);
  EXPECT_EQ(whole->stats().live_bytes, 0);
  EXPECT_THROW(LimitedPool(nullptr, 1), Error);
  EXPECT_THROW(LimitedPool(whole, 0), Error);
}

TEST(DefaultHostPool, IsOneCpuPool) {
  EXPECT_EQ(default_host_pool(), default_host_pool());
  EXPECT_EQ(default_host_pool()->kind(), DeviceKind::kCpu);
}

}  // namespace
}  // namespace lockstep
