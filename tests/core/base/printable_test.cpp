// Tests: core/base/printable.cpp
#include "lockstep/core/base/printable.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "lockstep/core/base/utf8.h"

namespace lockstep {
namespace {

using namespace std::string_view_literals;

TEST(Printable, KeepsWhatIsThereToRead) {
  for (const std::string_view text :
       {""sv, "layer_1/w"sv, "C:\\a"sv, "größe µ 層 слой שכבה"sv, "🙂👩‍🔬"sv})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("\x1b]0;title\x07\x1b[2J"), "\\x1b]0;title\\x07\\x1b[2J");
  EXPECT_EQ(printable("a\nb\tc\rd\x7f\0e"sv), "a\\nb\\tc\\rd\\x7f\\x00e");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J\xc2\x85"),
            "\\u009b2J\\u0085");
  EXPECT_EQ(printable("\x9b"
                      "2J \xff\xc3"),
            "\\x9b2J \\xff\\xc3");
  EXPECT_EQ(printable("user\u202eexe.txt\u2066\u200f\u061c\u2028"),
            "user\\u202eexe.txt\\u2066\\u200f\\u061c\\u2028");
}

TEST(Printable, KeepsWhatItIsTold) { EXPECT_EQ(printable("a\n\tb\r\x1b", "\n\t"), "a\n\tb\\r\\x1b"); }

// Whatever comes, what leaves is UTF-8 without a control character, and stays as it is when it comes again.
TEST(Printable, LeavesNothingToEscape) {
  std::string every;
  for (int high = 0; high < 256; ++high)
    for (int low = 0; low < 256; ++low) (every += static_cast<char>(high)) += static_cast<char>(low);
  const std::string shown = printable(every);
  EXPECT_TRUE(is_utf8(shown));
  EXPECT_EQ(printable(shown), shown);
  for (const char c : shown) ASSERT_GE(static_cast<unsigned char>(c), 0x20U);
}

}  // namespace
}  // namespace lockstep
