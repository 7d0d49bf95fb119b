// tools/terminal.h - the command's output, without anything in it that a terminal obeys.
//
//   const SafeOutput safe;               // first in main(): std::cout and std::cerr escape what they are given
//
// Names and messages come from files, and files from anybody. Text that goes through std::cout and std::cerr
// keeps its lines and tabs; other control characters, marks of direction and bytes that are not UTF-8 come
// out as escapes (core/base/printable.h): "\x1b[2J". Requested data is written unchanged (write_data) unless it
// goes to a terminal.
//
// Thread safety: as of the streams.
#pragma once

#include <iosfwd>
#include <memory>
#include <string_view>

namespace lockstep::tools {

class SafeOutput {
 public:
  SafeOutput();
  ~SafeOutput();  // restores the streams
  SafeOutput(const SafeOutput&) = delete;
  SafeOutput& operator=(const SafeOutput&) = delete;

 private:
  struct Streams;
  std::unique_ptr<Streams> streams_;
};

// Writes the bytes to standard output, unchanged if that is not a terminal. If they cannot be written,
// std::cout goes bad.
void write_data(std::string_view bytes);

// Standard error without escapes, for the command's own control of the terminal.
std::ostream& plain_standard_error();

}  // namespace lockstep::tools
