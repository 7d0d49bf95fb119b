// bench/input/cases.h - the files of this benchmark, and Lockstep's ways to read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "support/participant.h"

namespace lockstep::bench {

inline constexpr std::int64_t kRecords = 200'000, kFeatures = 8;  // of the TFRecord files
inline constexpr std::int64_t kImages = 60'000, kPixels = 28 * 28;
inline constexpr std::int64_t kRows = 1'000'000, kColumns = 10;  // of the CSV file, with the label: 100 MB

// small.tfrecord, small.tfrecord.gz, table.csv. Features and labels are the same numbers for everybody.
void make_files(const std::filesystem::path& folder);

// Of "tfrecord", "gzip", "slices", "csv" and "map"; null for another case.
std::unique_ptr<Participant> make_input(const std::string& name, std::int64_t batch, std::size_t threads);

}  // namespace lockstep::bench
