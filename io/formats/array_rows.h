// io/formats/array_rows.h - the rows of one array in a file, read in pieces at need.
//
//   auto images = open_idx_rows("train-images-idx3-ubyte.gz");     // u8[60000,28,28]
//   images->rows()                                                 // 60000
//   images->row()                                                  // u8[28,28]
//   Tensor batch = Tensor::empty(DType::kU8, {32, 28, 28});
//   images->read(64, 32, batch.raw());                             // rows 64 to 95
//
// A row is an array without its first axis. A position is the number of a row.
//
// open_idx_rows   IDX, the format of MNIST: big-endian u8, i8, i16, i32, f32 and f64. i8 and i16 become i32,
//                 the next wider type that tensors have. Also packed by gzip
// open_npy_rows   NumPy's .npy (io/files/npy.h says what it may hold)
// open_npz_rows   one array of an .npz file: "x" for the entry "x.npy"
//
// An IDX file that is not packed and an .npy file in C order are read in place: they take no memory, whatever
// their size. All others are unpacked into memory when they are opened, and limits.memory_for(size of the
// file) bounds that.
//
// failure   Error(kDataLoss) for bytes that are no whole file of the format; InvalidArgument for an array that
//           has no rows (rank 0), another dtype or above the limits, and for rows that are not there; NotFound
//           if the .npz file has no such entry; otherwise as io/files/files.h. All name the file
//
// Thread safety: read() may be called from any number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/core/shape.h"

namespace lockstep {

class LOCKSTEP_API ArrayRows {
 public:
  ArrayRows() = default;
  virtual ~ArrayRows();
  ArrayRows(const ArrayRows&) = delete;
  ArrayRows& operator=(const ArrayRows&) = delete;

  virtual const TensorSpec& row() const = 0;
  virtual std::int64_t rows() const = 0;
  // Writes rows [first, first + count) to `to`, which has room for them and is aligned for the dtype.
  virtual void read(std::int64_t first, std::int64_t count, void* to) const = 0;
};

LOCKSTEP_API std::unique_ptr<ArrayRows> open_idx_rows(const std::filesystem::path& path,
                                                      const ReadLimits& limits = {});
LOCKSTEP_API std::unique_ptr<ArrayRows> open_npy_rows(const std::filesystem::path& path,
                                                      const ReadLimits& limits = {});
LOCKSTEP_API std::unique_ptr<ArrayRows> open_npz_rows(const std::filesystem::path& path,
                                                      const std::string& member,
                                                      const ReadLimits& limits = {});

}  // namespace lockstep
