// io/formats/fixed_length.h - files of records that all have the same number of bytes.
//
//   auto reader = open_fixed_length("data_batch_1.bin", {.record_bytes = 3073});      // CIFAR-10
//
// A file is header_bytes, which are passed over, whole records, and footer_bytes, likewise.
//
// kNone       is the default: any bytes may begin such a file. kAuto takes the two bytes of gzip for gzip
// damage      a file that is not made of whole records between header and footer is Error(kDataLoss): of a
//             plain file when it is opened, of a packed one when the end is read
// memory      one record, and of a packed file the footer; a packed file with a footer of
//             256 KiB and more is refused (InvalidArgument)
//
// Failure and thread safety: io/formats/record_reader.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/io/formats/record_reader.h"

namespace lockstep {

struct FixedLengthOptions {
  std::uint64_t record_bytes = 0;  // at least 1
  std::uint64_t header_bytes = 0;
  std::uint64_t footer_bytes = 0;
  Compression compression = Compression::kNone;
};
LOCKSTEP_API std::unique_ptr<RecordReader> open_fixed_length(const std::filesystem::path& path,
                                                             const FixedLengthOptions& options);

}  // namespace lockstep
