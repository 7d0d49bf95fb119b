// graph/run/transfer.cpp - moves bytes from one memory to another.
#include "lockstep/graph/run/internal/transfer.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

constexpr std::size_t kBounce = std::size_t{4}
                                << 20U;  // bytes between two memories that the host does not read

std::shared_ptr<MemoryPool> pool_of(const Runtime& runtime, MemoryId memory) {
  if (memory == kHostMemory) return nullptr;
  std::shared_ptr<MemoryPool> pool = runtime.find_pool(memory);
  LOCKSTEP_CHECK(pool != nullptr, "no device computes in memory ", memory.value);
  return pool;
}

}  // namespace

Transfer::Transfer(const Runtime& runtime, MemoryId from, MemoryId to)
    : from_(pool_of(runtime, from)), to_(pool_of(runtime, to)) {}

void Transfer::operator()(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return;
  if (stays_on_host()) {
    std::memcpy(to, from, bytes);
  } else if (from_ == nullptr) {
    to_->write(to, from, bytes);
  } else if (to_ == nullptr) {
    from_->read(to, from, bytes);
  } else if (from_->memory() == to_->memory()) {
    to_->copy(to, from, bytes);
  } else {
    std::vector<std::byte> between(std::min(bytes, kBounce));
    for (std::size_t at = 0; at < bytes; at += between.size()) {
      const std::size_t count = std::min(between.size(), bytes - at);
      from_->read(between.data(), static_cast<const std::byte*>(from) + at, count);
      to_->write(static_cast<std::byte*>(to) + at, between.data(), count);
    }
  }
}

void Transfer::clear(void* to, std::size_t bytes) const {
  if (bytes == 0) return;
  if (to_ == nullptr) {
    std::memset(to, 0, bytes);
    return;
  }
  const std::vector<std::byte> zeros(std::min(bytes, kBounce));
  for (std::size_t at = 0; at < bytes; at += zeros.size())
    to_->write(static_cast<std::byte*>(to) + at, zeros.data(), std::min(zeros.size(), bytes - at));
}

}  // namespace lockstep::internal
