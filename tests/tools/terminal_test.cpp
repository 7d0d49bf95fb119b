// Tests: tools/terminal.cpp
#include "tools/terminal.h"

#include <iostream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep::tools {
namespace {

// What a stream gets while the outputs are safe.
template <class Print>
std::string shown(std::ostream& stream, const Print& print) {
  std::stringbuf caught;
  std::streambuf* const before = stream.rdbuf(&caught);
  {
    const SafeOutput safe;
    print();
  }
  EXPECT_EQ(stream.rdbuf(), &caught) << "as it was";
  stream.rdbuf(before);
  return caught.str();
}

TEST(SafeOutput, EscapesWhatATerminalObeys) {
  for (std::ostream* const stream : {&std::cout, &std::cerr}) {
    const auto print = [&] { *stream << "a\x1b[2J" << '\x07' << "\tb\xc2\x9b\n" << 12 << "\u202e größe\n"; };
    EXPECT_EQ(shown(*stream, print), "a\\x1b[2J\\x07\tb\\u009b\n12\\u202e größe\n");
  }
}

TEST(SafeOutput, KeepsLettersThatComeInPieces) {
  for (const std::string text : {"größe", "層", "🙂", "x"}) {
    const auto print = [&] {
      for (const char byte : text) std::cerr << byte;
    };
    EXPECT_EQ(shown(std::cerr, print), text);
  }
  EXPECT_EQ(shown(std::cout,
                  [] {
                    std::cout << "a\xf0\x9f"
                              << "b\xe5";
                  }),
            "a\\xf0\\x9fb\\xe5")
      << "never finished";
}

TEST(SafeOutput, LeavesDataAsItIs) {
  if (isatty(STDOUT_FILENO) != 0) GTEST_SKIP() << "standard output is a terminal";
  const std::string data("\x89LKG\r\n\x1a\n\0\xff", 10);
  EXPECT_EQ(shown(std::cout, [&] { write_data(data); }), data);
}

}  // namespace
}  // namespace lockstep::tools
