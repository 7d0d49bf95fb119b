// What is written for all: numbers that follow from the number of the record.
#include "lockstep/io/files/files.h"

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "cases.h"
#include "lockstep/io/formats/example.h"
#include "lockstep/io/formats/tfrecord.h"

namespace lockstep::bench {
namespace {

float feature(std::int64_t record, std::int64_t i) {
  return static_cast<float>((record * 31 + i * 17) % 1000) / 1000;
}

void write_records(const std::filesystem::path& file) {
  if (std::filesystem::exists(file)) return;
  TfRecordWriter writer(file);
  ExampleBuilder example;
  std::array<float, kFeatures> x{};
  for (std::int64_t record = 0; record < kRecords; ++record) {
    for (std::int64_t i = 0; i < kFeatures; ++i) x[static_cast<std::size_t>(i)] = feature(record, i);
    const std::int64_t label = record % 10;
    example.clear();
    example.floats("x", x.data(), x.size()).integers("y", &label, 1);
    writer.append(example.encoded());
  }
  writer.commit();
}

void write_table(const std::filesystem::path& file) {
  if (std::filesystem::exists(file)) return;
  WholeFile out(file);
  std::string text = "label";
  for (std::int64_t i = 0; i < kColumns; ++i) text += ",c" + std::to_string(i);
  text += '\n';
  for (std::int64_t row = 0; row < kRows; ++row) {
    text += std::to_string(row % 10);
    for (std::int64_t i = 0; i < kColumns; ++i) {
      std::array<char, 32> digits{};
      std::snprintf(digits.data(), digits.size(), ",%.6f",
                    static_cast<double>(feature(row, i)) + 1e-3 * static_cast<double>(i));
      text += digits.data();
    }
    text += '\n';
    if (text.size() > (1U << 20U)) {
      out.append(text);
      text.clear();
    }
  }
  out.append(text);
  out.commit();
}

}  // namespace

void make_files(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  write_records(folder / "small.tfrecord");
  write_records(folder / "small.tfrecord.gz");
  write_table(folder / "table.csv");
}

}  // namespace lockstep::bench
