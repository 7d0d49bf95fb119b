// Refused, or records whose fields are written and read back as they were; columns as record by record.
#include "lockstep/io/formats/csv.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fuzz_file.h"

using namespace lockstep;
using testing::finding;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::filesystem::path& path = testing::fuzz_file(data, size);
  static const CsvSchema schema({{.name = "f", .otherwise = "0"},
                                 {.name = "i", .dtype = DType::kI64, .otherwise = "0"},
                                 {.name = "t", .dtype = std::nullopt, .otherwise = "?"}});
  CsvTable table(schema);
  std::vector<std::vector<CsvValue>> one_by_one;
  try {
    const auto reader = open_csv(path, schema, {.header = false, .record_bytes = 1000});
    for (const std::string& record : testing::read_twice(*reader)) {
      std::string written;
      const std::vector<std::string> fields = split_csv_record(record);
      append_csv_record(written, fields);
      written.pop_back();
      if (split_csv_record(written) != fields) finding("fields are written otherwise than they were read");
      one_by_one.push_back(parse_csv_record(record, schema));
      table.add(record);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss && error.code() != ErrorCode::kInvalidArgument)
      finding("another error");
    return 0;
  }
  const std::vector<CsvValue> columns = table.take();
  for (std::size_t row = 0; row < one_by_one.size(); ++row) {
    const auto at = static_cast<std::int64_t>(row);
    for (const std::size_t k : {0U, 1U}) {
      if (!columns[k].tensor.slice(at, at + 1).reshape({}).bit_equal(one_by_one[row][k].tensor))
        finding("another number");
    }
    if (columns[2].strings[row] != one_by_one[row][2].strings[0]) finding("another text");
  }
  return 0;
}
