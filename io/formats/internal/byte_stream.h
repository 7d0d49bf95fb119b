// io/formats/internal/byte_stream.h - the contents of a file in order, unpacked if they are packed.
//
//   ByteStream stream(path, Compression::kAuto, begins_as_text);
//   std::string_view some = stream.peek(12);    // fewer at the end of the contents
//   stream.skip(some.size());
//   std::size_t count = stream.read(to, 1000);  // likewise
//
// A gzip file may have several members; all are read. Anything else behind the last one is damage. Besides
// two buffers of kBuffer bytes and the 48 KiB of zlib it takes no memory, whatever the file claims.
//
// failure   as io/formats/record_reader.h; damage is Error(kDataLoss) that names the file and the byte of
//           the file, as it lies on the disk, at which it was noticed. After an error: rewind().
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <zlib.h>

#include "lockstep/core/base/export.h"
#include "lockstep/io/files/internal/input_file.h"
#include "lockstep/io/formats/record_reader.h"

namespace lockstep::internal {

class LOCKSTEP_API ByteStream {
 public:
  static constexpr std::size_t kBuffer = std::size_t{256} << 10U;

  // Says whether a plain file of the format may begin so. It is asked, with up to 16 bytes, about files that
  // begin like gzip or zlib: some plain files do.
  using MayBePlain = bool (*)(std::string_view first);
  static bool begins_as_text(std::string_view first);  // not with the mark of gzip

  ByteStream(const std::filesystem::path& path, Compression compression, MayBePlain may_be_plain);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  Compression compression() const { return compression_; }  // not kAuto
  bool is_packed() const { return compression_ != Compression::kNone; }
  std::uint64_t file_bytes() const { return file_.size(); }

  // At least the next `bytes` bytes of the contents (at most kBuffer), fewer only at the end. Valid until the
  // next call.
  std::string_view peek(std::size_t bytes) {
    if (end_ - begin_ < bytes) fill(bytes);
    return {buffer_.data() + begin_, end_ - begin_};
  }
  // Passes over bytes that peek() gave.
  void skip(std::size_t bytes) { begin_ += bytes; }
  // Reads `bytes` bytes, fewer only at the end.
  std::size_t read(char* to, std::size_t bytes);
  // Appends `bytes` bytes to `to`, fewer only at the end; says how many. The memory grows with what is there.
  std::size_t append_to(std::string& to, std::uint64_t bytes);

  // Of the contents, unpacked: where the next byte comes from.
  std::uint64_t offset() const { return produced_ - (end_ - begin_); }
  // The same in the file; for a packed one, how far it was unpacked.
  std::uint64_t file_offset() const;
  // No more bytes than that can follow. Exact unless the file is packed.
  std::uint64_t most_left() const;
  void rewind();  // also after an error
  // Throws FailedPrecondition if the contents end before.
  void seek(std::uint64_t offset);

 private:
  void fill(std::size_t bytes);
  std::size_t produce(char* to, std::size_t bytes);
  std::size_t unpack(char* to, std::size_t bytes);
  bool refill();
  [[noreturn]] void damaged(std::string_view what) const;
  [[noreturn]] void too_short(std::uint64_t offset) const;

  InputFile file_;
  Compression compression_;
  std::string buffer_;               // of the contents
  std::size_t begin_ = 0, end_ = 0;  // what of it was not read
  std::uint64_t produced_ = 0;       // the offset of buffer_[end_] in the contents
  std::uint64_t file_at_ = 0;        // where to read on in the file
  std::string packed_;               // of the file
  z_stream zlib_ = {};
  bool between_ = false;  // a member has ended, and no other one has begun
  bool ended_ = false;
};

}  // namespace lockstep::internal
