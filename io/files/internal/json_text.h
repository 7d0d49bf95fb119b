// io/files/internal/json_text.h - strings in JSON.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/export.h"

namespace lockstep::internal {

// The text in quotes. What is not UTF-8 becomes U+FFFD, so that every reader takes it.
LOCKSTEP_API std::string json_quoted(std::string_view text);
// Appends it. Safe inside a script element of HTML, too: no text can end it.
void append_json(std::string& out, std::string_view text);

}  // namespace lockstep::internal
