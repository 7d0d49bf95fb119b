// io/formats/tfrecord.h - files of TFRecords, TensorFlow's format for training data.
//
//   auto reader = open_tfrecord("train.tfrecord");              // also packed by gzip or zlib
//   std::string record;
//   while (reader->next(record)) use(parser.parse(record));     // io/formats/example.h
//
//   TfRecordWriter writer("train.tfrecord");
//   writer.append(record);
//   writer.commit();                                            // the file appears whole
//
// A record is a length (8 bytes), the masked CRC-32C of the length (4), the bytes, and their masked CRC-32C
// (4), little endian. Masked: rotated right by 15 bits, plus 0xA282EAD8, so that the checksum of data that
// holds checksums stays good. Both checksums are always verified.
//
// kAuto       gzip and zlib by their first bytes, unless these are a length with a good checksum
// damage      is Error(kDataLoss) with the number and the byte of the record. With ignore_errors it is
//             passed over and counted (RecordReader::dropped): a record whose data have a wrong checksum
//             by itself. After a wrong length, a record that is cut off and damage of the compression nobody
//             knows where the next record begins: the rest of the file is dropped, and counts once
// memory      a length beyond the end of the file is damage, and one above limits.memory_for(size of the
//             file) is refused (InvalidArgument, also with ignore_errors), before memory is taken for it.
//             Of limits.file_bytes nothing is made: no file is whole in memory
//
// Thread safety: one thread at a time for each reader and writer; append_tfrecord from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/io/formats/record_reader.h"

namespace lockstep {

struct TfRecordOptions {
  Compression compression = Compression::kAuto;
  bool ignore_errors = false;
  ReadLimits limits = {};
};
LOCKSTEP_API std::unique_ptr<RecordReader> open_tfrecord(const std::filesystem::path& path,
                                                         const TfRecordOptions& options = {});

// Appends the record to `out`, as it lies in an unpacked file.
LOCKSTEP_API void append_tfrecord(std::string& out, std::string_view record);

class LOCKSTEP_API TfRecordWriter {
 public:
  // kNone, kGzip or kZlib; kAuto: gzip if the name ends in ".gz".
  explicit TfRecordWriter(const std::filesystem::path& path, Compression compression = Compression::kAuto);
  ~TfRecordWriter();  // without commit() there is no file
  TfRecordWriter(const TfRecordWriter&) = delete;
  TfRecordWriter& operator=(const TfRecordWriter&) = delete;

  void append(std::string_view record);
  void commit();  // once; no append() after it

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
