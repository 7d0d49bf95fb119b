// io/formats/fixed_length.cpp - files of records that all have the same number of bytes.
#include "lockstep/io/formats/fixed_length.h"

#include <string>

#include "lockstep/core/error.h"
#include "lockstep/io/formats/internal/stream_reader.h"

namespace lockstep {
namespace {

using internal::ByteStream;

class FixedLengthReader final : public internal::StreamReader {
 public:
  FixedLengthReader(const std::filesystem::path& path, const FixedLengthOptions& options)
      : StreamReader(path, options.compression, ByteStream::begins_as_text),
        record_bytes_(options.record_bytes),
        footer_bytes_(options.footer_bytes) {
    if (record_bytes_ == 0)
      throw InvalidArgument("FixedLengthOptions::record_bytes is 0; say how long a record is");
    if (stream().is_packed()) {
      if (footer_bytes_ >= ByteStream::kBuffer) {
        throw InvalidArgument(str(path.string(), ": a footer of ", footer_bytes_,
                                  " bytes is passed over in plain files only; unpack the file"));
      }
    } else {
      check_size(options);
    }
    try {
      stream().seek(options.header_bytes);
    } catch (const FailedPrecondition&) {
      no_header(options.header_bytes);
    }
    begin_here();
  }

 private:
  void check_size(const FixedLengthOptions& options) {
    std::uint64_t left = stream().file_bytes();
    if (options.header_bytes > left || footer_bytes_ > left - options.header_bytes)
      no_header(options.header_bytes);
    left -= options.header_bytes + footer_bytes_;
    if (left % record_bytes_ == 0) return;
    throw Error(ErrorCode::kDataLoss, str(stream().path().string(), ": between header and footer it has ",
                                          left, " bytes, which are ", left / record_bytes_, " records of ",
                                          record_bytes_, " bytes and ", left % record_bytes_, " more"));
  }
  [[noreturn]] void no_header(std::uint64_t header_bytes) const {
    throw Error(ErrorCode::kDataLoss, str(stream().path().string(), ": it is shorter than the header of ",
                                          header_bytes, " bytes and the footer of ", footer_bytes_));
  }

  bool read_record(std::string& record) override {
    const std::uint64_t begin = stream().offset();
    if (stream().is_packed()) {
      // More than the footer has to follow.
      const std::size_t wanted = static_cast<std::size_t>(footer_bytes_ + 1);
      const std::size_t seen = stream().peek(wanted).size();
      if (seen < footer_bytes_) cut_off(begin, seen);
      if (seen == footer_bytes_) return false;
    } else if (stream().most_left() <= footer_bytes_) {
      return false;
    }
    record.clear();
    const std::size_t there = stream().append_to(record, record_bytes_);
    if (there < record_bytes_) cut_off(begin, there);
    if (stream().is_packed() && footer_bytes_ > 0) {
      const std::size_t behind = stream().peek(static_cast<std::size_t>(footer_bytes_)).size();
      if (behind < footer_bytes_) cut_off(begin, there + behind);
    }
    return true;
  }
  [[noreturn]] void cut_off(std::uint64_t begin, std::uint64_t there) const {
    damaged(begin, str("the file ends after ", there, " bytes; a record has ", record_bytes_, ", the footer ",
                       footer_bytes_));
  }

  std::uint64_t record_bytes_, footer_bytes_;
};

}  // namespace

std::unique_ptr<RecordReader> open_fixed_length(const std::filesystem::path& path,
                                                const FixedLengthOptions& options) {
  return std::make_unique<FixedLengthReader>(path, options);
}

}  // namespace lockstep
