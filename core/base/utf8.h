// core/base/utf8.h - is this text UTF-8?
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep {

// Bytes of the well-formed UTF-8 sequence that the text starts with; 0 if it starts with none. The text is
// not empty.
LOCKSTEP_API std::size_t utf8_length(std::string_view text);

// Whether the whole text is UTF-8.
LOCKSTEP_API bool is_utf8(std::string_view text);

}  // namespace lockstep
