// Tests: core/base/utf8.cpp
#include "lockstep/core/base/utf8.h"

#include <string>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Utf8, KnowsTheLengthOfASequence) {
  EXPECT_EQ(utf8_length("a"), 1U);
  EXPECT_EQ(utf8_length("\x7f"), 1U);
  EXPECT_EQ(utf8_length("\xc2\x80 and more"), 2U);
  EXPECT_EQ(utf8_length("\xe0\xa0\x80"), 3U);
  EXPECT_EQ(utf8_length("\xed\x9f\xbf"), 3U);
  EXPECT_EQ(utf8_length("\xf0\x90\x80\x80"), 4U);
  EXPECT_EQ(utf8_length("\xf4\x8f\xbf\xbf"), 4U);
}

TEST(Utf8, SeesWhatIsNone) {
  for (const char* bad : {"\x80", "\xc1\xbf", "\xc2", "\xc2y", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82",
                          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(utf8_length(bad), 0U) << testing::PrintToString(std::string(bad));
    EXPECT_FALSE(is_utf8(std::string("fine ") + bad));
  }
}

TEST(Utf8, LooksAtAllOfTheText) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"));
  EXPECT_FALSE(is_utf8("caf\xc3\xa9\xc3"));
}

}  // namespace
}  // namespace lockstep
