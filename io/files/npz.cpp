// io/files/npz.cpp - named tensors in NumPy's .npz format: a zip file of .npy files.
#include "lockstep/io/files/npz.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <zlib.h>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/io/files/internal/npy_reader.h"
#include "lockstep/io/files/internal/raw_blocks.h"
#include "lockstep/io/files/npy.h"

namespace lockstep {

namespace {

using internal::ByteSource;
using internal::number_at;
using internal::put_number;

constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint32_t kCentralHeader = 0x02014b50;
constexpr std::uint32_t kEnd = 0x06054b50;
constexpr std::uint32_t kEnd64 = 0x06064b50;
constexpr std::uint32_t kEnd64Locator = 0x07064b50;
constexpr std::size_t kEndSize = 22;
constexpr std::size_t kEnd64LocatorSize = 20;
constexpr std::uint64_t kMaxRatio = 1032;  // of deflate: a match of 258 bytes in two bits
constexpr std::uint64_t kSize32 = 0xFFFFFFFF;
constexpr std::uint32_t kEncrypted = 1;
constexpr std::uint32_t kStored = 0;
constexpr std::uint32_t kDeflated = 8;
// Memory of an entry besides its bytes: its record in the list, the tensor's own record and its place in the
// map by name.
constexpr std::uint64_t kEntryMemory = 512;
constexpr std::uint32_t kFirstDay = 0x0021;  // 1980-01-01: the time of writing is nobody's business

[[noreturn]] void damaged_npz(const std::string& what) {
  throw Error(ErrorCode::kDataLoss, str("this is no whole .npz file: ", what));
}

// Bytes and little-endian numbers at checked offsets. Numbers come from a window that moves along with them,
// so that not every number is a read of the file.
class Reader {
 public:
  explicit Reader(const ByteSource& source) : source_(source) {}
  void read(std::uint64_t at, char* to, std::size_t size) const {
    check(at, size);
    source_.read(at, to, size);
  }
  std::string bytes(std::uint64_t at, std::size_t size) const {
    check(at, size);
    std::string bytes(size, '\0');
    source_.read(at, bytes.data(), size);
    return bytes;
  }
  std::uint64_t number(std::uint64_t at, std::size_t size) const {
    check(at, size);
    if (at < window_at_ || at + size > window_at_ + window_.size()) {
      window_at_ = at;
      window_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kWindow, source_.size() - at)));
      source_.read(at, window_.data(), window_.size());
    }
    return internal::number_at(window_, static_cast<std::size_t>(at - window_at_), size);
  }
  std::uint32_t u16(std::uint64_t at) const { return static_cast<std::uint32_t>(number(at, 2)); }
  std::uint32_t u32(std::uint64_t at) const { return static_cast<std::uint32_t>(number(at, 4)); }
  std::uint64_t u64(std::uint64_t at) const { return number(at, 8); }
  std::uint64_t size() const { return source_.size(); }

 private:
  static constexpr std::uint64_t kWindow = 1024;

  void check(std::uint64_t at, std::uint64_t size) const {
    if (at > source_.size() || size > source_.size() - at) damaged_npz("it points behind its own end");
  }

  const ByteSource& source_;
  mutable std::string window_;
  mutable std::uint64_t window_at_ = 0;
};

struct Entry {
  std::string name;
  std::uint32_t method = kStored;
  std::uint32_t crc = 0;
  std::uint64_t packed = 0;
  std::uint64_t unpacked = 0;
  std::uint64_t header = 0;  // where its local header lies
};

// Where the list of entries begins, and how many there are.
struct Directory {
  std::uint64_t at = 0;
  std::uint64_t entries = 0;
};

Directory find_directory(const Reader& file) {
  if (file.size() < kEndSize) damaged_npz("it is too short");
  const std::uint64_t last = file.size() - kEndSize;
  const std::uint64_t first = last > 0xFFFF ? last - 0xFFFF : 0;  // a comment may follow
  const std::string tail = file.bytes(first, static_cast<std::size_t>(file.size() - first));
  for (std::uint64_t at = last + 1; at-- > first;) {
    const auto in_tail = static_cast<std::size_t>(at - first);
    if (number_at<std::uint32_t>(tail, in_tail) != kEnd) continue;
    if (at + kEndSize + number_at<std::uint16_t>(tail, in_tail + 20) != file.size()) continue;
    Directory found{file.u32(at + 16), file.u16(at + 10)};
    if (found.at == kSize32 || found.entries == 0xFFFF) {
      if (at < kEnd64LocatorSize || file.u32(at - kEnd64LocatorSize) != kEnd64Locator) return found;
      const std::uint64_t end64 = file.u64(at - kEnd64LocatorSize + 8);
      if (file.u32(end64) != kEnd64) damaged_npz("the end of its list of entries is not where it says");
      found = {file.u64(end64 + 48), file.u64(end64 + 32)};
    }
    return found;
  }
  damaged_npz("its list of entries is missing");
}

// Sizes that need more than 32 bits, and only those, are in an extra field, in a fixed order.
void read_wide_sizes(const Reader& file, std::uint64_t at, std::uint64_t end, Entry& entry) {
  while (at + 4 <= end) {
    const std::uint64_t next = at + 4 + file.u16(at + 2);
    if (next > end) damaged_npz("an extra field is longer than its entry");
    if (file.u16(at) == 1) {
      std::uint64_t place = at + 4;
      for (std::uint64_t* size : {&entry.unpacked, &entry.packed, &entry.header}) {
        if (*size != kSize32) continue;
        if (place + 8 > next) damaged_npz("a size is missing");
        *size = file.u64(place);
        place += 8;
      }
    }
    at = next;
  }
}

std::vector<Entry> read_directory(const Reader& file, const ReadLimits& limits) {
  const Directory directory = find_directory(file);
  std::vector<Entry> entries;
  std::uint64_t at = directory.at, memory = 0, packed = 0;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (file.u32(at) != kCentralHeader) damaged_npz(str("entry ", i, " of its list does not begin as one"));
    const std::uint64_t name = file.u16(at + 28), extra = file.u16(at + 30), comment = file.u16(at + 32);
    Entry entry;
    entry.name = file.bytes(at + 46, name);
    entry.method = file.u16(at + 10);
    entry.crc = file.u32(at + 16);
    entry.packed = file.u32(at + 20);
    entry.unpacked = file.u32(at + 24);
    entry.header = file.u32(at + 42);
    read_wide_sizes(file, at + 46 + name, at + 46 + name + extra, entry);
    if ((file.u16(at + 8) & kEncrypted) != 0)
      throw InvalidArgument(str("entry '", printable(entry.name),
                                "' of the .npz file is encrypted; write it without a password"));
    if (entry.method != kStored && entry.method != kDeflated) {
      throw InvalidArgument(str("entry '", printable(entry.name), "' of the .npz file is packed by method ",
                                entry.method, "; stored (0) and deflated (8) entries can be read"));
    }
    if (entry.packed > file.size() || (entry.method == kStored && entry.unpacked != entry.packed) ||
        entry.unpacked / kMaxRatio > entry.packed + 1) {
      damaged_npz(
          str("entry '", printable(entry.name), "' claims ", entry.unpacked, " bytes from ", entry.packed));
    }
    // No overflow: the packed bytes are at most those of the file, the unpacked ones at most 1032 times that.
    packed += entry.packed;
    if (packed > file.size()) damaged_npz("its entries overlap");
    memory += entry.unpacked + name + kEntryMemory;
    internal::check_memory(memory, file.size(), ".npz", limits);
    entries.push_back(std::move(entry));
    at += 46 + name + extra + comment;
  }
  return entries;
}

// The bytes of an entry, unpacked, as they are asked for.
class EntryBytes {
 public:
  EntryBytes(const Reader& file, const Entry& entry, std::uint64_t begin)
      : file_(file), entry_(entry), at_(begin), end_(begin + entry.packed), left_(entry.unpacked) {
    if (end_ < begin || end_ > file.size()) damaged_npz("it points behind its own end");
    if (entry.method == kDeflated) LOCKSTEP_CHECK(inflateInit2(&stream_, -MAX_WBITS) == Z_OK);
  }
  ~EntryBytes() {
    if (entry_.method == kDeflated) inflateEnd(&stream_);
  }
  EntryBytes(const EntryBytes&) = delete;
  EntryBytes& operator=(const EntryBytes&) = delete;

  void pull(char* to, std::size_t bytes) {
    failed_ = true;
    // Piece by piece: zlib counts in 32 bits, and the checksum reads bytes that are still in the cache.
    for (left_ -= bytes; bytes > 0;) {
      const std::size_t piece = std::min(bytes, kPiece);
      if (entry_.method == kDeflated) {
        inflate_into(to, piece);
      } else {
        file_.read(at_, to, piece);
        at_ += piece;
      }
      crc_ = static_cast<std::uint32_t>(crc32_z(crc_, reinterpret_cast<const Bytef*>(to), piece));
      to += piece;
      bytes -= piece;
    }
    failed_ = false;
  }
  bool failed() const { return failed_; }  // the last pull() did not complete

  // Whether the whole entry is what the list of entries says. For that it reads the bytes that nobody has
  // pulled.
  bool are_whole() {
    std::string rest(static_cast<std::size_t>(std::min<std::uint64_t>(left_, kPiece)), '\0');
    while (left_ > 0) pull(rest.data(), static_cast<std::size_t>(std::min<std::uint64_t>(left_, kPiece)));
    if (entry_.method == kDeflated) check_end();
    return crc_ == entry_.crc;
  }

 private:
  static constexpr std::size_t kPiece = std::size_t{1} << 18U;

  [[noreturn]] void does_not_unpack() const {
    damaged_npz(str("entry '", printable(entry_.name), "' does not unpack to what it claims"));
  }
  // One step of zlib; reads more packed bytes first if it has none left.
  int step() {
    if (stream_.avail_in == 0 && at_ < end_) {
      packed_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(end_ - at_, kPiece)));
      file_.read(at_, packed_.data(), packed_.size());
      at_ += packed_.size();
      stream_.next_in = reinterpret_cast<Bytef*>(packed_.data());
      stream_.avail_in = static_cast<uInt>(packed_.size());
    }
    return inflate(&stream_, Z_NO_FLUSH);
  }
  void inflate_into(char* to, std::size_t bytes) {
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(bytes);
    while (stream_.avail_out > 0) {
      if (step() != Z_OK && stream_.avail_out > 0) does_not_unpack();
    }
  }
  // Throws if anything is left, packed or unpacked.
  void check_end() {
    Bytef more = 0;
    stream_.next_out = &more;
    stream_.avail_out = 1;
    int status = Z_OK;
    while (status == Z_OK && stream_.avail_out > 0) status = step();
    if (status != Z_STREAM_END || stream_.avail_out == 0 || stream_.avail_in > 0 || at_ != end_)
      does_not_unpack();
  }

  const Reader& file_;
  const Entry& entry_;
  std::uint64_t at_, end_;  // in the file
  std::uint64_t left_;      // of the unpacked bytes
  std::uint32_t crc_ = 0;
  bool failed_ = false;
  std::string packed_;
  z_stream stream_{};
};

std::uint32_t crc_of(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<z_size_t>(bytes.size())));
}

Tensor read_entry(const Reader& file, const Entry& entry) {
  if (file.u32(entry.header) != kLocalHeader)
    damaged_npz(str("entry '", printable(entry.name), "' is not where the list says"));
  const std::uint64_t begin = entry.header + 30 + file.u16(entry.header + 26) + file.u16(entry.header + 28);
  EntryBytes bytes(file, entry, begin);
  const auto check_whole = [&] {
    if (!bytes.are_whole()) damaged_npz(str("the checksum of entry '", printable(entry.name), "' is wrong"));
  };
  Tensor tensor;
  try {
    const auto pull = [&](char* to, std::size_t count) { bytes.pull(to, count); };
    tensor = internal::pull_npy(entry.unpacked, pull,
                                ReadLimits::unlimited());  // read_directory() has checked all entries
  } catch (const Error& error) {
    if (bytes.failed()) throw;
    check_whole();  // damage explains more than an error that it causes in the header
    throw_error(error.code(), str("entry '", printable(entry.name), "': ", error.message()), error.place());
  }
  check_whole();
  return tensor;
}

// Only the tensor of that name, or all.
std::map<std::string, Tensor> read_tensors(const ByteSource& source, const ReadLimits& limits,
                                           const std::string* only = nullptr) {
  internal::check_bytes(source.size(), ".npz", limits);
  const Reader file(source);
  std::map<std::string, Tensor> tensors;
  for (const Entry& entry : read_directory(file, limits)) {
    constexpr std::string_view kSuffix = ".npy";
    if (!entry.name.ends_with(kSuffix)) {
      throw InvalidArgument(str("entry '", printable(entry.name),
                                "' of the .npz file is no array: its name does not end in .npy"));
    }
    const std::string name = entry.name.substr(0, entry.name.size() - kSuffix.size());
    if (only != nullptr && name != *only) continue;
    if (tensors.contains(name)) damaged_npz(str("it has two entries '", printable(entry.name), "'"));
    tensors.emplace(name, read_entry(file, entry));
  }
  return tensors;
}

std::string deflated(const std::string& bytes) {
  z_stream stream{};
  LOCKSTEP_CHECK(
      deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, static_cast<uLong>(bytes.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const int status = deflate(&stream, Z_FINISH);
  packed.resize(packed.size() - stream.avail_out);
  deflateEnd(&stream);
  LOCKSTEP_CHECK(status == Z_STREAM_END);
  return packed;
}

// The part that both headers of an entry share.
void put_entry(std::string& bytes, const Entry& entry) {
  put_number(bytes, 20, 2);  // the version of the format that is needed
  put_number(bytes, 0, 2);   // flags
  put_number(bytes, entry.method, 2);
  put_number(bytes, 0, 2);  // time
  put_number(bytes, kFirstDay, 2);
  put_number(bytes, entry.crc, 4);
  put_number(bytes, entry.packed, 4);
  put_number(bytes, entry.unpacked, 4);
  put_number(bytes, entry.name.size(), 2);
  put_number(bytes, 0, 2);  // extra fields
}

void check_size(std::uint64_t bytes) {
  if (bytes < kSize32) return;
  throw InvalidArgument(
      "an .npz file of 4 GiB or more is not written; write the tensors as .npy, one by one");
}

}  // namespace

std::map<std::string, Tensor> read_npz(std::string_view bytes, const ReadLimits& limits) {
  return read_tensors(internal::MemorySource(bytes), limits);
}

std::map<std::string, Tensor> load_npz(const std::filesystem::path& path, const ReadLimits& limits) {
  using internal::InputFile;
  InputFile file(path, InputFile::Accepts::kAnything);
  if (!file.is_plain() || file.position() != 0) {
    const std::string bytes = file.read_rest(limits);
    return internal::read_naming(file, [&] { return read_npz(bytes, limits); });
  }
  file.check_size(limits);
  return internal::read_naming(file, [&] { return read_tensors(internal::FileSource(file), limits); });
}

Tensor internal::load_npz_member(const std::filesystem::path& path, const std::string& member,
                                 const ReadLimits& limits) {
  const InputFile file(path);
  file.check_size(limits);
  return read_naming(file, [&] {
    const auto tensors = read_tensors(FileSource(file), limits, &member);
    if (tensors.empty()) throw NotFound(str("the .npz file has no entry '", printable(member), ".npy'"));
    return tensors.begin()->second;
  });
}

std::string write_npz(const std::map<std::string, Tensor>& tensors, const NpzOptions& options) {
  if (tensors.size() >= 0xFFFF)
    throw InvalidArgument(str("an .npz file cannot hold ", tensors.size(), " tensors"));
  std::string bytes, directory;
  for (const auto& [name, tensor] : tensors) {
    Entry entry;
    entry.name = name + ".npy";
    if (entry.name.size() > 0xFFFF) throw InvalidArgument("the name of a tensor in an .npz file is too long");
    std::string content = write_npy(tensor);
    check_size(content.size());
    entry.crc = crc_of(content);
    entry.unpacked = content.size();
    if (options.deflate) {
      content = deflated(content);
      entry.method = kDeflated;
    }
    entry.packed = content.size();
    entry.header = bytes.size();
    check_size(bytes.size() + content.size());
    put_number(bytes, kLocalHeader, 4);
    put_entry(bytes, entry);
    bytes += entry.name;
    bytes += content;

    put_number(directory, kCentralHeader, 4);
    put_number(directory, 20, 2);  // the version that wrote it
    put_entry(directory, entry);
    put_number(directory, 0, 2);  // comment
    put_number(directory, 0, 2);  // disk
    put_number(directory, 0, 2);  // attributes
    put_number(directory, 0, 4);
    put_number(directory, entry.header, 4);
    directory += entry.name;
  }
  check_size(bytes.size() + directory.size() + kEndSize);
  const std::size_t at = bytes.size();
  bytes += directory;
  put_number(bytes, kEnd, 4);
  put_number(bytes, 0, 4);  // disks
  put_number(bytes, tensors.size(), 2);
  put_number(bytes, tensors.size(), 2);
  put_number(bytes, directory.size(), 4);
  put_number(bytes, at, 4);
  put_number(bytes, 0, 2);  // comment
  return bytes;
}

}  // namespace lockstep
