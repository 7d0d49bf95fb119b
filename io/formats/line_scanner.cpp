// io/formats/line_scanner.cpp - one line of a stream, found in its buffer.
#include "lockstep/io/formats/internal/line_scanner.h"

#include <cstring>
#include <string_view>

namespace lockstep::internal {

LineEnd append_line(ByteStream& stream, std::string& to, std::size_t most) {
  const std::size_t before = to.size();
  bool any = false;
  while (true) {
    const std::string_view seen = stream.peek(1);
    if (seen.empty() && to.size() > most) return LineEnd::kTooLong;
    if (seen.empty()) return any ? LineEnd::kFile : LineEnd::kNothing;
    any = true;
    const void* const newline = std::memchr(seen.data(), '\n', seen.size());
    const std::size_t size = newline == nullptr
                                 ? seen.size()
                                 : static_cast<std::size_t>(static_cast<const char*>(newline) - seen.data());
    // One byte more for a \r that may turn out to belong to the end of the line.
    if (to.size() + size > most + 1) return LineEnd::kTooLong;
    to.append(seen.data(), size);
    stream.skip(newline == nullptr ? size : size + 1);
    if (newline == nullptr) continue;
    const bool has_return = to.size() > before && to.back() == '\r';
    if (has_return) to.pop_back();
    if (to.size() > most) return LineEnd::kTooLong;
    return has_return ? LineEnd::kReturnAndNewline : LineEnd::kNewline;
  }
}

}  // namespace lockstep::internal
