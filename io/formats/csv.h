// io/formats/csv.h - tables in text: comma-separated values, by RFC 4180.
//
//   const CsvSchema schema({{.name = "age", .dtype = DType::kI64, .otherwise = "-1"},
//                           {.name = "fare"},                                          // f32
//                           {.name = "port", .dtype = std::nullopt}});                 // text
//   auto reader = open_csv("titanic.csv", schema);
//   std::string record;
//   while (reader->next(record)) use(parse_csv_record(record, schema, {.reader = reader.get()}));
//
//   CsvTable table(schema);                         // the fast way: straight into columns
//   while (table.read(*reader, 4096) > 0) use(table.take());
//
// A record is a line, and its text is given as it is; quoted fields may hold ends of lines ("\n", "\r\n"),
// delimiters, and quotes written twice. Lines without anything are passed over, unless there is only one
// column. A byte order mark before the first line is skipped.
//
// header      the first line, which names the columns in the order of the schema (CsvOptions::header)
// numbers     as std::from_chars reads them, with blanks around them and a leading plus; inf and nan; a bool is
//             0, 1, true, false, True, False, TRUE or FALSE. A number that its dtype cannot hold is refused; one
//             that is too small for a floating dtype is 0
// missing     a field without anything gets the column's `otherwise`, and is refused if there is none. Quotes
//             with nothing in them are an empty text, and a missing number
//
// failure     InvalidArgument for a header that differs, another number of fields, a field that is no number
//             of its column and a record of more than record_bytes; Error(kDataLoss) for a quote that does not
//             end, and for one inside of a field. Messages have the file, line and column. Otherwise as
//             io/formats/record_reader.h
//
// Thread safety: a schema is immutable, and may be used from any thread; a reader and a table belong to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"
#include "lockstep/io/formats/record_reader.h"

namespace lockstep {

struct CsvColumn {
  std::string name;
  std::optional<DType> dtype = DType::kF32;   // nothing: text
  std::optional<std::string> otherwise = {};  // for a missing value, as it would stand in the file
};

class LOCKSTEP_API CsvSchema {
 public:
  // InvalidArgument for a schema without columns, a delimiter that is a quote, an end of line or a part of
  // numbers, and for an `otherwise` that is no value of its column.
  explicit CsvSchema(std::vector<CsvColumn> columns, char delimiter = ',');
  CsvSchema(std::initializer_list<CsvColumn> columns, char delimiter = ',')
      : CsvSchema(std::vector<CsvColumn>(columns), delimiter) {}

  const std::vector<CsvColumn>& columns() const { return columns_; }
  char delimiter() const { return delimiter_; }

 private:
  std::vector<CsvColumn> columns_;
  char delimiter_;
};

struct CsvOptions {
  bool header = true;                                // the first line has names
  Compression compression = Compression::kAuto;      // gzip by its first two bytes
  std::size_t record_bytes = std::size_t{4} << 20U;  // of the longest record
};

// Its records are the texts of the lines.
class LOCKSTEP_API CsvReader : public RecordReader {
 public:
  virtual const std::filesystem::path& path() const = 0;
  // The line at which the last record begins, from 1. After seek() the first call reads the file up to there.
  virtual std::uint64_t line() const = 0;
};
LOCKSTEP_API std::unique_ptr<CsvReader> open_csv(const std::filesystem::path& path, const CsvSchema& schema,
                                                 const CsvOptions& options = {});
// The fields of the first line, to look at a file that nobody declared.
LOCKSTEP_API std::vector<std::string> read_csv_header(const std::filesystem::path& path, char delimiter = ',',
                                                      const CsvOptions& options = {});

// Where a record comes from, for messages: a reader that is still at it, or a file and a line.
struct CsvPlace {
  const CsvReader* reader = nullptr;
  std::string_view file = {};
  std::uint64_t line = 0;
};

// The values of one column: a tensor, or texts.
struct CsvValue {
  Tensor tensor = {};
  std::vector<std::string> strings = {};
};
// One value for each column: a tensor without axes, or one text.
LOCKSTEP_API std::vector<CsvValue> parse_csv_record(std::string_view record, const CsvSchema& schema,
                                                    const CsvPlace& place = {});
// The texts of all fields.
LOCKSTEP_API std::vector<std::string> split_csv_record(std::string_view record, char delimiter = ',',
                                                       const CsvPlace& place = {});
// Appends a line with these fields; those that need it are quoted.
LOCKSTEP_API void append_csv_record(std::string& out, const std::vector<std::string>& fields,
                                    char delimiter = ',');

// The columns of many records. One that is refused is not in it, and those before it are.
class LOCKSTEP_API CsvTable {
 public:
  explicit CsvTable(const CsvSchema& schema);
  ~CsvTable();
  CsvTable(const CsvTable&) = delete;
  CsvTable& operator=(const CsvTable&) = delete;

  void add(std::string_view record, const CsvPlace& place = {});
  // Adds up to `rows` records; returns how many, fewer only at the end.
  std::int64_t read(CsvReader& reader, std::int64_t rows);
  std::int64_t rows() const;
  // Tensors of one axis, and texts; the table is empty afterwards.
  std::vector<CsvValue> take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
