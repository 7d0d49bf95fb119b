// io/formats/record_reader.h - the records of one file, one after another.
//
//   auto reader = open_tfrecord("train.tfrecord");
//   std::string record;                                  // its memory is used again for each record
//   while (reader->next(record)) use(record);
//
// A position says how far a file was read. It can be stored, and reading goes on from there, also in another
// process:
//
//   ReadPosition at = reader->position();
//   reader->seek(at);                                    // next() gives the record after it
//
// Readers are made by open_tfrecord, open_text_lines, open_fixed_length and open_csv. They read plain files
// and never hold more of one than a record and a buffer. A file of any size can be read; one that shrinks
// while it is read is damaged.
//
// failure   NotFound, FailedPrecondition or Error(kUnavailable) as in io/files/files.h; Error(kDataLoss) for
//           damage, with the file and the byte; InvalidArgument for a record above the limits. After an
//           error, next() throws the same one again until seek() is called.
//
// Thread safety: one thread at a time for each reader.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/base/export.h"

namespace lockstep {

// How the bytes of a file are packed.
enum class Compression : std::uint8_t {
  kAuto,  // by the first bytes; each format says what it recognises
  kNone,
  kZlib,
  kGzip,  // also several gzip files one after another
};

// Where the next record begins: enough to go on reading there.
struct ReadPosition {
  std::uint64_t offset = 0;   // bytes of the contents, unpacked
  std::uint64_t records = 0;  // read so far
  friend bool operator==(const ReadPosition&, const ReadPosition&) = default;
};

class LOCKSTEP_API RecordReader {
 public:
  RecordReader() = default;
  virtual ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  // The next record; false at the end.
  virtual bool next(std::string& record) = 0;
  // After the last record that next() gave.
  virtual ReadPosition position() const = 0;
  // Goes to a position that position() gave for the same file; ReadPosition{} is the beginning. A file that is too short for it is refused
  // (FailedPrecondition). A packed file is unpacked up to the position, from its beginning if that lies
  // before the present one.
  virtual void seek(const ReadPosition& position) = 0;
  // Damaged records that were passed over since the reader was made; 0 without ignore_errors.
  virtual std::uint64_t dropped() const;
  // Bytes of the file, as it lies on the disk: up to the last record, or, of a packed file, as far as it was
  // unpacked. For progress: compare it with the size of the file.
  virtual std::uint64_t bytes_read() const = 0;
};

}  // namespace lockstep
