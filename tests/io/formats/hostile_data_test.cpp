// Tests: io/formats/byte_stream.cpp, io/formats/tfrecord.cpp, io/formats/example.cpp, io/formats/csv.cpp,
//        io/formats/csv_reader.cpp, io/formats/idx_rows.cpp, io/formats/fixed_length.cpp, io/formats/text_lines.cpp
// Files that claim much or are made to take long: each is refused within 50 ms and 16 MiB. Each is read in a process
// of its own, which is how its memory is known.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/io/formats/array_rows.h"
#include "lockstep/io/formats/csv.h"
#include "lockstep/io/formats/example.h"
#include "lockstep/io/formats/fixed_length.h"
#include "lockstep/io/formats/text_lines.h"
#include "lockstep/io/formats/tfrecord.h"
#include "support/packed.h"
#include "support/reading_cost.h"
#include "support/record_files.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::big_endian_bytes;
using testing::field_of;
using testing::gzip_of;
using testing::tfrecord_head;
using testing::tfrecord_of;
using testing::varint_of;
using testing::zlib_of;
using Path = std::filesystem::path;

using namespace std::string_literals;

// --- how the formats are read

void drain(RecordReader& reader) {
  std::string record;
  while (reader.next(record)) {
  }
}
void tfrecord(const Path& path) { drain(*open_tfrecord(path)); }
void text(const Path& path) { drain(*open_text_lines(path)); }
void idx(const Path& path) { open_idx_rows(path); }
void gzip(const Path& path) { drain(*open_text_lines(path, {.compression = Compression::kGzip})); }

const FixedLengthOptions kBlocks{.record_bytes = 1000, .header_bytes = 16, .footer_bytes = 8};
void fixed(const Path& path) { drain(*open_fixed_length(path, kBlocks)); }
void packed_fixed(const Path& path) {
  FixedLengthOptions options = kBlocks;
  options.compression = Compression::kGzip;
  drain(*open_fixed_length(path, options));
}

void csv(const Path& path) {
  const CsvSchema schema({{.name = "a"}, {.name = "b", .dtype = std::nullopt}});
  const auto reader = open_csv(path, schema, {.header = false});
  CsvTable table(schema);
  while (table.read(*reader, 1000) > 0) table.take();
}

// The file is the record.
void example(const Path& path) {
  const ExampleParser parser({{.name = "f", .shape = {3}},
                              {.name = "i", .type = FeatureType::kI64, .shape = {kUnknown}},
                              {.name = "s", .type = FeatureType::kBytes, .shape = {kUnknown}}});
  std::vector<FeatureValue> values;
  parser.parse(read_file(path), values);
}

// --- the files

std::string times(std::size_t count, const std::string& part) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += part;
  return all;
}
std::string idx_head(unsigned type, const std::vector<std::uint64_t>& dims) {
  std::string bytes = "\0\0"s + static_cast<char>(type) + static_cast<char>(dims.size());
  for (const std::uint64_t dim : dims) bytes += big_endian_bytes(dim, 4);
  return bytes;
}
std::string entry(const std::string& name, const std::string& feature) {
  return field_of(1, field_of(1, field_of(1, name) + field_of(2, feature)));
}
std::string flipped(std::string bytes, std::size_t at) {
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  return bytes;
}
std::string zeros(std::size_t size) { return std::string(size, '\0'); }

struct HostileData {
  std::string name;
  std::function<void(const Path&)> read;
  std::function<std::string()> make;
};

const std::vector<HostileData>& hostile_data() {
  static const std::vector<HostileData> files = {
      {"tfrecord_huge", tfrecord, [] { return tfrecord_head(~std::uint64_t{0}) + "x"; }},
      {"tfrecord_exabyte", tfrecord, [] { return tfrecord_head(std::uint64_t{1} << 60U) + zeros(1000); }},
      {"tfrecord_beyond_its_end", tfrecord,
       [] { return tfrecord_of("a") + tfrecord_head(2000000000) + zeros(100000); }},
      {"tfrecord_wrong_length", tfrecord, [] { return flipped(tfrecord_head(50), 3) + zeros(1000); }},
      {"tfrecord_wrong_data", tfrecord, [] { return flipped(tfrecord_of(zeros(1000000)), 500000); }},
      {"tfrecord_zeros", tfrecord, [] { return zeros(1000000); }},
      {"tfrecord_packed_huge", tfrecord,
       [] { return gzip_of(tfrecord_head(std::uint64_t{1} << 40U) + zeros(1000000)); }},
      {"tfrecord_packed_short", tfrecord, [] { return gzip_of(tfrecord_head(60000000) + zeros(100)); }},
      {"tfrecord_packed_zlib_huge", tfrecord, [] { return zlib_of(tfrecord_head(std::uint64_t{1} << 62U)); }},
      {"tfrecord_text", tfrecord, [] { return times(100000, "no record\n"); }},

      {"example_length", example, [] { return "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"s; }},
      {"example_varint", example, [] { return std::string(1000000, '\xff'); }},
      {"example_groups", example, [] { return std::string(1000000, '\x0b'); }},
      {"example_zeros", example, [] { return zeros(1000000); }},
      {"example_claims_floats", example, [] { return field_of(1, "\x0a\xff\xff\xff\xff\x0f"); }},
      {"example_wrong_count", example, [] { return entry("f", field_of(2, field_of(1, zeros(4000000)))); }},
      {"example_cut_varints", example,
       [] {
         return entry("f", field_of(2, field_of(1, zeros(12)))) +
                entry("i", field_of(3, field_of(1, zeros(100000) + "\xff")));
       }},
      {"example_unknown_features", example,
       [] {
         std::string bytes;
         for (int i = 0; i < 50000; ++i)
           bytes += entry("u" + std::to_string(i), field_of(2, field_of(1, zeros(4))));
         return bytes;
       }},
      {"example_same_feature", example,
       [] { return times(50000, entry("i", field_of(3, field_of(1, "\x01")))); }},
      {"example_pieces", example,
       [] { return entry("f", times(100000, field_of(2, field_of(1, zeros(4))))); }},
      {"example_other_kinds", example,
       [] {
         return entry("f",
                      times(50000, field_of(2, field_of(1, zeros(4))) + field_of(3, field_of(1, "\x01"))));
       }},
      {"example_values", example,
       [] {
         return field_of(1, field_of(1, field_of(1, "f") +
                                            times(50000, field_of(2, field_of(2, field_of(1, zeros(4)))))));
       }},

      {"csv_open_quote", csv, [] { return "1,\"" + times(1500000, "a\n"); }},
      {"csv_quotes", csv, [] { return "1," + std::string(1000001, '"'); }},
      {"csv_long_line", csv, [] { return "1," + std::string(6000000, 'a'); }},
      {"csv_long_packed_line", csv, [] { return gzip_of("1," + std::string(6000000, 'a')); }},
      {"csv_fields", csv, [] { return std::string(3000000, ',') + "\n"; }},
      {"csv_long_number", csv, [] { return std::string(3000000, '9') + "x,a\n"; }},
      {"csv_long_fraction", csv,
       [] { return "0." + std::string(3000000, '1') + "e99999999999999999999,a\n"; }},
      {"csv_blank_number", csv, [] { return std::string(3000000, ' ') + ",a\n"; }},
      {"csv_zeros", csv, [] { return zeros(3000000); }},
      {"csv_blank_lines", csv, [] { return std::string(1000000, '\n') + "x,a\n"; }},

      {"idx_huge", idx,
       [] {
         return idx_head(8, {0xFFFFFFFF, 0xFFFFFFFF});
       }},
      {"idx_overflow", idx,
       [] {
         return idx_head(14, {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF});
       }},
      {"idx_bytes_overflow", idx,
       [] {
         return idx_head(14, {0x7FFFFFFF, 0x7FFFFFFF});
       }},
      {"idx_many_axes", idx, [] { return idx_head(8, std::vector<std::uint64_t>(255, 2)); }},
      {"idx_one_too_many", idx, [] { return idx_head(8, {1000001}) + zeros(1000000); }},
      {"idx_no_rows_but_long_ones", idx,
       [] {
         return idx_head(8, {0, 0xFFFFFFFF, 0xFFFFFFFF});
       }},
      {"idx_packed_huge", idx, [] { return gzip_of(idx_head(8, {0xFFFFFFFF})); }},
      {"idx_packed_long", idx, [] { return gzip_of(idx_head(8, {10}) + zeros(20000000)); }},
      {"idx_packed_short", idx, [] { return gzip_of(idx_head(12, {1000001}) + zeros(4000000)); }},

      {"gzip_cut_off", gzip, [] { return gzip_of(times(100000, "line\n")).substr(0, 300); }},
      {"gzip_wrong_sum", gzip,
       [] {
         const std::string file = gzip_of(times(100000, "line\n"));
         return flipped(file, file.size() - 6);
       }},
      {"gzip_bomb", gzip, [] { return gzip_of(zeros(60000000)); }},
      {"gzip_bomb_of_members", gzip, [] { return times(10, gzip_of(zeros(1000000))); }},
      {"gzip_empty_members", gzip, [] { return times(20000, gzip_of("")) + "junk"; }},
      {"gzip_long_name", gzip, [] { return "\x1f\x8b\x08\x08\0\0\0\0\0\xff"s + std::string(3000000, 'n'); }},
      {"gzip_reserved_flags", gzip, [] { return "\x1f\x8b\x08\xff\0\0\0\0\0\xff"s + zeros(1000); }},
      {"gzip_other_method", gzip, [] { return "\x1f\x8b\x07\0\0\0\0\0\0\xff"s + zeros(1000); }},
      {"gzip_nothing", gzip, [] { return ""s; }},

      {"fixed_one_more", fixed, [] { return zeros(1000025); }},
      {"fixed_no_footer", fixed, [] { return zeros(20); }},
      {"fixed_no_header", fixed, [] { return zeros(3); }},
      {"fixed_packed_one_more", packed_fixed, [] { return gzip_of(zeros(1000025)); }},
      {"fixed_packed_no_header", packed_fixed, [] { return gzip_of(zeros(3)); }},
      {"fixed_packed_no_footer", packed_fixed, [] { return gzip_of(zeros(20)); }},
      {"fixed_not_packed", packed_fixed, [] { return zeros(1000024); }},
      {"fixed_packed_cut_off", packed_fixed, [] { return gzip_of(zeros(1000024)).substr(0, 500); }},
      {"fixed_huge_records",
       [](const Path& path) { drain(*open_fixed_length(path, {.record_bytes = std::uint64_t{1} << 62U})); },
       [] { return zeros(1000); }},

      {"text_without_lines", text, [] { return std::string(6000000, 'a'); }},
      {"text_packed_without_lines", text, [] { return gzip_of(std::string(20000000, 'a')); }},
  };
  return files;
}

class HostileDataTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(HostileDataTest, IsRefusedInTimeAndMemory) {
  const HostileData& file = hostile_data()[GetParam()];
  const TemporaryFolder folder;
  const Path path = testing::write_to(folder / "f", file.make());
  const testing::ReadingCost idle = testing::reading_cost_of([] {});
  testing::ReadingCost cost;
  // Another process may have had the processor: several tries.
  for (int i = 0; i == 0 || (i < 10 && cost.seconds - idle.seconds > 0.05); ++i)
    cost = testing::reading_cost_of([&] { file.read(path); });
  EXPECT_EQ(cost.status, 1) << file.name;
  if (testing::kSanitized) return;  // which takes memory and time of its own
  EXPECT_LE(cost.seconds - idle.seconds, 0.05) << file.name;
  EXPECT_LE(cost.bytes - idle.bytes, 16 << 20) << file.name;
  RecordProperty("milliseconds", static_cast<int>(1000 * cost.seconds));
  RecordProperty("kib", static_cast<int>((cost.bytes - idle.bytes) / 1024));
}

INSTANTIATE_TEST_SUITE_P(All, HostileDataTest, ::testing::Range(std::size_t{0}, hostile_data().size()),
                         [](const auto& file) { return hostile_data()[file.param].name; });

}  // namespace
}  // namespace lockstep
