// io/files/internal/json_text.h - strings in JSON.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep::internal {

// The text in quotes. Bytes that are not UTF-8 become U+FFFD, so that every reader accepts it.
LOCKSTEP_API std::string json_quoted(std::string_view text);
// Appends the same. It is safe inside a script element of HTML, too: no text can end the element.
void append_json(std::string& out, std::string_view text);

}  // namespace lockstep::internal
