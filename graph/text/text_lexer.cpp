// graph/text/text_lexer.cpp - splits the text form into names, numbers and strings, with their places.
#include "lockstep/graph/text/internal/text_lexer.h"

#include <cstring>

#include "lockstep/graph/text/internal/text_syntax.h"

namespace lockstep::internal {

using text_syntax::continues_name;
using text_syntax::starts_name;

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

TextPlace TextLexer::place() {
  skip_blanks();
  return {line_, static_cast<std::uint32_t>(at_ - line_start_) + 1};
}

void TextLexer::fail(TextPlace place, const std::string& message) {
  throw ParseError(message, place.line, place.column);
}

void TextLexer::expected(std::string_view what) {
  skip_blanks();
  std::string message = "expected ";
  message += what;
  message += ", got ";
  if (at_ == end_) {
    message += "the end of the text";
  } else if (*at_ == '\n') {
    message += "the end of the line";
  } else {
    constexpr std::size_t kShown = 24;
    std::string_view shown = peek_word();
    if (shown.empty()) shown = {at_, 1};
    if (shown.size() > kShown) shown = shown.substr(0, kShown);
    const auto byte = static_cast<unsigned char>(shown[0]);
    if (byte < 0x20 || byte >= 0x7f) {
      constexpr char kHex[] = "0123456789abcdef";
      message += "byte 0x";
      message += kHex[byte >> 4U];
      message += kHex[byte & 15U];
    } else {
      message += '\'';
      message += shown;
      message += '\'';
    }
  }
  fail(message);
}

std::string_view TextLexer::peek_word() {
  skip_blanks();
  if (at_ == end_ || !starts_name(*at_)) return {};
  const char* stop = at_ + 1;
  while (stop != end_ && continues_name(*stop)) ++stop;
  return {at_, static_cast<std::size_t>(stop - at_)};
}

bool TextLexer::at_minus_inf() const {
  constexpr std::string_view kText = "-inf";
  if (bytes_left() < kText.size() || std::string_view(at_, kText.size()) != kText) return false;
  return bytes_left() == kText.size() || !continues_name(at_[kText.size()]);
}

std::string_view TextLexer::take_name(std::string_view what) {
  if (peek() == '"') {
    scratch_ = take_string();
    return scratch_;
  }
  const std::string_view word = take_word();
  if (word.empty()) expected(what);
  return word;
}

char TextLexer::take_escape(TextPlace start) {
  if (at_ == end_) fail(start, "this string has no closing '\"'");
  const char c = *at_++;
  switch (c) {
    case '"':
    case '\\': return c;
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'x': {
      const int high = end_ - at_ > 1 ? hex_digit(at_[0]) : -1;
      const int low = end_ - at_ > 1 ? hex_digit(at_[1]) : -1;
      if (high < 0 || low < 0) fail("expected two hexadecimal digits after '\\x'");
      at_ += 2;
      return static_cast<char>(high * 16 + low);
    }
    default: break;
  }
  --at_;
  fail("expected one of \\\" \\\\ \\n \\t \\r \\xHH in a string");
}

std::string TextLexer::take_string() {
  const TextPlace start = place();
  ++at_;
  std::string value;
  while (true) {
    const char* stop = at_;
    while (stop != end_ && *stop != '"' && *stop != '\\' && *stop != '\n') ++stop;
    value.append(at_, stop);
    at_ = stop;
    if (at_ == end_ || *at_ == '\n') fail(start, "this string has no closing '\"' on its line");
    if (*at_++ == '"') return value;
    value += take_escape(start);
  }
}

std::string_view TextLexer::take_number() {
  skip_blanks();
  const char* stop = at_;
  if (stop != end_ && *stop == '-') ++stop;
  if (stop == end_ || *stop < '0' || *stop > '9') return {};
  while (stop != end_ && (continues_name(*stop) || *stop == '+') && *stop != '/') ++stop;
  const std::string_view number(at_, static_cast<std::size_t>(stop - at_));
  at_ = stop;
  return number;
}

void TextLexer::skip_comment() {
  const void* stop = std::memchr(at_, '\n', bytes_left());
  at_ = stop == nullptr ? end_ : static_cast<const char*>(stop);
}

bool TextLexer::skip_lines() {
  while (true) {
    skip_blanks();
    if (at_ == end_) return false;
    if (*at_ != '\n') return true;
    next_line();
  }
}

}  // namespace lockstep::internal
