// io/files/crc32c.h - the checksum of files: CRC-32C (Castagnoli), as iSCSI, ext4 and Snappy's framing use
// it.
//
//   const std::uint32_t sum = crc32c(bytes);
//   crc32c("56789", crc32c("1234")) == crc32c("123456789")        // a seed continues a checksum
//
// Finds every flip of one, two or three bits in blocks up to 2 GiB and every burst of up to 32 bits. It does
// not protect against a forged file. The processor's own instruction computes it if there is one (SSE 4.2,
// Armv8 with CRC), else a table; both give the same number.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep {

LOCKSTEP_API std::uint32_t crc32c(std::string_view bytes, std::uint32_t seed = 0);

}  // namespace lockstep
