// io/formats/protobuf_wire.cpp - the wire format of protocol buffers: what is rare in reading, and writing.
#include "lockstep/io/formats/protobuf_wire.h"

#include "lockstep/core/error.h"

namespace lockstep {

void internal::wire_damage(std::uint64_t at, const char* what) {
  throw Error(ErrorCode::kDataLoss, str("byte ", at, " of the message: ", what));
}

std::uint64_t internal::long_varint(const char*& at, const char* end, const char* begin, std::uint64_t base) {
  std::uint64_t value = 0;
  const char* from = at;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    if (from == end) wire_damage(base + static_cast<std::uint64_t>(at - begin), "a number is cut off");
    const auto byte = static_cast<unsigned char>(*from++);
    if (shift == 63 && byte > 1) break;  // the tenth byte has room for one bit
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80U) {
      at = from;
      return value;
    }
  }
  wire_damage(base + static_cast<std::uint64_t>(at - begin), "a number has more than 64 bits");
}

void WireField::wrong_type(WireType wanted) const {
  throw Error(ErrorCode::kDataLoss, str("byte ", at, " of the message: field ", number, " has wire type ",
                                        static_cast<int>(type), "; expected ", static_cast<int>(wanted)));
}

void WireReader::unknown_type(unsigned type) const {
  internal::wire_damage(offset(), type == 3 || type == 4 ? "a field is a group, which nobody writes any more"
                                                         : "a field has a wire type that does not exist");
}

// --- writing

void WireMessage::varint(std::uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) encoded_ += static_cast<char>((value & 0x7FU) | 0x80U);
  encoded_ += static_cast<char>(value);
}

void WireMessage::key(std::uint32_t field, WireType type) {
  varint(std::uint64_t{field} << 3U | static_cast<std::uint64_t>(type));
}

WireMessage& WireMessage::integer(std::uint32_t field, std::int64_t value) {
  key(field, WireType::kVarint);
  varint(static_cast<std::uint64_t>(value));
  return *this;
}

WireMessage& WireMessage::number(std::uint32_t field, double value) {
  key(field, WireType::kFixed64);
  encoded_.append(reinterpret_cast<const char*>(&value), sizeof value);
  return *this;
}

WireMessage& WireMessage::single(std::uint32_t field, float value) {
  key(field, WireType::kFixed32);
  encoded_.append(reinterpret_cast<const char*>(&value), sizeof value);
  return *this;
}

WireMessage& WireMessage::bytes(std::uint32_t field, std::string_view value) {
  key(field, WireType::kBytes);
  varint(value.size());
  encoded_ += value;
  return *this;
}

WireMessage& WireMessage::integers(std::uint32_t field, const std::int64_t* values, std::size_t count) {
  WireMessage packed;
  for (std::size_t i = 0; i < count; ++i) packed.varint(static_cast<std::uint64_t>(values[i]));
  return bytes(field, packed.encoded_);
}

WireMessage& WireMessage::numbers(std::uint32_t field, const double* values, std::size_t count) {
  return bytes(field, {reinterpret_cast<const char*>(values), count * sizeof *values});
}

WireMessage& WireMessage::singles(std::uint32_t field, const float* values, std::size_t count) {
  return bytes(field, {reinterpret_cast<const char*>(values), count * sizeof *values});
}

WireMessage& WireMessage::append(const WireMessage& fields) {
  encoded_ += fields.encoded_;
  return *this;
}

}  // namespace lockstep
