// io/state/internal/checkpoint_index.h - the first part of a checkpoint file: what it holds, and where.
//
//   bytes 0..35    header: magic (8), version (4), CRC-32C of the index (4), bytes of the index (8), bytes of the file (8),
//                  CRC-32C of the header so far (4); numbers are little endian. It keeps this form in all versions
//   then           the index: Index below in Cereal's portable binary form
//   then           the tensors in the order of the index, each from a multiple of 64 bytes on; zeros in between
//
// Parsing trusts nothing: see parse_header and parse_index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/shape.h"
#include "lockstep/io/state/checkpoint.h"

namespace lockstep::internal {

inline constexpr std::string_view kCheckpointMagic = "\x89LKCKPT\n";
// The highest version that is read. A checkpoint of values alone, which older readers know, is written as
// version 1.
inline constexpr std::uint32_t kCheckpointVersion = 2;
inline constexpr std::size_t kCheckpointHeaderBytes = 36;

struct CheckpointHeader {
  std::uint32_t version = 1;
  std::uint32_t index_crc = 0;
  std::uint64_t index_bytes = 0;
  std::uint64_t file_bytes = 0;
};

std::string write_header(const CheckpointHeader& header);
// Throws Error with kDataLoss for damage, kUnimplemented for a version that this Lockstep does not know,
// InvalidArgument for a file or an index above the limits. `what` names the file.
LOCKSTEP_API CheckpointHeader parse_header(std::string_view bytes, std::uint64_t file_bytes,
                                           const ReadLimits& limits, std::string_view what);

// Throws InvalidArgument for a file above limits.file_bytes, and for an index whose bytes and entries take
// more memory than a file of that size may.
void check_limits(std::uint64_t index_bytes, std::uint64_t entries, std::uint64_t file_bytes,
                  const ReadLimits& limits, std::string_view what);

LOCKSTEP_API std::string write_index(const CheckpointInfo& info);  // in the form of its version
// Parses an index of that version and checks everything: variables, then states, each in order by name; no
// name comes twice or could leave a folder; the copies of a variable are all there and alike; the tensors
// fill the rest of a file of `file_bytes` exactly. Throws Error(kDataLoss), and InvalidArgument above the
// limits.
LOCKSTEP_API CheckpointInfo parse_index(std::string_view bytes, std::uint32_t version,
                                        std::uint64_t file_bytes, const ReadLimits& limits,
                                        std::string_view what);

// A name that may stand in a checkpoint: 1 to 4096 bytes without control characters; no part between slashes
// is empty, "." or "..".
LOCKSTEP_API Decision is_checkpoint_name(std::string_view name);

}  // namespace lockstep::internal
