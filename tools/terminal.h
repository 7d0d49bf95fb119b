// tools/terminal.h - what the command prints, without anything in it that a terminal obeys.
//
//   const SafeOutput safe;               // first in main(): std::cout and std::cerr escape what they are given
//
// Names and messages come from files, and files from anybody. All that goes through std::cout and std::cerr
// keeps its lines and tabs; other control characters, marks of direction and bytes that are not UTF-8 come out
// as escapes (core/printable.h): "\x1b[2J". Data that was asked for is as it is (write_data) unless it goes to a
// terminal.
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
  ~SafeOutput();  // the streams are then as they were
  SafeOutput(const SafeOutput&) = delete;
  SafeOutput& operator=(const SafeOutput&) = delete;

 private:
  struct Streams;
  std::unique_ptr<Streams> streams_;
};

// The bytes to standard output, unchanged where that is no terminal. Where they cannot be written std::cout
// goes bad.
void write_data(std::string_view bytes);

// Standard error without escapes, for the command's own control of the terminal.
std::ostream& plain_standard_error();

}  // namespace lockstep::tools
