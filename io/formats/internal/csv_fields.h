// io/formats/internal/csv_fields.h - the fields of a CSV record, and the numbers in them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/core/dtype.h"
#include "lockstep/io/formats/csv.h"

namespace lockstep::internal {

// Where an error is, while a record is parsed.
struct CsvCursor {
  std::string_view record;
  const CsvPlace* place = nullptr;
  const CsvSchema* schema = nullptr;  // for the names of columns
  std::size_t column = 0;
  std::size_t at = 0;  // in the record

  [[noreturn]] void fail(ErrorCode code, const std::string& what) const;
};

// "titanic.csv:17"
std::string csv_line_name(const CsvPlace& place, std::uint64_t lines_more);

// A field, and whether its text stood in quotes.
struct CsvField {
  std::string_view text;
  bool quoted = false;
};
// Takes the field at cursor.at, and moves it to the delimiter or the end of the record behind it. `unquoted`
// holds the text of a field that had quotes inside.
CsvField take_csv_field(CsvCursor& cursor, char delimiter, std::string& unquoted);

// Writes the number that begins at `from` to `to`, and returns where it ends. `from` if there is none, or if
// the dtype cannot hold it.
const char* take_csv_number(DType dtype, const char* from, const char* end, void* to);
// The same for a whole field, with blanks and a plus around it. False if the field is no number of the dtype.
bool read_csv_number(DType dtype, std::string_view field, void* to);

}  // namespace lockstep::internal
