// tests/support/record_files.h - files of records, and their bytes by the definitions of the formats: nothing
// here uses Lockstep's own writers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/formats/record_reader.h"

namespace lockstep::testing {

// --- TFRecord

inline std::uint32_t bitwise_crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return ~crc;
}

inline std::string little_endian_bytes(std::uint64_t value, unsigned bytes) {
  std::string out;
  for (unsigned i = 0; i < bytes; ++i) out += static_cast<char>((value >> (8 * i)) & 0xFFU);
  return out;
}
inline std::string big_endian_bytes(std::uint64_t value, unsigned bytes) {
  std::string out;
  for (unsigned i = bytes; i-- > 0;) out += static_cast<char>((value >> (8 * i)) & 0xFFU);
  return out;
}

inline std::string masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = bitwise_crc32c(bytes);
  return little_endian_bytes(static_cast<std::uint32_t>((crc >> 15U | crc << 17U) + 0xA282EAD8U), 4);
}

inline std::string tfrecord_head(std::uint64_t length) {
  const std::string bytes = little_endian_bytes(length, 8);
  return bytes + masked_crc32c(bytes);
}
inline std::string tfrecord_of(std::string_view record) {
  return tfrecord_head(record.size()) + std::string(record) + masked_crc32c(record);
}

// --- protocol buffers

inline std::string varint_of(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80U; value >>= 7U) out += static_cast<char>((value & 0x7FU) | 0x80U);
  return out + static_cast<char>(value);
}
// A field of bytes, or of another message.
inline std::string field_of(unsigned field, std::string_view bytes) {
  return varint_of(field << 3U | 2U) + varint_of(bytes.size()) + std::string(bytes);
}

// --- reading

inline std::filesystem::path write_to(const std::filesystem::path& path, std::string_view bytes) {
  write_file_whole(path, bytes);
  return path;
}

inline std::vector<std::string> all_records(RecordReader& reader) {
  std::vector<std::string> records;
  std::string record;
  while (reader.next(record)) records.push_back(record);
  return records;
}

// The message of the Error that `body` throws, with its code in front; empty if it throws none.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return str(to_string(error.code()), ": ", error.message());
  }
  return "";
}

// Reads to the end, and then from each position again: every rest has to be the same. Returns the records.
inline std::vector<std::string> records_from_each_position(RecordReader& reader) {
  std::vector<std::string> records;
  std::vector<ReadPosition> positions = {reader.position()};
  std::string record;
  while (reader.next(record)) {
    records.push_back(record);
    positions.push_back(reader.position());
  }
  for (std::size_t i = positions.size(); i-- > 0;) {
    reader.seek(positions[i]);
    if (reader.position() != positions[i]) throw std::runtime_error("seek() leads to another position");
    const std::size_t most = std::min(records.size(), i + 3);
    for (std::size_t k = i; k < most; ++k) {
      if (!reader.next(record) || record != records[k] || reader.position() != positions[k + 1])
        throw std::runtime_error(str("record ", k, " is another one after seek() to ", i));
    }
    if (most == records.size() && reader.next(record))
      throw std::runtime_error("a record too many after seek()");
  }
  return records;
}

}  // namespace lockstep::testing
