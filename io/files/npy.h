// io/files/npy.h - tensors in NumPy's .npy format.
//
//   Tensor x = load_npy("x.npy");
//   write_file_whole("y.npy", write_npy(y));
//
// dtypes     f2 f4 f8 i4 i8 u1 b1 are f16 f32 f64 i32 i64 u8 bool. NumPy has no bf16: it is written as '<V2', two plain
//            bytes, as NumPy itself writes arrays of ml_dtypes.bfloat16 (read them with .view(ml_dtypes.bfloat16)), and
//            '<V2' and '|V2' are read as bf16.
// order      big-endian data and Fortran order are converted.
// refused    Python objects ('O': reading them would run code), structured and all other dtypes:
//            InvalidArgument that names the dtype and how to convert it. Bytes that are not a whole .npy
//            file: Error(kDataLoss).
//
// Input counts as hostile: the header is bounded, and the data must be there, and be within the limits
// (core/read_limits.h), before memory is allocated for it. Thread safety: plain functions.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

LOCKSTEP_API Tensor read_npy(std::string_view bytes, const ReadLimits& limits = {});
// The same from a file, straight into the tensor's memory. Errors name the path; io/files/files.h lists those
// of files.
LOCKSTEP_API Tensor load_npy(const std::filesystem::path& path, const ReadLimits& limits = {});
// Version 1.0, little-endian, C order, with the data aligned to 64 bytes: equal tensors give equal bytes.
LOCKSTEP_API std::string write_npy(const Tensor& tensor);

}  // namespace lockstep
