// io/internal/input_file.h - a file that is read from front to back, piece by piece.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep::internal {

class InputFile {
 public:
  // Throws as read_file (io/files.h); anything but a plain file is refused.
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::uint64_t size() const { return size_; }  // when it was opened
  std::uint64_t position() const { return position_; }
  // Exactly so many bytes. Throws Error(kDataLoss) where the file has become shorter.
  void read(char* to, std::uint64_t bytes);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
};

}  // namespace lockstep::internal
