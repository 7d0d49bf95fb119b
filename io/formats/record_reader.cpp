// io/formats/record_reader.cpp - the records of one file: positions, and errors that stay.
#include "lockstep/io/formats/record_reader.h"

#include "lockstep/io/formats/internal/stream_reader.h"

namespace lockstep {

RecordReader::~RecordReader() = default;
std::uint64_t RecordReader::dropped() const { return 0; }

namespace internal {

bool StreamReader::next(std::string& record) {
  if (failure_) throw_error(failure_->code(), failure_->message(), failure_->place());
  try {
    if (!read_record(record)) return false;
  } catch (const Error& error) {
    failure_ = error;
    throw;
  } catch (...) {
    failure_ = FailedPrecondition(
        str(stream_.path().string(), ": reading stopped inside a record; call seek() first"));
    throw;
  }
  position_.offset = stream_.offset();
  ++position_.records;
  return true;
}

void StreamReader::seek(const ReadPosition& wanted) {
  ReadPosition position = wanted;
  if (position == ReadPosition{}) position.offset = begin_;
  try {
    if (failure_) stream_.rewind();
    stream_.seek(position.offset);
  } catch (const Error& error) {
    failure_ = error;
    throw;
  }
  failure_.reset();
  position_ = position;
  moved();
}

std::uint64_t StreamReader::bytes_read() const { return stream_.file_offset(); }

std::string StreamReader::place(std::uint64_t offset) const {
  return str(stream_.path().string(), ": record ", position_.records, " at byte ", offset,
             stream_.is_packed() ? " of the unpacked contents" : "");
}

void StreamReader::damaged(std::uint64_t offset, std::string_view what) const {
  throw Error(ErrorCode::kDataLoss, str(place(offset), ": ", what));
}

}  // namespace internal
}  // namespace lockstep
