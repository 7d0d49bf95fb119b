// io/formats/tfrecord.cpp - files of TFRecords: their framing, a reader and a writer.
#include "lockstep/io/formats/tfrecord.h"

#include <array>
#include <bit>
#include <limits>
#include <new>
#include <optional>

#include <zlib.h>

#include "lockstep/core/error.h"
#include "lockstep/io/files/crc32c.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/files/internal/raw_blocks.h"
#include "lockstep/io/formats/internal/stream_reader.h"

namespace lockstep {
namespace {

using internal::ByteStream;
using internal::number_at;

constexpr std::size_t kLengthBytes = 8, kSumBytes = 4, kHeadBytes = kLengthBytes + kSumBytes;

std::uint32_t masked_sum(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U; }

// The first bytes of a record: a length, and its checksum.
bool is_record_head(std::string_view first) {
  return first.size() >= kHeadBytes &&
         number_at<std::uint32_t>(first, kLengthBytes) == masked_sum(first.substr(0, kLengthBytes));
}

class TfRecordReader final : public internal::StreamReader {
 public:
  TfRecordReader(const std::filesystem::path& path, const TfRecordOptions& options)
      : StreamReader(path, options.compression, is_record_head),
        ignore_errors_(options.ignore_errors),
        most_(options.limits.memory_for(stream().file_bytes())) {}

 private:
  void moved() override { rest_dropped_ = false; }

  bool read_record(std::string& record) override {
    while (!rest_dropped_) {
      try {
        switch (read_one(record)) {
          case Found::kEnd: return false;
          case Found::kRecord: return true;
          case Found::kDamaged: drop(); break;
        }
      } catch (const Error& error) {
        if (!ignore_errors_ || error.code() != ErrorCode::kDataLoss) throw;
        drop();
        rest_dropped_ = true;
      }
    }
    return false;
  }

  enum class Found : std::uint8_t { kEnd, kRecord, kDamaged };

  // kDamaged with ignore_errors only, and the stream is at the next record. Throws if it cannot go there.
  Found read_one(std::string& record) {
    const std::uint64_t begin = stream().offset();
    const std::string_view head = stream().peek(kHeadBytes);
    if (head.empty()) return Found::kEnd;
    if (head.size() < kHeadBytes)
      damaged(begin, str("the file ends ", head.size(), " bytes into its length"));
    if (!is_record_head(head)) {
      damaged(begin,
              "the checksum of its length is wrong: this is no file of TFRecords, or it is damaged here");
    }
    const auto length = number_at<std::uint64_t>(head, 0);
    stream().skip(kHeadBytes);
    const std::uint64_t left = stream().most_left();
    if (left < kSumBytes || length > left - kSumBytes) cut_off(begin, length, left);
    if (length > most_) {
      throw InvalidArgument(str(place(begin), ": it has ", length, " bytes, more than the limit of ", most_,
                                " for a record of this file; whoever trusts the file raises "
                                "ReadLimits::base_bytes in C++, --read-limit on the command line"));
    }
    const std::uint32_t wanted = read_contents(record, begin, length);
    if (wanted == masked_sum(record)) return Found::kRecord;
    if (ignore_errors_) return Found::kDamaged;
    damaged(begin, str("the checksum of its ", length, " bytes is wrong"));
  }

  // Returns the checksum that follows.
  std::uint32_t read_contents(std::string& record, std::uint64_t begin, std::uint64_t length) {
    if (length <= ByteStream::kBuffer - kSumBytes) {  // most records: one copy, out of the buffer
      const auto size = static_cast<std::size_t>(length);
      const std::string_view both = stream().peek(size + kSumBytes);
      if (both.size() < size + kSumBytes) cut_off(begin, length, both.size());
      record.assign(both.substr(0, size));
      const auto sum = number_at<std::uint32_t>(both, size);
      stream().skip(size + kSumBytes);
      return sum;
    }
    record.clear();
    const std::size_t there = stream().append_to(record, length);
    std::array<char, kSumBytes> sum{};
    const std::size_t of_sum = there < length ? 0 : stream().read(sum.data(), kSumBytes);
    if (of_sum < kSumBytes) cut_off(begin, length, there + of_sum);
    return number_at<std::uint32_t>({sum.data(), kSumBytes}, 0);
  }

  [[noreturn]] void cut_off(std::uint64_t begin, std::uint64_t length, std::uint64_t left) const {
    damaged(begin, str("it claims ", length, " bytes and a checksum of ", kSumBytes,
                       ", and the file ends after ", stream().is_packed() ? "at most " : "", left));
  }

  bool ignore_errors_;
  std::uint64_t most_;
  bool rest_dropped_ = false;
};

}  // namespace

std::unique_ptr<RecordReader> open_tfrecord(const std::filesystem::path& path,
                                            const TfRecordOptions& options) {
  return std::make_unique<TfRecordReader>(path, options);
}

void append_tfrecord(std::string& out, std::string_view record) {
  const std::size_t begin = out.size();
  internal::put_number(out, std::uint64_t{record.size()});
  internal::put_number(out, masked_sum(std::string_view(out).substr(begin)));
  out += record;
  internal::put_number(out, masked_sum(record));
}

// --- the writer

struct TfRecordWriter::State {
  static constexpr std::size_t kFull = std::size_t{256} << 10U;

  State(const std::filesystem::path& path, Compression how) : file(path), compression(how) {
    if (compression == Compression::kAuto)
      compression = path.extension() == ".gz" ? Compression::kGzip : Compression::kNone;
    if (compression == Compression::kNone) return;
    const int window = MAX_WBITS + (compression == Compression::kGzip ? 16 : 0);
    const int status = deflateInit2(&zlib, Z_DEFAULT_COMPRESSION, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY);
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    LOCKSTEP_CHECK(status == Z_OK);
  }
  ~State() {
    if (compression != Compression::kNone) deflateEnd(&zlib);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void write_out(int flush) {
    if (compression == Compression::kNone) {
      file.append(waiting);
      waiting.clear();
      return;
    }
    LOCKSTEP_CHECK(waiting.size() <= std::numeric_limits<uInt>::max());
    packed.resize(kFull);
    zlib.next_in = reinterpret_cast<Bytef*>(waiting.data());
    zlib.avail_in = static_cast<uInt>(waiting.size());
    do {
      zlib.next_out = reinterpret_cast<Bytef*>(packed.data());
      zlib.avail_out = static_cast<uInt>(packed.size());
      LOCKSTEP_CHECK(deflate(&zlib, flush) != Z_STREAM_ERROR);
      file.append(std::string_view(packed).substr(0, packed.size() - zlib.avail_out));
    } while (zlib.avail_out == 0);
    waiting.clear();
  }

  WholeFile file;
  Compression compression;
  std::string waiting, packed;
  z_stream zlib = {};
};

TfRecordWriter::TfRecordWriter(const std::filesystem::path& path, Compression compression)
    : state_(std::make_unique<State>(path, compression)) {}
TfRecordWriter::~TfRecordWriter() = default;

void TfRecordWriter::append(std::string_view record) {
  // zlib counts in 32 bits. Larger records than this go in the unpacked form only.
  constexpr std::size_t kMostPacked = std::size_t{1} << 31U;
  if (state_->compression != Compression::kNone && record.size() > kMostPacked) {
    throw InvalidArgument(
        str("a record of ", record.size(), " bytes is not packed; write the file with Compression::kNone"));
  }
  append_tfrecord(state_->waiting, record);
  if (state_->waiting.size() >= State::kFull) state_->write_out(Z_NO_FLUSH);
}

void TfRecordWriter::commit() {
  state_->write_out(Z_FINISH);
  state_->file.commit();
}

}  // namespace lockstep
