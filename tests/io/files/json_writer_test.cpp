// Tests: io/files/json_writer.cpp
#include "lockstep/io/files/internal/json_writer.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "support/json.h"

namespace lockstep {
namespace {

using internal::JsonWriter;

TEST(JsonWriter, PutsCommasBetweenElements) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().key("a").number(1).key("b").begin_list().number(2).text("x").begin_list();
  json.end_list().begin_object().end_object().end_list().key("c").text("y").end_object();
  EXPECT_EQ(text, R"({"a":1,"b":[2,"x",[],{}],"c":"y"})");
}

TEST(JsonWriter, SpacedItHasASpaceAfterCommasAndColons) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::kSpaced);
  json.begin_object().key("a").number(1).key("b").begin_list().number(2).number(3).end_list().end_object();
  EXPECT_EQ(text, R"({"a": 1, "b": [2, 3]})");
}

TEST(JsonWriter, NewLinesStandBeforeElementsAndEnds) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::kSpaced);
  json.begin_list().new_line().number(1).number(2).new_line().number(3).new_line().end_list();
  EXPECT_EQ(text, "[\n1, 2,\n3\n]");
}

TEST(JsonWriter, OnlyDenseTextIsSafeInsideAScript) {
  std::string dense, spaced;
  JsonWriter(dense).text("</script>\n\"");
  JsonWriter(spaced, JsonWriter::Style::kSpaced).text("</script>\n\"");
  EXPECT_EQ(dense, R"("\u003c/script>\u000a\"")");
  EXPECT_EQ(spaced, R"("</script>\u000a\"")");
  EXPECT_EQ(testing::Json::parse(dense).text(), "</script>\n\"");
}

TEST(JsonWriter, NumbersOfAllTypesAreNumbers) {
  std::string text;
  JsonWriter json(text);
  json.begin_list().number(std::uint8_t{65}).number(std::int64_t{-1}).number(~std::uint64_t{0});
  json.number(0.5).number(1e-7).end_list();
  EXPECT_EQ(text, "[65,-1,18446744073709551615,0.5,1e-07]");
}

TEST(JsonWriter, WhatIsJsonAlreadyIsTakenAsItIs) {
  std::string text;
  JsonWriter json(text);
  json.begin_list().raw("{\"a\":1}").raw("12.500").end_list();
  EXPECT_EQ(text, "[{\"a\":1},12.500]");
}

// A page has one text after another in one string, with other things between them.
TEST(JsonWriter, TheNextOutermostTextBeginsWithoutAComma) {
  std::string text = "<a>";
  JsonWriter json(text);
  json.begin_list().number(1).end_list();
  text += "</a><b>";
  json.begin_object().end_object();
  EXPECT_EQ(text, "<a>[1]</a><b>{}");
}

}  // namespace
}  // namespace lockstep
