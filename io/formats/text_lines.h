// io/formats/text_lines.h - the lines of text files.
//
//   auto lines = open_text_lines("corpus.txt");
//   std::string line;
//   while (lines->next(line)) use(line);
//
// A line ends with \n or \r\n, which are not part of it; a \r elsewhere is. What follows the last end of line
// is a line too, unless it is empty. Bytes are not looked at: any encoding passes, zeros as well.
//
// kAuto       gzip by its first two bytes, with which no text begins; zlib is not recognised, since text may
//             begin like it ("x^2")
// refused     a line of more than line_bytes (InvalidArgument that names the line): a file of another kind may
//             have no ends of lines at all
//
// position().records is the number of lines before. Failure and thread safety: io/formats/record_reader.h.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/io/formats/record_reader.h"

namespace lockstep {

struct TextLineOptions {
  Compression compression = Compression::kAuto;
  std::size_t line_bytes = std::size_t{4} << 20U;  // of the longest line
};
LOCKSTEP_API std::unique_ptr<RecordReader> open_text_lines(const std::filesystem::path& path,
                                                           const TextLineOptions& options = {});

}  // namespace lockstep
