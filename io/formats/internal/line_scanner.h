// io/formats/internal/line_scanner.h - one line of a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/io/formats/internal/byte_stream.h"

namespace lockstep::internal {

enum class LineEnd : std::uint8_t {
  kNothing,  // the stream was at its end
  kFile,     // the line ended with the file
  kNewline,
  kReturnAndNewline,
  kTooLong,  // the line would make `to` longer than `most`
};
// Appends the next line to `to`, without its end.
LineEnd append_line(ByteStream& stream, std::string& to, std::size_t most);

}  // namespace lockstep::internal
