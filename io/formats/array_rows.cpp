// io/formats/array_rows.cpp - the rows of NumPy's arrays, and what the rows of all arrays have in common.
#include "lockstep/io/formats/array_rows.h"

#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/files/internal/input_file.h"
#include "lockstep/io/files/internal/npy_reader.h"
#include "lockstep/io/files/npy.h"
#include "lockstep/io/formats/internal/memory_rows.h"

namespace lockstep {

ArrayRows::~ArrayRows() = default;

namespace internal {

CheckedRows::CheckedRows(const std::filesystem::path& path, const TensorSpec& array) : path_(path.string()) {
  if (array.shape.rank() == 0)
    throw InvalidArgument(
        str(path_, ": it holds one number, ", array, ", and no rows; give it a first axis"));
  rows_ = array.shape[0];
  row_ = {array.dtype, array.shape.without_dim(0)};
  row_bytes_ = static_cast<std::uint64_t>(num_bytes(row_));
}

void CheckedRows::read(std::int64_t first, std::int64_t count, void* to) const {
  if (first < 0 || count < 0 || first > rows_ || count > rows_ - first) {
    throw InvalidArgument(
        str(path_, ": rows ", first, " to ", first, " + ", count, " are asked for, and it has ", rows_));
  }
  if (count > 0 && row_bytes_ > 0) read_rows(first, count, static_cast<char*>(to));
}

MemoryRows::MemoryRows(const std::filesystem::path& path, Tensor tensor)
    : CheckedRows(path, tensor.spec()), tensor_(std::move(tensor)) {}

void MemoryRows::read_rows(std::int64_t first, std::int64_t count, char* to) const {
  const auto begin = static_cast<std::size_t>(static_cast<std::uint64_t>(first) * row_bytes());
  std::memcpy(to, static_cast<const char*>(tensor_.raw()) + begin,
              static_cast<std::size_t>(static_cast<std::uint64_t>(count) * row_bytes()));
}

namespace {

// An .npy file in C order.
class NpyRows final : public CheckedRows {
 public:
  NpyRows(const std::filesystem::path& path, NpyLayout layout)
      : CheckedRows(path, layout.spec), file_(path), layout_(std::move(layout)) {}

 private:
  void read_rows(std::int64_t first, std::int64_t count, char* to) const override {
    const std::uint64_t bytes = static_cast<std::uint64_t>(count) * row_bytes();
    read_naming(file_, [&] {
      file_.read_at(layout_.begin + static_cast<std::uint64_t>(first) * row_bytes(), to, bytes);
      finish_npy_elements(layout_, to, static_cast<std::size_t>(bytes));
    });
  }

  InputFile file_;
  NpyLayout layout_;
};

}  // namespace
}  // namespace internal

std::unique_ptr<ArrayRows> open_npy_rows(const std::filesystem::path& path, const ReadLimits& limits) {
  using namespace internal;
  InputFile file(path);
  const auto pull = [&](char* to, std::size_t count) { file.read(to, count); };
  NpyLayout layout = read_naming(file, [&] { return pull_npy_header(file.size(), pull); });
  if (layout.fortran) return std::make_unique<MemoryRows>(path, load_npy(path, limits));
  return std::make_unique<NpyRows>(path, std::move(layout));
}

std::unique_ptr<ArrayRows> open_npz_rows(const std::filesystem::path& path, const std::string& member,
                                         const ReadLimits& limits) {
  return std::make_unique<internal::MemoryRows>(path, internal::load_npz_member(path, member, limits));
}

}  // namespace lockstep
