// core/base/printable.h - text from files, made safe to show.
//
//   throw InvalidArgument(str("entry '", printable(name), "' is no array"));
//
// A name in a file can hold sequences that a terminal obeys: they clear the screen, set its title, or show
// text in another order than it has. Code that quotes a name from a file in a message passes it through here;
// the `lockstep` command passes everything that it prints through it once more (tools/terminal.h), so that a
// forgotten place does no harm.
//
// Thread safety: a pure function.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep {

// The text with escapes for everything that is not readable text: control characters ("\x1b", "\n"), those of
// C1 ("\u009b"), marks of direction and separators of lines ("\u202e"), and bytes that are not UTF-8
// ("\xff"). Everything else stays as it is, backslashes too. Characters in `kept` are not escaped.
LOCKSTEP_API std::string printable(std::string_view text, std::string_view kept = {});

}  // namespace lockstep
