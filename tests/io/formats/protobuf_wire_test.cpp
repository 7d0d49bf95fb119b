// Tests: io/formats/protobuf_wire.cpp
#include "lockstep/io/formats/protobuf_wire.h"

#include <bit>
#include <cstdint>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "support/record_files.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::field_of;
using ::testing::HasSubstr;
using testing::varint_of;

using namespace std::string_literals;

// The field lies in a copy of the message, which stays.
WireField first_field(const std::string& message) {
  static std::deque<std::string> kept;
  WireReader reader(kept.emplace_back(message));
  WireField field;
  EXPECT_TRUE(reader.next(field));
  return field;
}

std::string failure(std::string_view message) {
  return error_of([&] {
    WireReader reader(message);
    for (WireField field; reader.next(field);) {
    }
  });
}

// The examples of protobuf.dev's page on its encoding.
TEST(ProtobufWire, ReadsTheExamplesOfItsDefinition) {
  const WireField number = first_field("\x08\x96\x01"s);
  EXPECT_EQ(number.number, 1U);
  EXPECT_EQ(number.integer(), 150);
  const WireField text = first_field("\x12\x07testing"s);
  EXPECT_EQ(text.number, 2U);
  EXPECT_EQ(text.text(), "testing");
  EXPECT_EQ(text.at, 2U);
  const std::string nested = "\x1a\x03\x08\x96\x01"s;
  WireReader reader(nested);
  WireField field;
  ASSERT_TRUE(reader.next(field));
  WireReader inner = reader.inside(field);
  ASSERT_TRUE(inner.next(field));
  EXPECT_EQ(field.integer(), 150);
  EXPECT_EQ(field.at, 3U);
  const std::string packed = "\x32\x06\x03\x8e\x02\x9e\xa7\x05"s;
  std::vector<std::uint64_t> values;
  first_field(packed).each_varint([&](std::uint64_t value) { values.push_back(value); });
  EXPECT_THAT(values, ElementsAre(3, 270, 86942));
}

TEST(ProtobufWire, ReadsNumbersOfFixedWidth) {
  const WireField single = first_field("\x0d\x00\x00\xc0\x3f"s);
  EXPECT_EQ(single.single(), 1.5F);
  const WireField number = first_field("\x09\x00\x00\x00\x00\x00\x00\x04\xc0"s);
  EXPECT_EQ(number.number64(), -2.5);
  std::vector<float> floats;
  const auto add = [&](float value) { floats.push_back(value); };
  first_field("\x0a\x08\x00\x00\xc0\x3f\x00\x00\x00\xbf"s).each_float(add);
  single.each_float(add);
  EXPECT_THAT(floats, ElementsAre(1.5F, -0.5F, 1.5F));
  std::vector<double> doubles;
  number.each_double([&](double value) { doubles.push_back(value); });
  EXPECT_THAT(doubles, ElementsAre(-2.5));
}

TEST(ProtobufWire, ReadsVarintsOfEveryLength) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    for (const std::uint64_t value : {std::uint64_t{1} << bit, ~std::uint64_t{0} >> bit}) {
      const std::string message = "\x08" + varint_of(value);
      EXPECT_EQ(first_field(message).varint(), value);
    }
  }
  EXPECT_EQ(first_field("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"s).integer(), -1);
  EXPECT_EQ(first_field("\x08\x80\x80\x00"s).integer(), 0);  // longer than it needs to be
}

TEST(ProtobufWire, RefusesDamage) {
  EXPECT_THAT(failure("\x08"s), HasSubstr("DataLoss: byte 1 of the message: a number is cut off"));
  EXPECT_THAT(failure("\x08\x96"s), HasSubstr("a number is cut off"));
  EXPECT_THAT(failure("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"s), HasSubstr("more than 64 bits"));
  EXPECT_THAT(failure("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"s), HasSubstr("more than 64 bits"));
  EXPECT_THAT(failure("\x12\x07testin"s), HasSubstr("a field ends behind its message"));
  EXPECT_THAT(failure("\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"s),
              HasSubstr("a field ends behind its message"));
  EXPECT_THAT(failure("\x0d\x00\x00\xc0"s), HasSubstr("a field ends behind its message"));
  EXPECT_THAT(failure("\x09\x00"s), HasSubstr("a field ends behind its message"));
  EXPECT_THAT(failure("\x00\x00"s), HasSubstr("a number that no field has"));
  EXPECT_THAT(failure("\x80\x80\x80\x80\x10\x00"s), HasSubstr("a number that no field has"));
  EXPECT_THAT(failure("\x0b\x0c"s), HasSubstr("group"));
  EXPECT_THAT(failure("\x0c"s), HasSubstr("group"));
  EXPECT_THAT(failure("\x0e"s), HasSubstr("a wire type that does not exist"));
  EXPECT_THAT(failure("\x0f"s), HasSubstr("a wire type that does not exist"));
}

TEST(ProtobufWire, RefusesFieldsThatAreReadAsWhatTheyAreNot) {
  const WireField number = first_field("\x08\x01"s), text = first_field("\x12\x03ghi"s);
  EXPECT_THAT(error_of([&] { number.text(); }), HasSubstr("field 1 has wire type 0; expected 2"));
  EXPECT_THAT(error_of([&] { text.varint(); }), HasSubstr("field 2 has wire type 2; expected 0"));
  EXPECT_THAT(error_of([&] { number.single(); }), HasSubstr("DataLoss"));
  EXPECT_THAT(error_of([&] { number.number64(); }), HasSubstr("DataLoss"));
  EXPECT_THAT(error_of([&] { text.each_float([](float) {}); }), HasSubstr("do not fill"));
  EXPECT_THAT(error_of([&] { WireReader inside(number); }), HasSubstr("DataLoss"));
}

TEST(ProtobufWire, BoundsTheDepth) {
  std::string message;
  for (int i = 0; i < 200; ++i) message = field_of(1, message);
  int depth = 0;
  EXPECT_THAT(error_of([&] {
                WireReader reader(message);
                for (WireField field; reader.next(field); ++depth) reader = reader.inside(field);
              }),
              HasSubstr("nested too deeply"));
  EXPECT_EQ(depth, WireReader::kMaxDepth);
}

TEST(ProtobufWire, WritesWhatItsDefinitionSays) {
  EXPECT_EQ(WireMessage().integer(1, 150).encoded(), "\x08\x96\x01"s);
  EXPECT_EQ(WireMessage().integer(1, -1).encoded(), "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"s);
  EXPECT_EQ(WireMessage().bytes(2, "testing").encoded(), "\x12\x07testing"s);
  EXPECT_EQ(WireMessage().message(3, WireMessage().integer(1, 150)).encoded(), "\x1a\x03\x08\x96\x01"s);
  EXPECT_EQ(WireMessage().single(1, 1.5F).encoded(), "\x0d\x00\x00\xc0\x3f"s);
  EXPECT_EQ(WireMessage().number(1, -2.5).encoded(), "\x09\x00\x00\x00\x00\x00\x00\x04\xc0"s);
  const std::vector<std::int64_t> integers = {3, 270, 86942};
  EXPECT_EQ(WireMessage().integers(6, integers.data(), 3).encoded(), "\x32\x06\x03\x8e\x02\x9e\xa7\x05"s);
}

// Any bytes are read to their end or refused; no field lies outside of them.
TEST(ProtobufWire, ReadsAnyBytesOrRefusesThem) {
  std::mt19937 random(5);
  for (int round = 0; round < 20000; ++round) {
    std::string message(random() % 24, '\0');
    for (char& c : message) c = static_cast<char>(random() % 4 == 0 ? random() : random() % 20);
    try {
      WireReader reader(message);
      for (WireField field; reader.next(field);) {
        ASSERT_GT(field.at, 0U);
        const std::uint64_t end = field.at + (field.type == WireType::kBytes ? field.bytes.size() : 0);
        ASSERT_LE(end, message.size());
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kDataLoss);
    }
  }
}

}  // namespace
}  // namespace lockstep
