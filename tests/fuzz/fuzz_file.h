// tests/fuzz/fuzz_file.h - the bytes of an input as a file, for readers that read files.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/io/formats/record_reader.h"

namespace lockstep::testing {

inline void finding(const char* what) {
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

// The same file each time, gone with the process.
inline const std::filesystem::path& fuzz_file(const std::uint8_t* data, std::size_t size) {
  struct File {
    File() : path(std::filesystem::temp_directory_path() / str("lockstep-fuzz-", ::getpid())) {}
    ~File() { std::remove(path.c_str()); }
    std::filesystem::path path;
  };
  static const File file;
  std::FILE* const open = std::fopen(file.path.c_str(), "wb");
  if (open == nullptr || std::fwrite(data, 1, size, open) != size || std::fclose(open) != 0)
    finding("the file cannot be written");
  return file.path;
}

// Every record, and then those after the middle again: they have to be the same.
inline std::vector<std::string> read_twice(RecordReader& reader) {
  std::vector<std::string> records;
  std::vector<ReadPosition> positions = {reader.position()};
  std::string record;
  while (reader.next(record)) {
    records.push_back(record);
    positions.push_back(reader.position());
  }
  const std::size_t middle = records.size() / 2;
  reader.seek(positions[middle]);
  for (std::size_t i = middle; i < records.size(); ++i) {
    if (!reader.next(record) || record != records[i] || reader.position() != positions[i + 1])
      finding("another record after seek()");
  }
  if (reader.next(record)) finding("a record too many after seek()");
  return records;
}

}  // namespace lockstep::testing
