// io/formats/csv.cpp - CSV records become values: one by one, or straight into columns.
#include "lockstep/io/formats/csv.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/io/formats/internal/csv_fields.h"

namespace lockstep {
namespace {

using internal::CsvCursor;
using internal::CsvField;

using CsvElement = std::array<char, 8>;  // of any dtype

// The field as its column wants it: a number is written to `number`, a text is returned.
std::string_view read_csv_field(const CsvColumn& column, CsvCursor& cursor, char delimiter,
                                std::string& unquoted, void* number) {
  const std::size_t begin = cursor.at;
  const CsvField field = internal::take_csv_field(cursor, delimiter, unquoted);
  const std::size_t end = std::exchange(cursor.at, begin);  // errors are at its beginning
  std::string_view text = field.text;
  if (text.empty() && !(field.quoted && !column.dtype)) {
    if (!column.otherwise)
      cursor.fail(ErrorCode::kInvalidArgument,
                  "it has no value; give the column `otherwise` for such records");
    text = *column.otherwise;
  }
  if (column.dtype && !internal::read_csv_number(*column.dtype, text, number)) {
    cursor.fail(ErrorCode::kInvalidArgument, str("'", printable(text.substr(0, 60)),
                                                 text.size() > 60 ? "...'" : "'", " is no ", *column.dtype));
  }
  cursor.at = end;
  return text;
}

[[noreturn]] void wrong_count(const CsvCursor& cursor, const std::string& what) {
  throw InvalidArgument(str(internal::csv_line_name(*cursor.place, 0), ": the record has ", what,
                            ", and the schema ", counted(cursor.schema->columns().size(), "column")));
}

// Calls to_number(i), which says where the number of column i goes, and to_text(i, text).
template <class Number, class Text>
void read_csv_record(std::string_view record, const CsvSchema& schema, const CsvPlace& place,
                     std::string& unquoted, const Number& to_number, const Text& to_text) {
  CsvCursor cursor{.record = record, .place = &place, .schema = &schema};
  const char* const data = record.data();
  const char* const end = data + record.size();
  const char delimiter = schema.delimiter();
  const std::size_t columns = schema.columns().size();
  for (std::size_t i = 0; i < columns; ++i) {
    cursor.column = i;
    const CsvColumn& column = schema.columns()[i];
    bool done = false;
    if (column.dtype) {
      void* const number = to_number(i);
      // Nearly all fields are a number and nothing else: no need to look for their ends first.
      const char* const from = data + cursor.at;
      const char* const behind = internal::take_csv_number(*column.dtype, from, end, number);
      done = behind != from && (behind == end || *behind == delimiter);
      if (done) cursor.at = static_cast<std::size_t>(behind - data);
      if (!done) read_csv_field(column, cursor, delimiter, unquoted, number);
    } else {
      to_text(i, read_csv_field(column, cursor, delimiter, unquoted, nullptr));
    }
    if (cursor.at < record.size()) {
      ++cursor.at;  // the delimiter; what follows is a field, even if it is empty
      if (i + 1 == columns) wrong_count(cursor, str("more than ", counted(columns, "field")));
    } else if (i + 1 < columns) {
      wrong_count(cursor, counted(i + 1, "field"));
    }
  }
}

}  // namespace

CsvSchema::CsvSchema(std::vector<CsvColumn> columns, char delimiter)
    : columns_(std::move(columns)), delimiter_(delimiter) {
  if (columns_.empty()) throw InvalidArgument("a CSV schema needs a column");
  constexpr std::string_view kTaken = "\"\r\n+-.";
  const bool is_word = (delimiter >= '0' && delimiter <= '9') || (delimiter >= 'a' && delimiter <= 'z') ||
                       (delimiter >= 'A' && delimiter <= 'Z');
  if (is_word || kTaken.find(delimiter) != std::string_view::npos) {
    throw InvalidArgument(
        str("'", printable(std::string_view(&delimiter, 1)),
            "' cannot be the delimiter of a CSV file: values have it; usual are , ; | and tabs"));
  }
  CsvElement element{};
  for (const CsvColumn& column : columns_) {
    if (!column.otherwise || !column.dtype ||
        internal::read_csv_number(*column.dtype, *column.otherwise, element.data()))
      continue;
    throw InvalidArgument(str("CSV column '", printable(column.name), "': `otherwise` '",
                              printable(*column.otherwise), "' is no ", *column.dtype));
  }
}

std::vector<CsvValue> parse_csv_record(std::string_view record, const CsvSchema& schema,
                                       const CsvPlace& place) {
  std::vector<CsvValue> values(schema.columns().size());
  std::string unquoted;
  const auto to_number = [&](std::size_t i) {
    values[i].tensor = Tensor::empty(*schema.columns()[i].dtype, {});
    return values[i].tensor.raw();
  };
  const auto to_text = [&](std::size_t i, std::string_view text) { values[i].strings.emplace_back(text); };
  read_csv_record(record, schema, place, unquoted, to_number, to_text);
  return values;
}

std::vector<std::string> split_csv_record(std::string_view record, char delimiter, const CsvPlace& place) {
  std::vector<std::string> fields;
  std::string unquoted;
  CsvCursor cursor{.record = record, .place = &place};
  while (true) {
    cursor.column = fields.size();
    fields.emplace_back(internal::take_csv_field(cursor, delimiter, unquoted).text);
    if (cursor.at == record.size()) return fields;
    ++cursor.at;
  }
}

void append_csv_record(std::string& out, const std::vector<std::string>& fields, char delimiter) {
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) out += delimiter;
    const std::string& field = fields[i];
    const bool has_special =
        field.find_first_of("\"\r\n") != std::string::npos || field.find(delimiter) != std::string::npos;
    // A record of one empty field would be an empty line.
    if (!has_special && !(field.empty() && fields.size() == 1)) {
      out += field;
      continue;
    }
    out += '"';
    for (const char c : field) out.append(c == '"' ? 2 : 1, c);
    out += '"';
  }
  out += '\n';
}

// --- columns

struct CsvTable::State {
  struct Column {
    std::size_t size = 0;            // of an element; 0: text
    std::string numbers;             // room for `room` elements
    std::vector<std::string> texts;  // likewise
  };

  explicit State(const CsvSchema& of) : schema(of) {
    columns.resize(schema.columns().size());
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (schema.columns()[i].dtype) columns[i].size = size_of(*schema.columns()[i].dtype);
    }
  }
  void make_room() {
    const std::size_t wanted = std::max<std::size_t>(256, room * 2);
    for (Column& column : columns) {
      if (column.size > 0) {
        column.numbers.resize(wanted * column.size);
      } else {
        column.texts.resize(wanted);
      }
    }
    room = wanted;
  }

  CsvSchema schema;
  std::vector<Column> columns;
  std::size_t rows = 0, room = 0;
  std::string record, unquoted;
};

CsvTable::CsvTable(const CsvSchema& schema) : state_(std::make_unique<State>(schema)) {}
CsvTable::~CsvTable() = default;

std::int64_t CsvTable::rows() const { return static_cast<std::int64_t>(state_->rows); }

void CsvTable::add(std::string_view record, const CsvPlace& place) {
  State& state = *state_;
  if (state.rows == state.room) state.make_room();
  const std::size_t row = state.rows;
  const auto to_number = [&](std::size_t i) {
    return state.columns[i].numbers.data() + row * state.columns[i].size;
  };
  const auto to_text = [&](std::size_t i, std::string_view text) {
    state.columns[i].texts[row].assign(text);
  };
  read_csv_record(record, state.schema, place, state.unquoted, to_number, to_text);
  ++state.rows;
}

std::int64_t CsvTable::read(CsvReader& reader, std::int64_t rows) {
  const CsvPlace place{.reader = &reader};
  std::int64_t count = 0;
  for (; count < rows && reader.next(state_->record); ++count) add(state_->record, place);
  return count;
}

std::vector<CsvValue> CsvTable::take() {
  State& state = *state_;
  std::vector<CsvValue> values;
  for (std::size_t i = 0; i < state.columns.size(); ++i) {
    State::Column& column = state.columns[i];
    CsvValue& value = values.emplace_back();
    if (column.size == 0) {
      column.texts.resize(state.rows);
      value.strings = std::exchange(column.texts, {});
      continue;
    }
    value.tensor = Tensor::empty(*state.schema.columns()[i].dtype, {static_cast<std::int64_t>(state.rows)});
    if (state.rows > 0) std::memcpy(value.tensor.raw(), column.numbers.data(), state.rows * column.size);
  }
  state.rows = 0;
  for (State::Column& column : state.columns) {
    if (column.size == 0) column.texts.resize(state.room);
  }
  return values;
}

}  // namespace lockstep
