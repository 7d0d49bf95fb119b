// io/files/internal/input_file.h - a file that is read from front to back, piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/core/read_limits.h"

namespace lockstep::internal {

class InputFile {
 public:
  enum class Accepts : std::uint8_t { kPlainFiles, kAnything };
  // Throws as read_file (io/files/files.h).
  explicit InputFile(std::filesystem::path path, Accepts accepts = Accepts::kPlainFiles);
  static InputFile standard_input();  // stays open
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  bool is_plain() const { return plain_; }
  std::uint64_t size() const { return size_; }  // of a plain file, when it was opened
  std::uint64_t position() const { return position_; }
  // Reads exactly `bytes` bytes. Throws Error(kDataLoss) if the file has become shorter.
  void read(char* to, std::uint64_t bytes);
  // The same from another place of a plain file; the position stays.
  void read_at(std::uint64_t at, char* to, std::uint64_t bytes) const;
  // The next bytes of a plain file, fewer at its end; the position stays.
  std::string peek(std::size_t bytes) const;
  // Throws InvalidArgument for a plain file above limits.file_bytes.
  void check_size(const ReadLimits& limits) const;
  // Reads until the end. Throws InvalidArgument above the limits; for a plain file before memory is
  // allocated.
  std::string read_rest(const ReadLimits& limits);

 private:
  InputFile(int descriptor, std::filesystem::path name);
  void look();
  std::string read_up_to(std::uint64_t known, std::uint64_t most, std::string_view limit);
  void close();

  std::filesystem::path path_;
  int descriptor_ = -1;
  bool owned_ = true;
  bool plain_ = false;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
};

}  // namespace lockstep::internal
