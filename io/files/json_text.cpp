// io/files/json_text.cpp - strings in JSON.
#include "lockstep/io/files/internal/json_text.h"

#include <cstddef>
#include <cstdint>

#include "lockstep/core/base/utf8.h"

namespace lockstep::internal {

std::string json_quoted(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  while (!text.empty()) {
    const auto byte = static_cast<std::uint8_t>(text.front());
    const std::size_t length = utf8_length(text);
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

void append_json(std::string& out, std::string_view text) {
  for (const char c : json_quoted(text)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
}

}  // namespace lockstep::internal
