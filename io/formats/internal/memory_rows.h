// io/formats/internal/memory_rows.h - what the kinds of array rows have in common, and those of a tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/core/tensor.h"
#include "lockstep/io/formats/array_rows.h"

namespace lockstep::internal {

// Knows the spec, and checks which rows are asked for.
class CheckedRows : public ArrayRows {
 public:
  const TensorSpec& row() const final { return row_; }
  std::int64_t rows() const final { return rows_; }
  void read(std::int64_t first, std::int64_t count, void* to) const final;

 protected:
  // Throws InvalidArgument if the array has no first axis.
  CheckedRows(const std::filesystem::path& path, const TensorSpec& array);
  // The rows are there, and there is at least one byte of them.
  virtual void read_rows(std::int64_t first, std::int64_t count, char* to) const = 0;

  std::uint64_t row_bytes() const { return row_bytes_; }

 private:
  std::string path_;
  TensorSpec row_;
  std::int64_t rows_ = 0;
  std::uint64_t row_bytes_ = 0;
};

// Rows of a tensor of the host.
class MemoryRows final : public CheckedRows {
 public:
  MemoryRows(const std::filesystem::path& path, Tensor tensor);

 private:
  void read_rows(std::int64_t first, std::int64_t count, char* to) const override;
  Tensor tensor_;
};

}  // namespace lockstep::internal
