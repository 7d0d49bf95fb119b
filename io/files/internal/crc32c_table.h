// io/files/internal/crc32c_table.h - CRC-32C in software, for processors without an instruction for it and
// for tests.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep::internal {

// The same number as crc32c(), eight bytes at a time through tables.
LOCKSTEP_API std::uint32_t crc32c_by_table(std::string_view bytes, std::uint32_t seed = 0);

}  // namespace lockstep::internal
