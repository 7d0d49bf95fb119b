// io/state/checkpoint_index.cpp - the first part of a checkpoint file: what it holds, and where.
#include "lockstep/io/state/internal/checkpoint_index.h"

#include <algorithm>
#include <optional>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/io/files/crc32c.h"
#include "lockstep/io/files/internal/bounded_archive.h"
#include "lockstep/io/files/internal/raw_blocks.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMaxName = 4096;

// The record in the file. A later version may add fields after the last one, and never moves any.
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

// From version 2 on.
struct PartRecord {
  EntryRecord entry;
  std::uint8_t kind = 0;
  std::uint32_t copy = 0;
  std::uint32_t copies = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(entry, kind, copy, copies);
  }
};

template <class Entry>
struct IndexRecord {
  std::uint64_t step = 0;
  std::vector<Entry> entries;
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
    num_bytes(spec);  // throws if it does not fit
    return spec;
  } catch (const InvalidArgument& error) {
    damaged(what, str("the shape of '", printable(record.name), "' is impossible: ", error.message()));
  }
}

// Throws unless the entry may follow those before it.
void check_order(std::span<const CheckpointInfo::Entry> before, const CheckpointInfo::Entry& entry,
                 std::string_view what) {
  using Kind = CheckpointInfo::Kind;
  const bool first = entry.kind != Kind::kCopy || entry.copy == 0;
  const bool counts =
      entry.kind == Kind::kCopy ? entry.copy < entry.copies : entry.copy == 0 && entry.copies == 0;
  if (!counts) damaged(what, str("'", printable(entry.name), "' is copy ", entry.copy, " of ", entry.copies));
  if (before.empty() && first) return;
  const CheckpointInfo::Entry* const last = before.empty() ? nullptr : &before.back();
  const bool follows = last != nullptr && last->kind == Kind::kCopy && last->copy + 1 < last->copies;
  if (!first || follows) {
    const bool next = follows && !first && last->name == entry.name && last->copies == entry.copies &&
                      last->copy + 1 == entry.copy && last->spec == entry.spec;
    if (!next)
      damaged(what,
              str("the copies of '", printable(follows ? last->name : entry.name), "' are not all there"));
    return;
  }
  const bool last_state = last->kind == Kind::kState, state = entry.kind == Kind::kState;
  if (last_state != state ? last_state : entry.name <= last->name) {
    damaged(what, str("'", printable(entry.name), "' is not in order behind '", printable(last->name), "'"));
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
  if (header.version < 1 || header.version > kCheckpointVersion) {
    throw Error(ErrorCode::kUnimplemented,
                str(what, ": it has version ", header.version, ", and this Lockstep reads versions 1 to ",
                    kCheckpointVersion, "; read it with the Lockstep that wrote it, or a later one"));
  }
  if (header.file_bytes != file_bytes || file_bytes < kCheckpointHeaderBytes) {
    damaged(what, str("it should have ", header.file_bytes, " bytes and has ", file_bytes));
  }
  if (header.index_bytes > file_bytes - kCheckpointHeaderBytes)
    damaged(what, "its index is longer than the file");
  check_limits(header.index_bytes, 0, file_bytes, limits, what);  // the number of entries is checked later
  return header;
}

std::string write_index(const CheckpointInfo& info) {
  IndexRecord<EntryRecord> index{info.step, {}};
  IndexRecord<PartRecord> parts{info.step, {}};
  for (const CheckpointInfo::Entry& entry : info.entries) {
    const std::span<const std::int64_t> dims = entry.spec.shape.dims();
    EntryRecord record{
        entry.name, std::string(to_string(entry.spec.dtype)), {dims.begin(), dims.end()}, entry.crc};
    if (info.version == 1) {
      index.entries.push_back(std::move(record));
    } else {
      parts.entries.push_back(
          {std::move(record), static_cast<std::uint8_t>(entry.kind), entry.copy, entry.copies});
    }
  }
  return info.version == 1 ? to_portable_bytes(index) : to_portable_bytes(parts);
}

// The form of IndexRecord, read entry by entry: a list of records would take more memory than the entries
// made of them.
CheckpointInfo parse_index(std::string_view bytes, std::uint32_t version, std::uint64_t file_bytes,
                           const ReadLimits& limits, std::string_view what) {
  BoundedBinaryInput archive(bytes, what);
  CheckpointInfo info;
  info.version = version;
  archive(info.step);
  const std::size_t count = archive.take_count(kLeastEntry);
  check_limits(bytes.size(), count, file_bytes, limits, what);
  info.entries.reserve(count);
  std::uint64_t end = aligned(kCheckpointHeaderBytes + bytes.size());
  for (std::size_t i = 0; i < count; ++i) {
    PartRecord part;
    if (version == 1) {
      archive(part.entry);
    } else {
      archive(part);
    }
    EntryRecord& record = part.entry;
    if (const Decision decision = is_checkpoint_name(record.name); !decision)
      damaged(what, decision.reason());
    CheckpointInfo::Entry entry;
    entry.spec = spec_of(record, what);
    if (part.kind > static_cast<std::uint8_t>(CheckpointInfo::Kind::kState))
      damaged(what, str("'", printable(record.name), "' is of the unknown kind ", int{part.kind}));
    entry.kind = static_cast<CheckpointInfo::Kind>(part.kind);
    entry.copy = part.copy;
    entry.copies = part.copies;
    if (entry.kind == CheckpointInfo::Kind::kState &&
        (entry.spec.dtype != DType::kU8 || entry.spec.shape.rank() != 1))
      damaged(what,
              str("the state '", printable(record.name), "' is ", entry.spec, ", and no list of bytes"));
    entry.bytes = static_cast<std::uint64_t>(num_bytes(entry.spec));
    entry.offset = end;
    entry.crc = record.crc;
    // Checked before it is added: sizes that fit into the file cannot overflow.
    if (end > file_bytes || entry.bytes > file_bytes - end) {
      damaged(what, str("'", printable(record.name), "' is ", entry.spec, ", more than the file holds"));
    }
    end += aligned(entry.bytes);
    entry.name = std::move(record.name);
    check_order(info.entries, entry, what);
    info.entries.push_back(std::move(entry));
  }
  archive.finish();
  if (!info.entries.empty() && info.entries.back().kind == CheckpointInfo::Kind::kCopy &&
      info.entries.back().copy + 1 < info.entries.back().copies)
    damaged(what, str("the copies of '", printable(info.entries.back().name), "' are not all there"));
  if (end != file_bytes) damaged(what, str("its tensors end at byte ", end, " and the file at ", file_bytes));
  return info;
}

}  // namespace lockstep::internal
