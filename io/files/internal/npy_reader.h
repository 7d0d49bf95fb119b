// io/files/internal/npy_reader.h - .npy and .npz files, read on demand straight into their tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/tensor.h"
#include "lockstep/io/files/internal/input_file.h"

namespace lockstep::internal {

// Writes exactly the next `bytes` bytes to `to`; never asked for more than there are.
using PullBytes = std::function<void(char* to, std::size_t bytes)>;

// An .npy file of `size` bytes, pulled once from front to back; fails as read_npy (io/files/npy.h). Besides
// the tensor it takes no memory that grows with it. If it throws, the rest has not been pulled.
Tensor pull_npy(std::uint64_t size, const PullBytes& pull, const ReadLimits& limits);

// What the header of an .npy file says of the elements, which fill the rest of the file.
struct NpyLayout {
  TensorSpec spec;
  bool fortran = false;     // in an order that is not C's
  bool swap = false;        // in the other order of bytes
  std::uint64_t begin = 0;  // where they begin in the file
};
// Pulls the header, and no more.
NpyLayout pull_npy_header(std::uint64_t size, const PullBytes& pull);
// Elements as they lie in the file become those of a tensor. Throws Error(kDataLoss) for a bool that is none.
void finish_npy_elements(const NpyLayout& layout, char* to, std::size_t bytes);

// The tensor "x" of an .npz file's entry "x.npy"; the others are not unpacked. NotFound if there is none.
Tensor load_npz_member(const std::filesystem::path& path, const std::string& member,
                       const ReadLimits& limits);

// Throw InvalidArgument for a file that is too large, and for one of `size` bytes that wants too much memory.
// `what` is its kind: ".npy".
void check_bytes(std::uint64_t size, std::string_view what, const ReadLimits& limits);
void check_memory(std::uint64_t wanted, std::uint64_t size, std::string_view what, const ReadLimits& limits);

// Bytes that can be read from any offset. The bytes asked for must be there.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  virtual void read(std::uint64_t at, char* to, std::size_t bytes) const = 0;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t at, char* to, std::size_t bytes) const override {
    bytes_.copy(to, bytes, static_cast<std::size_t>(at));
  }

 private:
  std::string_view bytes_;
};

class FileSource final : public ByteSource {
 public:
  explicit FileSource(const InputFile& file) : file_(file) {}
  std::uint64_t size() const override { return file_.size(); }
  void read(std::uint64_t at, char* to, std::size_t bytes) const override { file_.read_at(at, to, bytes); }

 private:
  const InputFile& file_;
};

// The result of `read`; errors get the file's name.
template <class Read>
auto read_naming(const InputFile& file, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw_error(error.code(), str(file.path().string(), ": ", error.message()), error.place());
  }
}

}  // namespace lockstep::internal
