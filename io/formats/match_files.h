// io/formats/match_files.h - the files that a pattern names, in sorted order.
//
//   for (const auto& path : match_files("data/train-*-of-*.tfrecord")) ...
//
//   *        any characters, or none; not a slash
//   ?        one character
//   [a-z_]   one of these; [!a-z] or [^a-z] one that is none of them. "[*]" is a star itself
//
// Each part of the path may be a pattern. A part that is one does not match names that begin with a dot unless
// it begins with a dot itself. The last part finds files and not folders. A path without a pattern is
// returned if it is there. Names are compared by bytes, and so is the order: the same on every machine,
// whatever its file system and locale.
//
// failure   NotFound if nothing matches, with the pattern; InvalidArgument for "[" without "]". Folders that
//           cannot be read match nothing
//
// Thread safety: a plain function.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"

namespace lockstep {

LOCKSTEP_API std::vector<std::filesystem::path> match_files(std::string_view pattern);

}  // namespace lockstep
