// io/formats/internal/stream_reader.h - what the readers of records have in common.
//
// A format derives from it and says how one record is read. It keeps the position, and an error until seek().
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/io/formats/internal/byte_stream.h"
#include "lockstep/io/formats/record_reader.h"

namespace lockstep::internal {

class StreamReader : public RecordReader {
 public:
  bool next(std::string& record) final;
  ReadPosition position() const final { return position_; }
  void seek(const ReadPosition& position) final;
  std::uint64_t dropped() const final { return dropped_; }
  std::uint64_t bytes_read() const final;

 protected:
  StreamReader(const std::filesystem::path& path, Compression compression,
               ByteStream::MayBePlain may_be_plain)
      : stream_(path, compression, may_be_plain) {}

  // Reads the record that begins at the stream's offset; false if there is none.
  virtual bool read_record(std::string& record) = 0;
  // The stream was moved to another record.
  virtual void moved() {}

  ByteStream& stream() { return stream_; }
  const ByteStream& stream() const { return stream_; }
  // The first record begins here: after a header, which the position counts.
  void begin_here() { position_.offset = begin_ = stream_.offset(); }
  void drop() { ++dropped_; }
  // "train.tfrecord: record 17 at byte 1234", for errors. Records count from 0.
  std::string place(std::uint64_t offset) const;
  [[noreturn]] void damaged(std::uint64_t offset, std::string_view what) const;

 private:
  ByteStream stream_;
  std::uint64_t begin_ = 0;  // of the first record
  ReadPosition position_;
  std::uint64_t dropped_ = 0;
  std::optional<Error> failure_;
};

}  // namespace lockstep::internal
