// io/formats/protobuf_wire.h - the wire format of protocol buffers, field by field.
//
//   WireReader message(bytes);
//   WireField field;
//   while (message.next(field)) {
//     if (field.number == 1) name = field.text();
//     if (field.number == 2) read_child(message.inside(field));               // a WireReader
//     if (field.number == 3) field.each_varint([&](std::uint64_t v) { ... }); // packed or not
//   }                                                                         // others are passed over
//
// Knows no schema: the caller says which fields there are. Fields come in the order of the bytes, so that of a
// field that comes twice the last one wins if the caller stores it, as the format wants it. Nothing is
// copied, and nothing allocated.
//
// failure   Error(kDataLoss) with the byte of the outermost message: a field that ends behind its message, a
//           varint of more than ten bytes, field number 0, groups (they are long obsolete) and unknown wire
//           types, a field of another wire type than it is read as, messages inside each other deeper than
//           kMaxDepth
//
// WireMessage writes the same. Thread safety: plain values.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep {

enum class WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

namespace internal {

[[noreturn]] LOCKSTEP_API void wire_damage(std::uint64_t at, const char* what);

// Reads the varint at `at` and moves `at` behind it. `base` is where at's message begins, for errors.
LOCKSTEP_API std::uint64_t long_varint(const char*& at, const char* end, const char* begin,
                                       std::uint64_t base);
inline std::uint64_t read_varint(const char*& at, const char* end, const char* begin, std::uint64_t base) {
  if (at != end && static_cast<signed char>(*at) >= 0) [[likely]]
    return static_cast<unsigned char>(*at++);
  return long_varint(at, end, begin, base);
}
template <class T>
T read_fixed(const char* from) {
  static_assert(std::endian::native == std::endian::little,
                "fixed numbers are little endian, and are not swapped");
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace internal

struct WireField {
  std::uint32_t number = 0;
  WireType type = WireType::kVarint;
  std::uint64_t value = 0;  // of a number, as it is stored
  std::string_view bytes = {};
  std::uint64_t at = 0;  // where the value begins in the outermost message

  // The value, if it has the type; Error(kDataLoss) otherwise.
  std::uint64_t varint() const { return expect(WireType::kVarint), value; }
  std::int64_t integer() const { return static_cast<std::int64_t>(varint()); }
  float single() const {
    return expect(WireType::kFixed32), std::bit_cast<float>(static_cast<std::uint32_t>(value));
  }
  double number64() const { return expect(WireType::kFixed64), std::bit_cast<double>(value); }
  std::string_view text() const { return expect(WireType::kBytes), bytes; }

  // Every value of a repeated field: of a packed one all that are in it.
  template <class F>
  void each_varint(const F& f) const {
    if (type == WireType::kVarint) return void(f(value));
    const char* from = text().data();
    const char* const begin = from;
    const char* const end = from + bytes.size();
    while (from != end) f(internal::read_varint(from, end, begin, at));
  }
  template <class F>
  void each_float(const F& f) const {
    if (type == WireType::kFixed32) return void(f(single()));
    check_packed(4);
    for (std::size_t i = 0; i < bytes.size(); i += 4) f(internal::read_fixed<float>(bytes.data() + i));
  }
  template <class F>
  void each_double(const F& f) const {
    if (type == WireType::kFixed64) return void(f(number64()));
    check_packed(8);
    for (std::size_t i = 0; i < bytes.size(); i += 8) f(internal::read_fixed<double>(bytes.data() + i));
  }

  void expect(WireType wanted) const {
    if (type != wanted) [[unlikely]]
      wrong_type(wanted);
  }
  void check_packed(std::size_t size) const {
    expect(WireType::kBytes);
    if (bytes.size() % size != 0) internal::wire_damage(at, "its packed numbers do not fill its bytes");
  }

 private:
  [[noreturn]] LOCKSTEP_API void wrong_type(WireType wanted) const;
};

class WireReader {
 public:
  static constexpr int kMaxDepth = 100;

  explicit WireReader(std::string_view message) : WireReader(message, 0, 0) {}
  // The message that a field holds; of this one the depth is not counted.
  explicit WireReader(const WireField& field) : WireReader(field.text(), field.at, 0) {}

  // The next field; false at the end.
  bool next(WireField& field) {
    if (at_ == end_) return false;
    const std::uint64_t key = internal::read_varint(at_, end_, begin_, base_);
    const std::uint64_t number = key >> 3U;
    if (number == 0 || number >= std::uint64_t{1} << 29U) [[unlikely]]
      internal::wire_damage(offset(), "a field has a number that no field has");
    field.number = static_cast<std::uint32_t>(number);
    field.type = static_cast<WireType>(key & 7U);
    switch (field.type) {
      case WireType::kVarint:
        field.at = offset();
        field.value = internal::read_varint(at_, end_, begin_, base_);
        return true;
      case WireType::kBytes: {
        const std::uint64_t size = internal::read_varint(at_, end_, begin_, base_);
        field.at = offset();
        field.bytes = take(size);
        return true;
      }
      case WireType::kFixed32:
        field.at = offset();
        field.value = internal::read_fixed<std::uint32_t>(take(4).data());
        return true;
      case WireType::kFixed64:
        field.at = offset();
        field.value = internal::read_fixed<std::uint64_t>(take(8).data());
        return true;
    }
    unknown_type(static_cast<unsigned>(key & 7U));
  }

  // The message that the field holds.
  WireReader inside(const WireField& field) const {
    field.expect(WireType::kBytes);
    if (depth_ == kMaxDepth) [[unlikely]]
      internal::wire_damage(field.at, "messages are nested too deeply");
    return WireReader(field.bytes, field.at, depth_ + 1);
  }

 private:
  WireReader(std::string_view message, std::uint64_t base, int depth)
      : begin_(message.data()), at_(begin_), end_(begin_ + message.size()), base_(base), depth_(depth) {}

  std::uint64_t offset() const { return base_ + static_cast<std::uint64_t>(at_ - begin_); }
  std::string_view take(std::uint64_t size) {
    if (size > static_cast<std::uint64_t>(end_ - at_)) [[unlikely]]
      internal::wire_damage(offset(), "a field ends behind its message");
    const std::string_view taken(at_, static_cast<std::size_t>(size));
    at_ += size;
    return taken;
  }
  [[noreturn]] LOCKSTEP_API void unknown_type(unsigned type) const;

  const char* begin_;
  const char* at_;
  const char* end_;
  std::uint64_t base_;
  int depth_;
};

// A message that is written field by field.
class LOCKSTEP_API WireMessage {
 public:
  WireMessage& integer(std::uint32_t field, std::int64_t value);
  WireMessage& number(std::uint32_t field, double value);
  WireMessage& single(std::uint32_t field, float value);
  WireMessage& bytes(std::uint32_t field, std::string_view value);  // a string, or an encoded message
  WireMessage& message(std::uint32_t field, const WireMessage& value) { return bytes(field, value.encoded_); }
  // Packed.
  WireMessage& integers(std::uint32_t field, const std::int64_t* values, std::size_t count);
  WireMessage& numbers(std::uint32_t field, const double* values, std::size_t count);
  WireMessage& singles(std::uint32_t field, const float* values, std::size_t count);
  WireMessage& append(const WireMessage& fields);

  const std::string& encoded() const { return encoded_; }

 private:
  void key(std::uint32_t field, WireType type);
  void varint(std::uint64_t value);

  std::string encoded_;
};

}  // namespace lockstep
