// Tests: io/formats/example.cpp
#include "lockstep/io/formats/example.h"

#include <array>
#include <cstring>
#include <limits>
#include <random>

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
using ::testing::IsEmpty;
using testing::varint_of;

using namespace std::string_literals;

// --- Examples by the definition: example.proto and feature.proto, by their field numbers

std::string example_of(const std::string& entries) { return field_of(1, entries); }
std::string entry_of(std::string_view name, const std::string& feature) {
  return field_of(1, field_of(1, name) + field_of(2, feature));
}
std::string bytes_of(float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return bytes;
}
std::string floats(const std::vector<float>& values) {
  std::string packed;
  for (const float value : values) packed += bytes_of(value);
  return field_of(2, field_of(1, packed));
}
std::string unpacked_floats(const std::vector<float>& values) {
  std::string list;
  for (const float value : values) list += "\x0d" + bytes_of(value);
  return field_of(2, list);
}
std::string integers(const std::vector<std::int64_t>& values) {
  std::string packed;
  for (const std::int64_t value : values) packed += varint_of(static_cast<std::uint64_t>(value));
  return field_of(3, field_of(1, packed));
}
std::string unpacked_integers(const std::vector<std::int64_t>& values) {
  std::string list;
  for (const std::int64_t value : values) list += "\x08" + varint_of(static_cast<std::uint64_t>(value));
  return field_of(3, list);
}
std::string strings(const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) list += field_of(1, value);
  return field_of(1, list);
}

// The values of one feature 'x' of this shape.
FeatureValue parse_x(const FeatureSpec& spec, const std::string& record) {
  std::vector<FeatureValue> values;
  ExampleParser({spec}).parse(record, values);
  return values.at(0);
}
std::vector<float> floats_of(const FeatureValue& value) {
  const auto data = value.tensor.data<float>();
  return {data.begin(), data.end()};
}
std::vector<std::int64_t> integers_of(const FeatureValue& value) {
  const auto data = value.tensor.data<std::int64_t>();
  return {data.begin(), data.end()};
}

const FeatureSpec kFloats{.name = "x", .shape = {3}};
const FeatureSpec kIntegers{.name = "x", .type = FeatureType::kI64, .shape = {3}};
const FeatureSpec kStrings{.name = "x", .type = FeatureType::kBytes, .shape = {2}};

TEST(Example, ReadsEachTypePackedAndNot) {
  const std::vector<float> some = {1.5F, -2, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(floats_of(parse_x(kFloats, example_of(entry_of("x", floats(some))))), some);
  EXPECT_EQ(floats_of(parse_x(kFloats, example_of(entry_of("x", unpacked_floats(some))))), some);
  const std::vector<std::int64_t> whole = {5, -1, std::numeric_limits<std::int64_t>::min()};
  EXPECT_EQ(integers_of(parse_x(kIntegers, example_of(entry_of("x", integers(whole))))), whole);
  EXPECT_EQ(integers_of(parse_x(kIntegers, example_of(entry_of("x", unpacked_integers(whole))))), whole);
  EXPECT_THAT(parse_x(kStrings, example_of(entry_of("x", strings({"a", ""})))).strings, ElementsAre("a", ""));
}

// The bytes of the example of tf.train.Example's documentation: {"feature0": 0, "feature1": 4, "feature2":
// "goat", "feature3": 0.9876}, as TensorFlow 2 prints them.
TEST(Example, ReadsWhatTensorFlowWrites) {
  const std::string record =
      "\nR\n\x11\n\x08"
      "feature0\x12\x05\x1a\x03\n\x01\x00\n\x14\n\x08"
      "feature2\x12\x08\n\x06\n\x04goat"
      "\n\x11\n\x08"
      "feature1\x12\x05\x1a\x03\n\x01\x04\n\x14\n\x08"
      "feature3\x12\x08\x12\x06\n\x04[\xd3|?"s;
  const ExampleParser parser({{.name = "feature0", .type = FeatureType::kI64},
                              {.name = "feature1", .type = FeatureType::kI64},
                              {.name = "feature2", .type = FeatureType::kBytes},
                              {.name = "feature3"}});
  std::vector<FeatureValue> values;
  parser.parse(record, values);
  EXPECT_EQ(values[0].tensor.item(), 0);
  EXPECT_EQ(values[1].tensor.item(), 4);
  EXPECT_THAT(values[2].strings, ElementsAre("goat"));
  EXPECT_EQ(values[3].tensor.data<float>()[0], 0.9876F);
}

TEST(Example, GivesTheDeclaredShape) {
  const FeatureValue value =
      parse_x({.name = "x", .shape = {2, 3}}, example_of(entry_of("x", floats({1, 2, 3, 4, 5, 6}))));
  EXPECT_EQ(value.tensor.shape(), (Shape{2, 3}));
  const FeatureValue none = parse_x({.name = "x", .shape = {0}}, example_of(entry_of("x", floats({}))));
  EXPECT_EQ(none.tensor.shape(), Shape{0});
}

TEST(Example, TakesAnyNumberOfValuesIfToldTo) {
  const FeatureSpec any{.name = "x", .type = FeatureType::kI64, .shape = {kUnknown}};
  EXPECT_THAT(integers_of(parse_x(any, example_of(entry_of("x", integers({7, 8}))))), ElementsAre(7, 8));
  EXPECT_THAT(integers_of(parse_x(any, example_of(entry_of("x", integers({}))))), IsEmpty());
  EXPECT_THAT(integers_of(parse_x(any, "")), IsEmpty());
  const FeatureSpec words{.name = "x", .type = FeatureType::kBytes, .shape = {kUnknown}};
  EXPECT_THAT(parse_x(words, example_of(entry_of("x", strings({"a", "b", "c"})))).strings,
              ElementsAre("a", "b", "c"));
}

TEST(Example, FillsInWhatIsMissing) {
  FeatureSpec spec = kFloats;
  spec.otherwise.tensor = Tensor::from({3}, {1.F, 2.F, 3.F});
  EXPECT_THAT(floats_of(parse_x(spec, "")), ElementsAre(1, 2, 3));
  EXPECT_THAT(floats_of(parse_x(spec, example_of(entry_of("x", "")))),
              ElementsAre(1, 2, 3));  // without a type
  spec.otherwise.tensor = Tensor::scalar(7.F);
  EXPECT_THAT(floats_of(parse_x(spec, example_of(entry_of("y", floats({1}))))), ElementsAre(7, 7, 7));
  FeatureSpec words = kStrings;
  words.otherwise.strings = {"none"};
  EXPECT_THAT(parse_x(words, "").strings, ElementsAre("none", "none"));
}

TEST(Example, PassesOverWhatIsNotDeclared) {
  const std::string record =
      "\x12\x03"
      "abc" +
      example_of(entry_of("w", strings({"?"})) + entry_of("x", floats({1, 2, 3})) + "\x12\x01z" +
                 entry_of("xx", floats({4})) + entry_of("y", integers({5})));
  EXPECT_THAT(floats_of(parse_x(kFloats, record)), ElementsAre(1, 2, 3));
}

// As protocol buffers join messages: the last entry of a map, values of one kind appended, the last kind.
TEST(Example, JoinsWhatComesTwice) {
  const auto values = [](const std::string& record) { return floats_of(parse_x(kFloats, record)); };
  const std::string other = entry_of("x", floats({9})), wanted = entry_of("x", floats({1, 2, 3}));
  EXPECT_THAT(values(example_of(other + wanted)), ElementsAre(1, 2, 3));
  EXPECT_THAT(values(example_of(other) + example_of(wanted)), ElementsAre(1, 2, 3));
  EXPECT_THAT(values(example_of(entry_of("x", floats({1}) + unpacked_floats({2, 3})))), ElementsAre(1, 2, 3));
  EXPECT_THAT(values(example_of(entry_of("x", integers({1}) + floats({1, 2}) + floats({3})))),
              ElementsAre(1, 2, 3));
  EXPECT_THAT(values(example_of(entry_of("x", floats({8}) + strings({"a"}) + floats({1, 2, 3})))),
              ElementsAre(1, 2, 3));
  const std::string two_values =
      field_of(1, field_of(1, "x") + field_of(2, floats({1, 2})) + field_of(2, floats({3})));
  EXPECT_THAT(values(example_of(two_values)), ElementsAre(1, 2, 3));
  const std::string value_first = field_of(1, field_of(2, floats({1, 2, 3})) + field_of(1, "x"));
  EXPECT_THAT(values(example_of(value_first)), ElementsAre(1, 2, 3));
}

TEST(Example, NamesTheRecordAndTheFeature) {
  const auto failure = [](const FeatureSpec& spec, const std::string& record) {
    return error_of([&] {
      std::vector<FeatureValue> values;
      ExampleParser({spec}).parse(record, values, {"train.tfrecord", 17});
    });
  };
  EXPECT_EQ(failure(kFloats, ""),
            "InvalidArgument: train.tfrecord: record 17: feature 'x' is missing; give it `otherwise`, or "
            "declare it as [?]");
  EXPECT_THAT(failure(kFloats, example_of(entry_of("x", integers({1, 2, 3})))),
              HasSubstr("feature 'x' holds i64, and f32 is declared"));
  EXPECT_THAT(failure(kFloats, example_of(entry_of("x", floats({1, 2})))),
              HasSubstr("feature 'x' has 2 values; its shape [3] needs 3"));
  EXPECT_THAT(failure(kIntegers, example_of(entry_of("x", integers({1})))),
              HasSubstr("has 1 value; its shape [3]"));
  EXPECT_THAT(failure(kFloats, "no message"),
              HasSubstr("DataLoss: train.tfrecord: record 17 is no whole tf.train.Example"));
  EXPECT_THAT(failure(kFloats, example_of(entry_of("x", field_of(2, field_of(1, "abcde"))))),
              HasSubstr("train.tfrecord: record 17"));
}

TEST(Example, RefusesDeclarationsThatDoNotFit) {
  const auto failure = [](const std::vector<FeatureSpec>& specs) {
    return error_of([&] { ExampleParser parser(specs); });
  };
  EXPECT_THAT(failure({kFloats, kIntegers}), HasSubstr("the feature 'x' is declared twice"));
  EXPECT_THAT(failure({{.name = "x", .shape = {2, kUnknown}}}), HasSubstr("neither known nor [?]"));
  FeatureSpec spec = kFloats;
  spec.otherwise.tensor = Tensor::from({2}, {1.F, 2.F});
  EXPECT_THAT(failure({spec}), HasSubstr("`otherwise` has 2 values; its shape [3] needs 3, or 1"));
  spec.otherwise.tensor = Tensor::scalar(std::int64_t{1});
  EXPECT_THAT(failure({spec}), HasSubstr("`otherwise` is i64[], and the feature is f32"));
  spec.otherwise = {.strings = {"a"}};
  EXPECT_THAT(failure({spec}), HasSubstr("`otherwise` holds strings"));
  spec = {.name = "x", .shape = {kUnknown}, .otherwise = {.tensor = Tensor::scalar(1.F)}};
  EXPECT_THAT(failure({spec}), HasSubstr("needs no `otherwise`"));
}

TEST(Example, BoundsTheMemoryOfManyEmptyStrings) {
  const FeatureSpec words{.name = "x", .type = FeatureType::kBytes, .shape = {kUnknown}};
  const ExampleParser parser({words}, {.base_bytes = 1000, .bytes_per_byte = 1});
  std::vector<FeatureValue> values;
  EXPECT_THAT(error_of([&] {
                parser.parse(example_of(entry_of("x", strings(std::vector<std::string>(100)))), values);
              }),
              HasSubstr("would take more than"));
}

TEST(Example, FindsEachOfManyFeatures) {
  std::vector<FeatureSpec> specs;
  ExampleBuilder builder;
  for (int i = 0; i < 100; ++i) {
    const std::string name = str(i % 3 == 0 ? "feature_" : "f", i);
    specs.push_back({.name = name, .type = FeatureType::kI64});
    const std::int64_t value = i * i;
    builder.integers(name, &value, 1).bytes(name + "x", "?");
  }
  std::vector<FeatureValue> values;
  ExampleParser(specs).parse(builder.encoded(), values);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(values[i].tensor.item(), static_cast<double>(i * i));
}

TEST(Example, WritesIntoTensorsThatNobodyElseHolds) {
  const ExampleParser parser({kFloats});
  std::vector<FeatureValue> values;
  parser.parse(example_of(entry_of("x", floats({1, 2, 3}))), values);
  const void* const memory = values[0].tensor.raw();
  parser.parse(example_of(entry_of("x", floats({4, 5, 6}))), values);
  EXPECT_EQ(values[0].tensor.raw(), memory);
  const Tensor kept = values[0].tensor;
  parser.parse(example_of(entry_of("x", floats({7, 8, 9}))), values);
  EXPECT_EQ(kept.data<float>()[0], 4);
  EXPECT_EQ(values[0].tensor.data<float>()[0], 7);
}

TEST(Example, ParsesABatchAsEachRecord) {
  const FeatureSpec otherwise{.name = "d", .shape = {2}, .otherwise = {.tensor = Tensor::scalar(-1.F)}};
  const ExampleParser parser({{.name = "f", .shape = {2}},
                              {.name = "i", .type = FeatureType::kI64},
                              {.name = "s", .type = FeatureType::kBytes, .shape = {2}},
                              {.name = "v", .type = FeatureType::kI64, .shape = {kUnknown}},
                              {.name = "w", .type = FeatureType::kBytes, .shape = {kUnknown}},
                              otherwise});
  std::vector<std::string> records;
  std::mt19937 random(2);
  for (int i = 0; i < 20; ++i) {
    ExampleBuilder builder;
    const std::array<float, 2> pair = {static_cast<float>(i), 0.5F};
    const std::int64_t number = -i;
    builder.floats("f", pair.data(), 2).integers("i", &number, 1).strings("s", {str(i), "s"});
    if (i % 3 != 0) {
      const std::vector<std::int64_t> many(random() % 5, i);
      builder.integers("v", many.data(), many.size())
          .strings("w", std::vector<std::string>(many.size(), str("w", i)));
    }
    if (i % 2 == 0) builder.floats("d", pair.data(), 2);
    records.push_back(builder.encoded());
  }
  std::vector<FeatureValue> batch, one;
  parser.parse_batch(records, batch);
  EXPECT_EQ(batch[0].tensor.shape(), (Shape{20, 2}));
  EXPECT_EQ(batch[1].tensor.shape(), (Shape{20}));
  EXPECT_EQ(batch[3].lengths.shape(), (Shape{20}));
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < 20; ++i) {
    parser.parse(records[static_cast<std::size_t>(i)], one);
    for (const std::size_t k : {0U, 1U, 5U}) {
      EXPECT_TRUE(batch[k].tensor.slice(i, i + 1).reshape(one[k].tensor.shape()).bit_equal(one[k].tensor));
    }
    const auto first = batch[2].strings.begin() + 2 * i;
    EXPECT_EQ(std::vector<std::string>(first, first + 2), one[2].strings);
    const std::int64_t length = batch[3].lengths.data<std::int64_t>()[static_cast<std::size_t>(i)];
    EXPECT_TRUE(batch[3].tensor.slice(at, at + length).bit_equal(one[3].tensor));
    EXPECT_EQ(batch[4].lengths.data<std::int64_t>()[static_cast<std::size_t>(i)], length);
    at += length;
  }
  EXPECT_EQ(batch[3].tensor.num_elements(), at);
  EXPECT_EQ(batch[4].strings.size(), static_cast<std::size_t>(at));
  records[7].resize(3);
  EXPECT_THAT(error_of([&] {
                parser.parse_batch(records, batch, {"f", 100});
              }),
              HasSubstr("f: record 107 is no whole"));
  parser.parse_batch({}, batch);
  EXPECT_EQ(batch[0].tensor.shape(), (Shape{0, 2}));
}

TEST(Example, WritesWhatTheDefinitionSays) {
  const std::array<float, 2> some = {1.5F, -2};
  const std::array<std::int64_t, 2> whole = {-1, 300};
  ExampleBuilder builder;
  builder.floats("f", some.data(), 2)
      .integers("i", whole.data(), 2)
      .bytes("b", "xyz")
      .strings("s", {"p", ""});
  EXPECT_EQ(builder.encoded(),
            example_of(entry_of("f", floats({1.5F, -2})) + entry_of("i", integers({-1, 300})) +
                       entry_of("b", strings({"xyz"})) + entry_of("s", strings({"p", ""}))));
}

TEST(Example, WritesTensorsOfEveryDtype) {
  for (const DType dtype : kAllDTypes) {
    ExampleBuilder builder;
    builder.tensor("x", Tensor::full(dtype, {3}, 1));
    const FeatureValue value = parse_x(is_floating(dtype) ? kFloats : kIntegers, builder.encoded());
    EXPECT_EQ(value.tensor.slice(2, 3).item(), 1) << dtype;
  }
  EXPECT_THAT(error_of([] { ExampleBuilder().tensor("x", Tensor::scalar(1e300)); }), HasSubstr("holds f32"));
}

TEST(Example, ListsItsFeatures) {
  const auto features = features_of(
      example_of(entry_of("a", floats({1, 2})) + entry_of("b", strings({"x"})) + entry_of("c", "")));
  ASSERT_EQ(features.size(), 2U);
  EXPECT_EQ(features[0].name, "a");
  EXPECT_EQ(features[0].count, 2);
  EXPECT_EQ(features[1].type, FeatureType::kBytes);
}

// Whatever happens to the bytes of a record: values of the declared shape, or an Error.
TEST(Example, ReadsDamagedRecordsOrRefusesThem) {
  const std::string record = example_of(entry_of("x", floats({1, 2, 3})) + entry_of("i", integers({1, 300})) +
                                        entry_of("s", strings({"abc"})));
  const ExampleParser parser({kFloats,
                              {.name = "i", .type = FeatureType::kI64, .shape = {kUnknown}},
                              {.name = "s", .type = FeatureType::kBytes, .shape = {kUnknown}}});
  std::mt19937 random(9);
  std::vector<FeatureValue> values;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = record;
    for (std::size_t i = 0; i <= random() % 3; ++i)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    try {
      parser.parse(damaged, values);
      ASSERT_EQ(values[0].tensor.shape(), Shape{3});
    } catch (const Error& error) {
      ASSERT_NE(error.code(), ErrorCode::kInternal) << error.message();
    }
  }
}

}  // namespace
}  // namespace lockstep
