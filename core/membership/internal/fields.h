// core/membership/internal/fields.h - numbers and texts as bytes, and back.
//
// Numbers are little-endian. What is read comes from a network, so that every length is checked against what is there and against a
// bound before anything is allocated.
//
// Thread safety: one thread at a time.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep::internal {

// What came is no message of this protocol.
class NotUnderstood : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class FieldWriter {
 public:
  template <std::integral T>
  FieldWriter& add(T value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      bytes_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFF);
    return *this;
  }
  // At most 2^32 - 1 bytes.
  FieldWriter& add(std::string_view text) {
    add(static_cast<std::uint32_t>(text.size()));
    bytes_ += text;
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class LOCKSTEP_API FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}

  // Throw NotUnderstood.
  template <std::integral T>
  T number() {
    const std::string_view bytes = next(sizeof(T));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    return static_cast<T>(value);
  }
  std::string_view text(std::size_t most);
  void end() const;  // nothing may be left

 private:
  std::string_view next(std::size_t bytes);

  std::string_view rest_;
};

}  // namespace lockstep::internal
