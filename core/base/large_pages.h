// core/base/large_pages.h - large pages for large blocks.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>

#include "lockstep/core/base/export.h"

namespace lockstep {

// Asks the system to back a block of some megabytes with large pages, if it has them: walking over the block
// then waits less for address translation. A block that is too small for that is left alone. Never fails.
LOCKSTEP_API void prefer_large_pages(void* block, std::size_t bytes) noexcept;

}  // namespace lockstep
