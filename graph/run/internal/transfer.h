// graph/run/internal/transfer.h - moves bytes from one memory to another.
//
// Thread safety: may be used from any thread.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/core/memory.h"
#include "lockstep/core/runtime.h"

namespace lockstep::internal {

class Transfer {
 public:
  // Devices of the runtime compute in both memories.
  Transfer(const Runtime& runtime, MemoryId from, MemoryId to);

  bool stays_on_host() const { return from_ == nullptr && to_ == nullptr; }
  // Returns when the bytes are there; there may be none. Throws what a device reports.
  void operator()(void* to, const void* from, std::size_t bytes) const;
  // Fills with zeros instead.
  void clear(void* to, std::size_t bytes) const;

 private:
  std::shared_ptr<MemoryPool> from_, to_;  // null: the host
};

}  // namespace lockstep::internal
