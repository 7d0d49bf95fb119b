// graph/text/internal/text_lexer.h - splits the text form into names, numbers and strings, with their places.
//
// A cursor over the text. Blanks and comments are skipped before each question; line ends too, inside
// brackets. Every expectation that is not met throws ParseError: what was expected, what came, and where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/graph/text/text.h"

namespace lockstep::internal {

struct TextPlace {
  std::uint32_t line = 1;
  std::uint32_t column = 1;
};

class TextLexer {
 public:
  explicit TextLexer(std::string_view text)
      : at_(text.data()), end_(text.data() + text.size()), line_start_(text.data()) {}

  // --- where
  TextPlace place();  // of what comes next
  std::uint32_t line() const { return line_; }
  std::size_t bytes_left() const { return static_cast<std::size_t>(end_ - at_); }
  [[noreturn]] void fail(const std::string& message) { fail(place(), message); }
  [[noreturn]] static void fail(TextPlace place, const std::string& message);
  [[noreturn]] void expected(std::string_view what);  // "expected <what>, got '<what comes>'"

  // --- what comes
  // The next character that is not blank; 0 at the end of the line or the text (and for a zero byte, which no
  // construct begins with).
  char peek() {
    skip_blanks();
    return at_ == end_ || *at_ == '\n' ? '\0' : *at_;
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, std::string_view what) {
    if (!take(c)) expected(what);
  }
  // Brackets: inside them a line may end anywhere.
  bool take_open(char c) {
    if (!take(c)) return false;
    ++open_;
    return true;
  }
  void expect_open(char c, std::string_view what) {
    if (!take_open(c)) expected(what);
  }
  bool take_close(char c) {
    if (!take(c)) return false;
    --open_;
    return true;
  }
  // After an element of a list: true if a comma promises another one, false if the list is closed.
  bool take_comma_or_close(char close, std::string_view what) {
    if (take(',')) return true;
    if (!take_close(close)) expected(what);
    return false;
  }
  // A whole word and nothing less: take_word("on") leaves "once" alone.
  bool take_word(std::string_view word) {
    if (peek_word() != word) return false;
    at_ += word.size();
    return true;
  }
  // Letters, digits, '_', '/', '.' and '-' from here on, if a letter or '_' comes first; else empty.
  std::string_view peek_word();
  std::string_view take_word() {
    const std::string_view word = peek_word();
    at_ += word.size();
    return word;
  }
  // Is c the next character, without skipping blanks?
  bool adjacent(char c) const { return at_ != end_ && *at_ == c; }

  // "-inf" and nothing else.
  bool at_minus_inf() const;

  // --- longer things
  // A bare word, or a quoted string; the view points into the text, or is valid until the next call.
  std::string_view take_name(std::string_view what);
  std::string take_string();  // at its opening quote
  // The characters of a number as they stand; empty if no digit or '-' comes next.
  std::string_view take_number();

  // --- lines
  // Skips to the next statement. False at the end of the text.
  bool skip_lines();
  // Is there nothing more on this line?
  bool at_line_end() { return peek() == '\0' && (at_ == end_ || *at_ == '\n'); }

 private:
  void skip_blanks() {
    while (at_ != end_) {
      const char c = *at_;
      if (c == ' ' || c == '\t' || c == '\r') {
        ++at_;
      } else if (c == '/' && end_ - at_ > 1 && at_[1] == '/') {
        skip_comment();
      } else if (c == '\n' && open_ > 0) {
        next_line();
      } else {
        return;
      }
    }
  }
  void skip_comment();
  void next_line() {
    ++at_;
    ++line_;
    line_start_ = at_;
  }
  char take_escape(TextPlace start);

  const char* at_;
  const char* end_;
  const char* line_start_;
  std::uint32_t line_ = 1;
  int open_ = 0;
  std::string scratch_;
};

}  // namespace lockstep::internal
