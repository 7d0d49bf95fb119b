// Tests: io/formats/csv.cpp, io/formats/csv_fields.cpp, io/formats/csv_reader.cpp
#include "lockstep/io/formats/csv.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "support/packed.h"
#include "support/record_files.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::all_records;
using ::testing::ElementsAre;
using testing::error_of;
using testing::gzip_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::records_from_each_position;
using testing::write_to;

using namespace std::string_literals;

const CsvColumn kText{.name = "t", .dtype = std::nullopt};
CsvSchema two_columns() { return CsvSchema({{.name = "a"}, {.name = "t", .dtype = std::nullopt}}); }

class Csv : public ::testing::Test {
 protected:
  std::unique_ptr<CsvReader> open(const std::string& bytes, const CsvSchema& schema = two_columns(),
                                  const CsvOptions& options = {.header = false}) {
    return open_csv(write_to(folder_ / "f.csv", bytes), schema, options);
  }
  std::vector<std::string> records(const std::string& bytes, const CsvOptions& options = {.header = false}) {
    return all_records(*open(bytes, two_columns(), options));
  }
  // Of what reads all values.
  std::string failure(const std::string& bytes, const CsvSchema& schema = two_columns(),
                      const CsvOptions& options = {.header = false}) {
    return error_of([&] {
      const auto reader = open(bytes, schema, options);
      CsvTable table(schema);
      table.read(*reader, 1000000);
    });
  }
  TemporaryFolder folder_;
};

// --- records

TEST_F(Csv, GivesTheTextOfEachRecord) {
  EXPECT_THAT(records("1,a\n2,b\r\n3,c"), ElementsAre("1,a", "2,b", "3,c"));
  EXPECT_THAT(records("1,a\n\n\r\n2,b\n\n"), ElementsAre("1,a", "2,b"));
  EXPECT_THAT(records(""), IsEmpty());
  EXPECT_THAT(records("\xEF\xBB\xBF"
                      "1,a\n"),
              ElementsAre("1,a"));
  EXPECT_THAT(records(gzip_of("1,a\n2,b\n")), ElementsAre("1,a", "2,b"));
  EXPECT_THAT(records("a,t\n1,a\n", {.header = true}), ElementsAre("1,a"));
  EXPECT_THAT(records("a,\"t\"\r\n1,a\n", {.header = true}), ElementsAre("1,a"));
}

TEST_F(Csv, JoinsLinesInQuotes) {
  EXPECT_THAT(records("1,\"a\nb\"\n2,\"\"\"\n\"\n3,\"a\r\n\r\nb\"\r\n4,c"),
              ElementsAre("1,\"a\nb\"", "2,\"\"\"\n\"", "3,\"a\r\n\r\nb\"", "4,c"));
}

TEST_F(Csv, TakesAnEmptyLineOfOneColumnForARecord) {
  const CsvSchema one({{.name = "a", .otherwise = "7"}});
  const auto reader = open("1\n\n3\n", one);
  CsvTable table(one);
  EXPECT_EQ(table.read(*reader, 10), 3);
  EXPECT_TRUE(table.take()[0].tensor.bit_equal(Tensor::from({3}, {1.F, 7.F, 3.F})));
}

TEST_F(Csv, GoesOnFromEachPosition) {
  std::mt19937 random(6);
  std::string text = "a,t\n";
  std::vector<std::string> wanted;
  for (int i = 0; i < 200; ++i) {
    wanted.push_back(str(i, ",\"", random() % 2 == 0 ? "x\ny" : "z", std::string(random() % 50, 'q'), "\""));
    text += wanted.back() + (random() % 3 == 0 ? "\r\n" : "\n");
  }
  for (const std::string& bytes : {text, gzip_of(text)})
    EXPECT_EQ(records_from_each_position(*open(bytes, two_columns(), {})), wanted);
  const auto reader = open(text, two_columns(), {});
  std::string record;
  reader->next(record);
  reader->seek({});  // the beginning is the first record, and not the header
  reader->next(record);
  EXPECT_EQ(record, wanted[0]);
}

TEST_F(Csv, KnowsTheLineOfARecord) {
  const auto reader = open("a,t\n\n1,\"x\ny\"\n\n2,b\n3,c\n", two_columns(), {});
  std::string record;
  std::vector<std::uint64_t> lines;
  std::vector<ReadPosition> positions = {reader->position()};
  while (reader->next(record)) {
    lines.push_back(reader->line());
    positions.push_back(reader->position());
  }
  EXPECT_THAT(lines, ElementsAre(3, 6, 7));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    reader->seek(positions[i]);
    reader->next(record);
    EXPECT_EQ(reader->line(), lines[i]);
  }
  reader->seek(positions[1]);
  reader->next(record);
  reader->next(record);
  EXPECT_EQ(reader->line(), 7U);
}

// --- values

template <class T>
T number(DType dtype, const std::string& text) {
  const auto values = parse_csv_record(text, CsvSchema({{.name = "x", .dtype = dtype}}));
  return values.at(0).tensor.data<T>()[0];
}

TEST_F(Csv, ReadsNumbersOfEveryDtype) {
  EXPECT_EQ(number<float>(DType::kF32, "1.5"), 1.5F);
  EXPECT_EQ(number<float>(DType::kF32, " +2.5e3\t"), 2500);
  EXPECT_EQ(number<float>(DType::kF32, "\" -3 \""), -3);
  EXPECT_TRUE(std::isnan(number<float>(DType::kF32, "nan")));
  EXPECT_EQ(number<double>(DType::kF64, "-inf"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(number<double>(DType::kF64, "0.1"), 0.1);
  EXPECT_EQ(number<std::int64_t>(DType::kI64, "-9223372036854775808"),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(number<std::int32_t>(DType::kI32, "+7"), 7);
  EXPECT_EQ(number<std::uint8_t>(DType::kU8, "255"), 255);
  EXPECT_EQ(static_cast<float>(number<F16>(DType::kF16, "0.333")), static_cast<float>(F16(0.333F)));
  EXPECT_EQ(static_cast<float>(number<BF16>(DType::kBF16, "3")), 3);
  for (const char* yes : {"1", "true", "True", "TRUE", " true "})
    EXPECT_TRUE(number<bool>(DType::kBool, yes));
  for (const char* no : {"0", "false", "False", "FALSE"}) EXPECT_FALSE(number<bool>(DType::kBool, no));
}

TEST_F(Csv, TakesTooSmallNumbersForZero) {
  EXPECT_EQ(number<float>(DType::kF32, "1e-60"), 0);
  EXPECT_EQ(number<float>(DType::kF32, "-1e-60"), 0);
  EXPECT_EQ(number<double>(DType::kF64, "1e-400"), 0);
  EXPECT_EQ(number<float>(DType::kF32, "0." + std::string(100, '0') + "1"), 0);
}

// Short numbers are read in a way of their own: to the last bit as the standard library reads them.
TEST_F(Csv, ReadsShortNumbersExactly) {
  std::mt19937_64 random(13);
  const CsvSchema both({{.name = "f"}, {.name = "d", .dtype = DType::kF64}});
  CsvTable table(both);
  std::vector<float> floats;
  std::vector<double> doubles;
  for (int i = 0; i < 50000; ++i) {
    std::string text = random() % 2 == 0 ? "-" : "";
    for (std::size_t k = 1 + random() % 10; k > 0; --k) text += static_cast<char>('0' + random() % 10);
    if (random() % 4 != 0) text += '.';
    for (std::size_t k = random() % 12; k > 0; --k) text += static_cast<char>('0' + random() % 10);
    if (i % 50 == 0) text = str(16777217 + 2 * (i % 1000), i % 100 == 0 ? "" : ".000");  // between two floats
    if (i % 50 == 1) text = str(16777217 + 2 * (i % 1000), ".0000000001");
    floats.push_back(std::strtof(text.c_str(), nullptr));
    doubles.push_back(std::strtod(text.c_str(), nullptr));
    table.add(text + "," + text);
  }
  const auto columns = table.take();
  const auto count = static_cast<std::int64_t>(floats.size());
  EXPECT_TRUE(columns[0].tensor.bit_equal(Tensor::from({count}, std::span<const float>(floats))));
  EXPECT_TRUE(columns[1].tensor.bit_equal(Tensor::from({count}, std::span<const double>(doubles))));
  for (const char* text : {".", "-", "-.", ""})
    EXPECT_THAT(error_of([&] { parse_csv_record(text, CsvSchema({{.name = "f"}})); }),
                HasSubstr("InvalidArgument"));
  EXPECT_EQ(number<float>(DType::kF32, "5."), 5);
  EXPECT_EQ(number<float>(DType::kF32, ".5"), 0.5F);
}

TEST_F(Csv, RefusesWhatIsNoNumberOfItsColumn) {
  for (const auto& [dtype, text] :
       std::vector<std::pair<DType, std::string>>{{DType::kF32, "abc"},
                                                  {DType::kF32, "1.5x"},
                                                  {DType::kF32, "1e60"},
                                                  {DType::kF32, "1 2"},
                                                  {DType::kF32, "0x10"},
                                                  {DType::kF32, "+-1"},
                                                  {DType::kF32, "+"},
                                                  {DType::kF64, "1e400"},
                                                  {DType::kF16, "70000"},
                                                  {DType::kBF16, "4e38"},
                                                  {DType::kI64, "1.0"},
                                                  {DType::kI64, "9223372036854775808"},
                                                  {DType::kI32, "2147483648"},
                                                  {DType::kU8, "256"},
                                                  {DType::kU8, "-1"},
                                                  {DType::kBool, "2"},
                                                  {DType::kBool, "yes"},
                                                  {DType::kBool, "10"},
                                                  {DType::kF32, "  "}}) {
    EXPECT_THAT(
        error_of([&, d = dtype, t = text] { parse_csv_record(t, CsvSchema({{.name = "x", .dtype = d}})); }),
        HasSubstr("InvalidArgument"))
        << text;
  }
}

TEST_F(Csv, ReadsTexts) {
  const CsvSchema schema({kText, {.name = "u", .dtype = std::nullopt, .otherwise = "none"}});
  const auto texts = [&](const std::string& record) {
    const auto values = parse_csv_record(record, schema);
    return std::pair(values[0].strings.at(0), values[1].strings.at(0));
  };
  EXPECT_EQ(texts("a, b "), std::pair("a"s, " b "s));
  EXPECT_EQ(texts("\"a,b\",\"say \"\"hi\"\"\""), std::pair("a,b"s, "say \"hi\""s));
  EXPECT_EQ(texts("\"\"\"\",\"x\ny\""), std::pair("\""s, "x\ny"s));
  EXPECT_EQ(texts("\"\","), std::pair(""s, "none"s));
  EXPECT_EQ(texts("\"\",\"\""), std::pair(""s, ""s));
}

TEST_F(Csv, FillsInWhatIsMissing) {
  const CsvSchema schema(
      {{.name = "a", .otherwise = "-1"}, {.name = "b", .dtype = DType::kI64, .otherwise = " 5"}});
  const auto values = parse_csv_record(",\"\"", schema);
  EXPECT_EQ(values[0].tensor.item(), -1);
  EXPECT_EQ(values[1].tensor.item(), 5);
  EXPECT_THAT(failure(",x\n"),
              HasSubstr("f.csv:1: column 1 ('a'): it has no value; give the column `otherwise`"));
  EXPECT_THAT(failure("1,\n"), HasSubstr("f.csv:1: column 2 ('t'): it has no value"));
}

TEST_F(Csv, TakesOtherDelimiters) {
  for (const char delimiter : {';', '\t', '|', ' '}) {
    const CsvSchema schema({{.name = "a"}, {.name = "t", .dtype = std::nullopt}}, delimiter);
    const auto values = parse_csv_record(str("1", delimiter, "\"a", delimiter, "b\""), schema);
    EXPECT_EQ(values[0].tensor.item(), 1);
    EXPECT_EQ(values[1].strings[0], str("a", delimiter, "b"));
  }
}

TEST_F(Csv, NamesFileLineAndColumn) {
  EXPECT_THAT(failure("1,a\n\nx,b\n"), HasSubstr("f.csv:3: column 1 ('a'): 'x' is no f32"));
  EXPECT_THAT(failure("a,t\n1,a\nx,b\n", two_columns(), {}),
              HasSubstr("f.csv:3: column 1 ('a'): 'x' is no f32"));
  EXPECT_THAT(failure("1,a\n2\n"), HasSubstr("f.csv:2: the record has 1 field, and the schema 2 columns"));
  EXPECT_THAT(failure("1,a,\n"), HasSubstr("the record has more than 2 fields"));
  EXPECT_THAT(failure("1,a\"b\n2,\"\n"), HasSubstr("a quote stands inside of a field"));
  EXPECT_THAT(failure("1,\"a\"b\n"), HasSubstr("something follows its closing quote"));
  EXPECT_THAT(failure("1,a\n2,\"b\n3,c\n"), HasSubstr("f.csv:2: a quote of the record does not end"));
  EXPECT_THAT(failure("1,a\n2,\"b"), HasSubstr("f.csv:2: a quote of the record does not end"));
  const CsvSchema three({kText, {.name = "u", .dtype = std::nullopt}, {.name = "n", .dtype = DType::kI64}});
  EXPECT_THAT(failure("\"a\n\nb\",c,1.5\n", three), HasSubstr("f.csv:3: column 3 ('n'): '1.5' is no i64"));
  EXPECT_THAT(failure("1,0123456789\n", two_columns(), {.header = false, .record_bytes = 10}),
              HasSubstr("f.csv:1: the record is longer than"));
  EXPECT_THAT(error_of([] { parse_csv_record("x,a", two_columns(), {.file = "g.csv", .line = 12}); }),
              HasSubstr("g.csv:12: column 1"));
}

TEST_F(Csv, NamesTheLineAfterASeek) {
  const std::string text = "1,\"a\nb\"\n2,b\nx,c\n";
  const auto first = open(text);
  std::string record;
  first->next(record);
  const ReadPosition position = first->position();
  const auto reader = open(text);
  reader->seek(position);
  CsvTable table(two_columns());
  EXPECT_THAT(error_of([&] { table.read(*reader, 10); }), HasSubstr("f.csv:4: column 1"));
  EXPECT_EQ(table.rows(), 1);
}

TEST_F(Csv, ComparesTheHeader) {
  EXPECT_THAT(failure("a,b\n", two_columns(), {}),
              HasSubstr("f.csv:1: column 2 is called 'b', and 't' is declared"));
  EXPECT_THAT(failure("a\n", two_columns(), {}), HasSubstr("the header has 1 column, and the schema 2"));
  EXPECT_THAT(failure("a,t,u\n", two_columns(), {}), HasSubstr("the header has 3 columns"));
  EXPECT_THAT(failure("", two_columns(), {}), HasSubstr("is called ''"));
  write_to(folder_ / "h.csv", "one;\"two\nlines\";3\n1;2;3\n");
  EXPECT_THAT(read_csv_header(folder_ / "h.csv", ';'), ElementsAre("one", "two\nlines", "3"));
}

TEST_F(Csv, RefusesSchemasThatDoNotFit) {
  EXPECT_THAT(error_of([] { CsvSchema schema({}); }), HasSubstr("needs a column"));
  EXPECT_THAT(error_of([] { CsvSchema schema({{.name = "a", .otherwise = "x"}}); }),
              HasSubstr("`otherwise` 'x' is no f32"));
  for (const char delimiter : {'"', '\n', '\r', '5', 'e', '-', '.'})
    EXPECT_THAT(error_of([&] { CsvSchema schema({kText}, delimiter); }),
                HasSubstr("cannot be the delimiter"));
}

// --- tables

TEST_F(Csv, ReadsColumnsAsRecordByRecord) {
  const CsvSchema schema({{.name = "f"},
                          {.name = "i", .dtype = DType::kI64, .otherwise = "0"},
                          {.name = "t", .dtype = std::nullopt, .otherwise = "?"},
                          {.name = "h", .dtype = DType::kF16}});
  std::mt19937 random(8);
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text += str(static_cast<float>(random()) / 1e6F, ",", i % 7 == 0 ? "" : str(i), ",",
                i % 5 == 0 ? "" : "\"q\"\"\n\"", ",", i % 100, "\n");
  }
  const auto reader = open(text, schema);
  CsvTable table(schema);
  EXPECT_EQ(table.read(*reader, 700), 700);
  const std::vector<CsvValue> columns = table.take();
  EXPECT_EQ(table.read(*reader, 700), 300);
  EXPECT_EQ(table.rows(), 300);
  const std::vector<CsvValue> rest = table.take();
  EXPECT_EQ(table.rows(), 0);
  reader->seek({});
  std::string record;
  for (std::int64_t row = 0; reader->next(record); ++row) {
    const auto values = parse_csv_record(record, schema);
    const auto& from = row < 700 ? columns : rest;
    const std::int64_t at = row < 700 ? row : row - 700;
    for (const std::size_t k : {0U, 1U, 3U})
      ASSERT_TRUE(from[k].tensor.slice(at, at + 1).reshape({}).bit_equal(values[k].tensor));
    ASSERT_EQ(from[2].strings[static_cast<std::size_t>(at)], values[2].strings[0]);
  }
}

TEST_F(Csv, WritesWhatItReads) {
  std::mt19937 random(10);
  std::vector<std::vector<std::string>> wanted;
  std::string text;
  for (int i = 0; i < 500; ++i) {
    std::vector<std::string> fields(1 + random() % 3);
    for (std::string& field : fields) {
      for (std::size_t k = random() % 6; k > 0; --k) field += "a\",\n\r b"[random() % 7];
    }
    append_csv_record(text, fields);
    wanted.push_back(fields);
  }
  const auto reader = open(text, CsvSchema({kText}));
  std::string record;
  for (const std::vector<std::string>& fields : wanted) {
    ASSERT_TRUE(reader->next(record));
    ASSERT_EQ(split_csv_record(record), fields);
  }
  EXPECT_FALSE(reader->next(record));
  std::string line;
  append_csv_record(line, {"a", "b;c", "d\"e"}, ';');
  EXPECT_EQ(line, "a;\"b;c\";\"d\"\"e\"\n");
}

// Any bytes: records whose fields can be read, or an Error.
TEST_F(Csv, ReadsAnyBytesOrRefusesThem) {
  std::mt19937 random(12);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (std::size_t k = random() % 60; k > 0; --k) text += "12.,,\"\n\r-ex "[random() % 12];
    EXPECT_THAT(failure(text), ::testing::Not(HasSubstr("Internal"))) << text;
  }
}

}  // namespace
}  // namespace lockstep
