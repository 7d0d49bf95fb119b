// core/base/printable.cpp - text from files, made safe to show.
#include "lockstep/core/base/printable.h"

#include <cstddef>
#include <cstdint>

#include "lockstep/core/base/utf8.h"

namespace lockstep {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

void append_hex(std::string& out, std::uint32_t value, int digits) {
  while (digits-- > 0) out += kHexDigits[(value >> (4U * static_cast<unsigned>(digits))) & 0xFU];
}

// The code point of a well-formed sequence.
std::uint32_t code_point(std::string_view sequence) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(sequence[i]));
  };
  if (sequence.size() == 1) return byte(0);
  std::uint32_t code = byte(0) & (0x7FU >> sequence.size());
  for (std::size_t i = 1; i < sequence.size(); ++i) code = (code << 6U) | (byte(i) & 0x3FU);
  return code;
}

bool is_shown(std::uint32_t code) {
  const auto within = [code](std::uint32_t first, std::uint32_t last) {
    return code >= first && code <= last;
  };
  if (code < 0x20 || within(0x7F, 0x9F)) return false;  // controls
  // Marks of direction, embeddings, overrides and isolates, with the separators of lines and paragraphs.
  return code != 0x061C && !within(0x200E, 0x200F) && !within(0x2028, 0x202E) && !within(0x2066, 0x2069);
}

}  // namespace

std::string printable(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view sequence = text.substr(0, length == 0 ? 1 : length);
    const std::uint32_t code = length == 0 ? static_cast<unsigned char>(text[0]) : code_point(sequence);
    text.remove_prefix(sequence.size());
    if (length != 0 && (is_shown(code) || (length == 1 && kept.find(sequence) != std::string_view::npos))) {
      out += sequence;
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (length <= 1) {
      out += "\\x";
      append_hex(out, code, 2);
    } else {
      out += "\\u";
      append_hex(out, code, 4);
    }
  }
  return out;
}

}  // namespace lockstep
