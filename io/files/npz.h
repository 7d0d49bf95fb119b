// io/files/npz.h - named tensors in NumPy's .npz format: a zip file of .npy files.
//
//   std::map<std::string, Tensor> feeds = load_npz("feeds.npz");
//   write_file_whole("results.npz", write_npz({{"loss", loss}}));
//
// Entries may be stored (numpy.savez) or deflated (savez_compressed); each one's checksum is compared. The
// entry "x.npy" is the tensor "x"; an entry that is no .npy file, is encrypted or comes twice is refused.
// What the arrays may hold is in io/files/npy.h. Beside the tensors themselves, reading takes no memory that
// grows with them.
//
// What is read counts as hostile: no entry takes more memory than deflating could make of the bytes that are
// there, and all of them together no more than the limit. Damaged files: Error(kDataLoss); others that cannot
// be read: InvalidArgument. Thread safety: plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

struct NpzLimits {
  std::uint64_t max_bytes = std::uint64_t{4} << 30U;  // of all entries, unpacked: a guard against zip bombs
  std::size_t max_entries = std::size_t{1} << 16U;
};
LOCKSTEP_API std::map<std::string, Tensor> read_npz(std::string_view bytes, const NpzLimits& limits = {});
// The same of a file, which is never whole in memory. Errors name the path; those of files are in
// io/files/files.h.
LOCKSTEP_API std::map<std::string, Tensor> load_npz(const std::filesystem::path& path,
                                                    const NpzLimits& limits = {});

struct NpzOptions {
  bool deflate = false;  // smaller and slower
};
// Equal tensors give equal bytes. Refuses a file of 4 GiB and more (InvalidArgument): write those as .npy.
LOCKSTEP_API std::string write_npz(const std::map<std::string, Tensor>& tensors,
                                   const NpzOptions& options = {});

}  // namespace lockstep
