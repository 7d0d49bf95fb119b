// tools/shell_words.cpp - text that a shell reads back as one word.
#include "shell_words.h"

#include <algorithm>
#include <cctype>

namespace lockstep::tools {

std::string single_quoted(std::string_view text) {
  std::string inside;
  for (const char c : text) inside += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return "'" + inside + "'";
}

std::string shell_word(std::string_view text) {
  const bool plain = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("/._-+=:,@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return plain ? std::string(text) : single_quoted(text);
}

}  // namespace lockstep::tools
