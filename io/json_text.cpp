#include "lockstep/io/internal/json_text.h"

#include <cstddef>
#include <cstdint>

namespace lockstep::internal {

namespace {

// Bytes of the UTF-8 sequence at the start of the text; 0 where there is none.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  std::uint32_t point = lead & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
    point = (point << 6U) | (byte(i) & 0x3FU);
  }
  const bool too_long = (length == 3 && point < 0x800U) || (length == 4 && point < 0x10000U);
  const bool no_character = (point >= 0xD800U && point < 0xE000U) || point > 0x10FFFFU;
  return too_long || no_character ? 0 : length;
}

}  // namespace

std::string json_quoted(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  while (!text.empty()) {
    const auto byte = static_cast<std::uint8_t>(text.front());
    const std::size_t length = sequence_length(text);
    if (length == 0) {
      out += "\\ufffd";
    } else if (byte == '"' || byte == '\\') {
      out += {'\\', text.front()};
    } else if (byte < 0x20) {
      out += "\\u00";
      out += {kHex[byte >> 4U], kHex[byte & 0xFU]};
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
  return out;
}

}  // namespace lockstep::internal
