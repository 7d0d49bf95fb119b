// io/files/npz.h - named tensors in NumPy's .npz format: a zip file of .npy files.
//
//   std::map<std::string, Tensor> feeds = load_npz("feeds.npz");
//   write_file_whole("results.npz", write_npz({{"loss", loss}}));
//
// Entries may be stored (numpy.savez) or deflated (savez_compressed); each one's checksum is compared. The
// entry "x.npy" is the tensor "x"; an entry that is not a .npy file, is encrypted or comes twice is refused.
// io/files/npy.h says what the arrays may hold. Besides the tensors themselves, reading takes no memory that
// grows with them.
//
// Input counts as hostile. All entries together, unpacked, take no more memory than the limits allow for a
// file of that size (core/read_limits.h): 64 MiB, and 4 bytes for each byte of the file. One deflated byte
// can unpack to 1000, so an honest file of zeros may need more: raise base_bytes for it. Entries that overlap
// are refused: unpacking the same bytes again and again is work out of proportion to the file. Damaged files:
// Error(kDataLoss); others that cannot be read: InvalidArgument. Thread safety: plain functions.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/core/tensor.h"
#include "lockstep/io/files/removed_limits.h"

namespace lockstep {

LOCKSTEP_API std::map<std::string, Tensor> read_npz(std::string_view bytes, const ReadLimits& limits = {});
// The same from a file, which is never whole in memory. Errors name the path; io/files/files.h lists those of
// files.
LOCKSTEP_API std::map<std::string, Tensor> load_npz(const std::filesystem::path& path,
                                                    const ReadLimits& limits = {});

struct NpzOptions {
  bool deflate = false;  // smaller and slower
};
// Equal tensors give equal bytes. Refuses a file of 4 GiB and more (InvalidArgument): write those as .npy.
LOCKSTEP_API std::string write_npz(const std::map<std::string, Tensor>& tensors,
                                   const NpzOptions& options = {});

}  // namespace lockstep
