// io/formats/byte_stream.cpp - the contents of a file in order, unpacked if they are packed.
#include "lockstep/io/formats/internal/byte_stream.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

constexpr std::uint64_t kMostUnpacked = 1032;               // by deflate: a match of 258 bytes in two bits
constexpr std::uint64_t kHeldBack = 64 << 10U;              // what zlib may still hold of bytes that it took
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30U;  // zlib counts in 32 bits
constexpr std::string_view kGzipMark = "\x1f\x8b";

bool begins_as_zlib(std::string_view first) {
  if (first.size() < 2) return false;
  const unsigned method = static_cast<unsigned char>(first[0]), flags = static_cast<unsigned char>(first[1]);
  const bool has_dictionary = (flags & 0x20U) != 0;
  return (method & 0x0FU) == 8 && method >> 4U <= 7 && (method * 256 + flags) % 31 == 0 && !has_dictionary;
}

Compression found_compression(const InputFile& file, ByteStream::MayBePlain may_be_plain) {
  const std::string first = file.peek(16);
  const bool gzip = std::string_view(first).starts_with(kGzipMark);
  if (!gzip && !begins_as_zlib(first)) return Compression::kNone;
  if (may_be_plain(first)) return Compression::kNone;
  return gzip ? Compression::kGzip : Compression::kZlib;
}

}  // namespace

bool ByteStream::begins_as_text(std::string_view first) { return !first.starts_with(kGzipMark); }

ByteStream::ByteStream(const std::filesystem::path& path, Compression compression, MayBePlain may_be_plain)
    : file_(path), compression_(compression) {
  if (compression_ == Compression::kAuto) compression_ = found_compression(file_, may_be_plain);
  if (!is_packed()) return;
  const int window = MAX_WBITS + (compression_ == Compression::kGzip ? 16 : 0);
  const int status = inflateInit2(&zlib_, window);
  if (status == Z_MEM_ERROR) throw std::bad_alloc();
  LOCKSTEP_CHECK(status == Z_OK);
}

ByteStream::~ByteStream() {
  if (is_packed()) inflateEnd(&zlib_);
}

void ByteStream::damaged(std::string_view what) const {
  throw Error(ErrorCode::kDataLoss, str(path().string(), ": byte ", file_offset(), ": ", what));
}

void ByteStream::too_short(std::uint64_t offset) const {
  throw FailedPrecondition(str(path().string(), ": cannot go to byte ", offset,
                               " of the contents, which have only ", produced_,
                               "; the position belongs to another file, or the file was replaced"));
}

std::uint64_t ByteStream::file_offset() const { return is_packed() ? file_at_ - zlib_.avail_in : offset(); }

std::uint64_t ByteStream::most_left() const {
  const std::uint64_t buffered = end_ - begin_;
  if (!is_packed()) return buffered + (file_.size() - file_at_);
  if (ended_) return buffered;
  return buffered + kHeldBack + (file_.size() - file_at_ + zlib_.avail_in) * kMostUnpacked;
}

// --- reading

void ByteStream::fill(std::size_t bytes) {
  LOCKSTEP_CHECK(bytes <= kBuffer);
  if (buffer_.empty()) {
    // Small files get a small buffer.
    const std::uint64_t known = is_packed() ? kBuffer : std::max<std::uint64_t>(file_.size(), 1);
    buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(known, kBuffer)));
  }
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  while (end_ < std::min(bytes, buffer_.size())) {
    const std::size_t count = produce(buffer_.data() + end_, buffer_.size() - end_);
    if (count == 0) return;
    end_ += count;
  }
}

std::size_t ByteStream::read(char* to, std::size_t bytes) {
  const std::size_t buffered = std::min(bytes, end_ - begin_);
  if (buffered > 0) std::memcpy(to, buffer_.data() + begin_, buffered);
  begin_ += buffered;
  std::size_t done = buffered;
  if (bytes - done < kBuffer / 4) {
    while (done < bytes) {  // through the buffer: the next reads will be small, too
      const std::size_t there = std::min(bytes - done, peek(1).size());
      if (there == 0) break;
      std::memcpy(to + done, buffer_.data() + begin_, there);
      begin_ += there;
      done += there;
    }
    return done;
  }
  begin_ = end_ = 0;  // what follows passes the buffer by
  while (done < bytes) {
    const std::size_t count = produce(to + done, bytes - done);
    if (count == 0) break;
    done += count;
  }
  return done;
}

std::size_t ByteStream::append_to(std::string& to, std::uint64_t bytes) {
  const std::size_t before = to.size();
  if (!is_packed()) {
    const std::uint64_t there = std::min(bytes, most_left());
    to.resize(before + static_cast<std::size_t>(there));
    return read(to.data() + before, static_cast<std::size_t>(there));
  }
  // Nobody knows how many bytes there are: in pieces, each as large as all before it.
  std::uint64_t left = bytes;
  while (left > 0) {
    const std::size_t at = to.size();
    const std::size_t piece = std::max(kBuffer, at - before);
    to.resize(at + static_cast<std::size_t>(std::min<std::uint64_t>(left, piece)));
    const std::size_t count = read(to.data() + at, to.size() - at);
    left -= count;
    if (at + count == to.size()) continue;
    to.resize(at + count);
    break;
  }
  return to.size() - before;
}

// Writes some of the next bytes of the contents to `to`, none only at the end.
std::size_t ByteStream::produce(char* to, std::size_t bytes) {
  std::size_t count = 0;
  if (is_packed()) {
    count = unpack(to, std::min(bytes, kMostAtOnce));
  } else {
    count = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, file_.size() - file_at_));
    file_.read_at(file_at_, to, count);
    file_at_ += count;
  }
  produced_ += count;
  return count;
}

std::size_t ByteStream::unpack(char* to, std::size_t bytes) {
  zlib_.next_out = reinterpret_cast<Bytef*>(to);
  zlib_.avail_out = static_cast<uInt>(bytes);
  while (!ended_ && zlib_.avail_out == bytes) {
    const bool has_more = zlib_.avail_in > 0 || refill();
    if (between_) {
      if (!has_more) {
        ended_ = true;
        break;
      }
      if (compression_ == Compression::kZlib) damaged("something follows the packed contents");
      LOCKSTEP_CHECK(inflateReset(&zlib_) == Z_OK);
      between_ = false;
    }
    // Without more bytes too: it may hold some back.
    const int status = inflate(&zlib_, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
      between_ = true;
    } else if (status == Z_BUF_ERROR || status == Z_OK) {
      if (!has_more && zlib_.avail_out == bytes) damaged("the file ends inside its packed contents");
    } else if (status == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (zlib_.avail_out == bytes) {  // else what comes before the damage goes first
      damaged(str("the packed contents are damaged (", zlib_.msg == nullptr ? "no data" : zlib_.msg, ")"));
    }
  }
  return bytes - zlib_.avail_out;
}

bool ByteStream::refill() {
  const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kBuffer, file_.size() - file_at_));
  if (count == 0) return false;
  if (packed_.size() < count) packed_.resize(count);
  file_.read_at(file_at_, packed_.data(), count);
  file_at_ += count;
  zlib_.next_in = reinterpret_cast<Bytef*>(packed_.data());
  zlib_.avail_in = static_cast<uInt>(count);
  return true;
}

// --- going elsewhere

void ByteStream::rewind() {
  begin_ = end_ = 0;
  produced_ = file_at_ = 0;
  between_ = ended_ = false;
  if (!is_packed()) return;
  zlib_.avail_in = 0;
  LOCKSTEP_CHECK(inflateReset(&zlib_) == Z_OK);
}

void ByteStream::seek(std::uint64_t offset) {
  if (offset <= produced_ && produced_ - offset <= end_) {  // still in the buffer
    begin_ = end_ - static_cast<std::size_t>(produced_ - offset);
    return;
  }
  if (!is_packed()) {
    if (offset > file_.size()) {
      produced_ = file_.size();
      begin_ = end_ = 0;
      file_at_ = produced_;
      too_short(offset);
    }
    begin_ = end_ = 0;
    produced_ = file_at_ = offset;
    return;
  }
  if (offset < produced_) rewind();
  while (this->offset() < offset) {
    const std::string_view some = peek(1);
    if (some.empty()) too_short(offset);
    skip(static_cast<std::size_t>(std::min<std::uint64_t>(some.size(), offset - this->offset())));
  }
}

}  // namespace lockstep::internal
