// core/base/large_pages.cpp - large pages for large blocks.
#include "lockstep/core/base/large_pages.h"

#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace lockstep {

void prefer_large_pages([[maybe_unused]] void* block, [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t kLarge = std::size_t{2} << 20U;
  if (bytes < 2 * kLarge) return;
  // The large pages that lie completely inside the block.
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  const std::size_t before = (kLarge - address % kLarge) % kLarge;
  const std::size_t inside = (bytes - before) / kLarge * kLarge;
  if (inside > 0) madvise(static_cast<char*>(block) + before, inside, MADV_HUGEPAGE);
#endif
}

}  // namespace lockstep
