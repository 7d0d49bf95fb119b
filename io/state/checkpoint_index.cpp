#include "lockstep/io/state/internal/checkpoint_index.h"

#include <algorithm>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/core/printable.h"
#include "lockstep/io/files/crc32c.h"
#include "lockstep/io/files/internal/bounded_archive.h"
#include "lockstep/io/files/internal/raw_blocks.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMaxName = 4096;

// What stands in the file. Fields may be added behind the last of a later version, never moved.
struct EntryRecord {
  std::string name;
  std::string dtype;  // "f32"
  std::vector<std::int64_t> dims;
  std::uint32_t crc = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, dtype, dims, crc);
  }
};

struct IndexRecord {
  std::uint64_t step = 0;
  std::vector<EntryRecord> entries;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(step, entries);
  }
};

// The fewest bytes that an entry has: a name of one byte, the lengths of three lists, a dtype of two, a checksum.
constexpr std::size_t kLeastEntry = 1 + 3 * 8 + 2 + 4;

[[noreturn]] void damaged(std::string_view what, const std::string& why) {
  throw Error(ErrorCode::kDataLoss, str(what, ": ", why, "; the file is damaged: use another one"));
}

TensorSpec spec_of(const EntryRecord& record, std::string_view what) {
  const std::optional<DType> dtype = parse_dtype(record.dtype);
  if (!dtype)
    damaged(what,
            str("'", printable(record.name), "' has the unknown dtype '", printable(record.dtype), "'"));
  try {
    TensorSpec spec{*dtype, Shape(record.dims)};
    if (!spec.shape.is_known()) throw InvalidArgument("a dimension is negative");
    num_bytes(spec);  // that it fits
    return spec;
  } catch (const InvalidArgument& error) {
    damaged(what, str("the shape of '", printable(record.name), "' is impossible: ", error.message()));
  }
}

}  // namespace

Decision is_checkpoint_name(std::string_view name) {
  if (name.empty()) return Decision::no("a name is empty");
  if (name.size() > kMaxName) return Decision::no(str("a name has more than ", kMaxName, " bytes"));
  if (std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; })) {
    return Decision::no("a name has control characters");
  }
  for (std::string_view rest = name;;) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    if (part.empty() || part == "." || part == "..") {
      return Decision::no(str("the name '", printable(name), "' has a part that is empty, '.' or '..'"));
    }
    if (slash == std::string_view::npos) return Decision::yes();
    rest.remove_prefix(slash + 1);
  }
}

void check_limits(std::uint64_t index_bytes, std::uint64_t entries, std::uint64_t file_bytes,
                  const ReadLimits& limits, std::string_view what) {
  if (file_bytes > limits.file_bytes) {
    throw InvalidArgument(str(what, ": a file of ", file_bytes, " bytes is more than the limit of ",
                              limits.file_bytes,
                              " (ReadLimits::file_bytes); pass a larger one if it is trusted"));
  }
  // The bytes themselves, the names again, and a record for each entry.
  const std::uint64_t memory = 2 * index_bytes + entries * sizeof(CheckpointInfo::Entry);
  if (memory <= limits.memory_for(file_bytes)) return;
  throw InvalidArgument(str(what, ": its index, the names and shapes of ", entries, " variables, takes ",
                            memory, " bytes of memory, more than the limit of ",
                            limits.memory_for(file_bytes),
                            " for this file (ReadLimits::base_bytes); pass a larger one if it is trusted"));
}

std::string write_header(const CheckpointHeader& header) {
  std::string bytes(kCheckpointMagic);
  put_number(bytes, header.version);
  put_number(bytes, header.index_crc);
  put_number(bytes, header.index_bytes);
  put_number(bytes, header.file_bytes);
  put_number(bytes, crc32c(bytes));
  LOCKSTEP_CHECK(bytes.size() == kCheckpointHeaderBytes);
  return bytes;
}

CheckpointHeader parse_header(std::string_view bytes, std::uint64_t file_bytes, const ReadLimits& limits,
                              std::string_view what) {
  if (!bytes.starts_with(kCheckpointMagic)) {
    throw Error(ErrorCode::kDataLoss,
                str(what, ": it is no checkpoint: its first bytes are not those of one"));
  }
  if (bytes.size() < kCheckpointHeaderBytes) damaged(what, "it ends within its header");
  constexpr std::size_t kCrcAt = kCheckpointHeaderBytes - sizeof(std::uint32_t);
  CheckpointHeader header;
  header.version = number_at<std::uint32_t>(bytes, 8);
  header.index_crc = number_at<std::uint32_t>(bytes, 12);
  header.index_bytes = number_at<std::uint64_t>(bytes, 16);
  header.file_bytes = number_at<std::uint64_t>(bytes, 24);
  if (number_at<std::uint32_t>(bytes, kCrcAt) != crc32c(bytes.substr(0, kCrcAt)))
    damaged(what, "the checksum of its header is wrong");
  if (header.version != kCheckpointVersion) {
    throw Error(ErrorCode::kUnimplemented,
                str(what, ": it has version ", header.version, ", and this Lockstep reads version ",
                    kCheckpointVersion, "; read it with the Lockstep that wrote it, or a later one"));
  }
  if (header.file_bytes != file_bytes || file_bytes < kCheckpointHeaderBytes) {
    damaged(what, str("it should have ", header.file_bytes, " bytes and has ", file_bytes));
  }
  if (header.index_bytes > file_bytes - kCheckpointHeaderBytes)
    damaged(what, "its index is longer than the file");
  check_limits(header.index_bytes, 0, file_bytes, limits, what);  // how many entries it has comes later
  return header;
}

std::string write_index(const CheckpointInfo& info) {
  IndexRecord index;
  index.step = info.step;
  for (const CheckpointInfo::Entry& entry : info.entries) {
    const std::span<const std::int64_t> dims = entry.spec.shape.dims();
    index.entries.push_back(
        {entry.name, std::string(to_string(entry.spec.dtype)), {dims.begin(), dims.end()}, entry.crc});
  }
  return to_portable_bytes(index);
}

// As IndexRecord has it, but entry by entry: a list of records would take more memory than what is made of them.
CheckpointInfo parse_index(std::string_view bytes, std::uint64_t file_bytes, const ReadLimits& limits,
                           std::string_view what) {
  BoundedBinaryInput archive(bytes, what);
  CheckpointInfo info;
  info.version = kCheckpointVersion;
  archive(info.step);
  const std::size_t count = archive.take_count(kLeastEntry);
  check_limits(bytes.size(), count, file_bytes, limits, what);
  info.entries.reserve(count);
  std::uint64_t end = aligned(kCheckpointHeaderBytes + bytes.size());
  for (std::size_t i = 0; i < count; ++i) {
    EntryRecord record;
    archive(record);
    if (const Decision decision = is_checkpoint_name(record.name); !decision)
      damaged(what, decision.reason());
    if (!info.entries.empty() && record.name <= info.entries.back().name) {
      damaged(what, str("'", printable(record.name), "' is not in order behind '",
                        printable(info.entries.back().name), "'"));
    }
    CheckpointInfo::Entry entry;
    entry.spec = spec_of(record, what);
    entry.bytes = static_cast<std::uint64_t>(num_bytes(entry.spec));
    entry.offset = end;
    entry.crc = record.crc;
    // Before anything is added: what fits into the file cannot overflow.
    if (end > file_bytes || entry.bytes > file_bytes - end) {
      damaged(what, str("'", printable(record.name), "' is ", entry.spec, ", more than the file holds"));
    }
    end += aligned(entry.bytes);
    entry.name = std::move(record.name);
    info.entries.push_back(std::move(entry));
  }
  archive.finish();
  if (end != file_bytes) damaged(what, str("its tensors end at byte ", end, " and the file at ", file_bytes));
  return info;
}

}  // namespace lockstep::internal
