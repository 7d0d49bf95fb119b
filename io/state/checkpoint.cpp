// io/state/checkpoint.cpp - variables in a file.
#include "lockstep/io/state/checkpoint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/store_at_rest.h"
#include "lockstep/io/files/crc32c.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/files/internal/input_file.h"
#include "lockstep/io/files/internal/raw_blocks.h"
#include "lockstep/io/state/internal/checkpoint_index.h"
#include "lockstep/io/state/internal/logical_variables.h"

namespace lockstep {
namespace {

// Reads a checkpoint from front to back and checks each byte on the way. A gap is checked together with the
// part before it.
class CheckpointReader {
 public:
  CheckpointReader(const std::filesystem::path& path, const ReadLimits& limits)
      : what_(str("checkpoint ", path)), file_(path) {
    std::array<char, internal::kCheckpointHeaderBytes> front{};
    const std::string_view header_bytes(front.data(), std::min<std::uint64_t>(front.size(), file_.size()));
    file_.read(front.data(), header_bytes.size());
    const internal::CheckpointHeader header =
        internal::parse_header(header_bytes, file_.size(), limits, what_);
    std::string index(static_cast<std::size_t>(header.index_bytes), '\0');
    file_.read(index.data(), index.size());
    if (crc32c(index) != header.index_crc) damaged("the checksum of its index is wrong");
    info_ = internal::parse_index(index, header.version, file_.size(), limits, what_);
    skip_gap();
  }

  const CheckpointInfo& info() const { return info_; }
  const std::string& what() const { return what_; }
  std::uint64_t file_bytes() const { return file_.size(); }

  // The tensors after the index, except those of the variables in `without`, which is sorted.
  Snapshot read_rest(const std::vector<std::string>& without) {
    std::vector<Snapshot::Item> items;
    std::vector<Snapshot::State> states;
    for (const CheckpointInfo::Entry& entry : info_.entries) {
      const bool state = entry.kind == CheckpointInfo::Kind::kState;
      if (!state && std::ranges::binary_search(without, entry.name)) {
        pass_next();
        continue;
      }
      Tensor tensor = Tensor::empty(entry.spec.dtype, entry.spec.shape);
      read_next(tensor.raw());
      if (state) {
        states.push_back({entry.name, std::move(tensor)});
      } else if (entry.kind == CheckpointInfo::Kind::kValue) {
        items.push_back({entry.name, std::move(tensor)});
      } else {
        if (entry.copy == 0) items.push_back({entry.name, {}});
        items.back().copies.push_back(std::move(tensor));
      }
    }
    return Snapshot(info_.step, std::move(items), std::move(states));
  }

 private:
  // The next tensor, into `to`: as many bytes as its entry says.
  void read_next(void* to) {
    const CheckpointInfo::Entry& entry = info_.entries[next_++];
    const std::string_view bytes(static_cast<const char*>(to), static_cast<std::size_t>(entry.bytes));
    file_.read(static_cast<char*>(to), entry.bytes);
    check(entry, crc32c(bytes), is_sound(entry, bytes));
  }
  // The same without keeping it.
  void pass_next() {
    const CheckpointInfo::Entry& entry = info_.entries[next_++];
    std::string block(static_cast<std::size_t>(std::min<std::uint64_t>(entry.bytes, 1 << 20)), '\0');
    std::uint32_t crc = 0;
    bool sound = true;
    for (std::uint64_t left = entry.bytes; left > 0;) {
      const std::string_view piece(block.data(), std::min<std::uint64_t>(left, block.size()));
      file_.read(block.data(), piece.size());
      crc = crc32c(piece, crc);
      sound = sound && is_sound(entry, piece);
      left -= piece.size();
    }
    check(entry, crc, sound);
  }

  [[noreturn]] void damaged(const std::string& why) const {
    throw Error(ErrorCode::kDataLoss, str(what_, ": ", why, "; the file is damaged: use another one"));
  }
  static bool is_sound(const CheckpointInfo::Entry& entry, std::string_view bytes) {
    return entry.spec.dtype != DType::kBool || internal::are_truth_values(bytes);
  }
  void check(const CheckpointInfo::Entry& entry, std::uint32_t crc, bool sound) {
    if (crc != entry.crc) damaged(str("the checksum of '", printable(entry.name), "' is wrong"));
    if (!sound) damaged(str("a truth value of '", printable(entry.name), "' is neither 0 nor 1"));
    skip_gap();
  }
  void skip_gap() {
    const auto read = [this](char* to, std::size_t bytes) { file_.read(to, bytes); };
    if (!internal::gap_is_empty(file_.position(), read))
      damaged(str("bytes before byte ", file_.position(), " should be zero"));
  }

  std::string what_;
  internal::InputFile file_;
  CheckpointInfo info_;
  std::size_t next_ = 0;
};

}  // namespace

void write_checkpoint(const Snapshot& snapshot, const std::filesystem::path& path, const ReadLimits& limits) {
  using Kind = CheckpointInfo::Kind;
  const std::string what = str("cannot write checkpoint ", path);
  CheckpointInfo info;
  info.version = 1;
  info.step = snapshot.step();
  std::vector<const Tensor*> tensors;  // of the entries
  std::uint64_t tensor_bytes = 0;
  const auto add = [&](const std::string& name, Kind kind, const Tensor& tensor, std::size_t copy,
                       std::size_t copies) {
    if (const Decision decision = internal::is_checkpoint_name(name); !decision) {
      throw InvalidArgument(str(what, ": ", decision.reason(), "; give the ",
                                kind == Kind::kState ? "state" : "variable", " another name"));
    }
    if (kind != Kind::kValue) info.version = 2;
    CheckpointInfo::Entry entry;
    entry.name = name;
    entry.kind = kind;
    entry.copy = static_cast<std::uint32_t>(copy);
    entry.copies = static_cast<std::uint32_t>(copies);
    entry.spec = tensor.spec();
    entry.crc = crc32c(internal::bytes_of(tensor));
    tensor_bytes += internal::aligned(tensor.num_bytes());
    info.entries.push_back(std::move(entry));
    tensors.push_back(&tensor);
  };
  for (const Snapshot::Item& item : snapshot.variables()) {
    if (item.copies.empty()) add(item.name, Kind::kValue, item.value, 0, 0);
    for (std::size_t i = 0; i < item.copies.size(); ++i)
      add(item.name, Kind::kCopy, item.copies[i], i, item.copies.size());
  }
  for (const Snapshot::State& state : snapshot.states()) add(state.name, Kind::kState, state.bytes, 0, 0);
  const std::string index = internal::write_index(info);
  internal::CheckpointHeader header;
  header.version = info.version;
  header.index_crc = crc32c(index);
  header.index_bytes = index.size();
  header.file_bytes = internal::aligned(internal::kCheckpointHeaderBytes + index.size()) + tensor_bytes;

  internal::check_limits(index.size(), info.entries.size(), header.file_bytes, limits, what);

  WholeFile file(path, NewFile::kPrivate);
  std::uint64_t written = 0;
  const auto append = [&](std::string_view bytes) {
    file.append(bytes);
    written += bytes.size();
  };
  const auto pad = [&] { append(internal::gap_behind(written)); };
  append(internal::write_header(header));
  append(index);
  pad();
  for (const Tensor* tensor : tensors) {
    append(internal::bytes_of(*tensor));
    pad();
  }
  LOCKSTEP_CHECK(written == header.file_bytes);
  file.commit();
}

Snapshot read_checkpoint(const std::filesystem::path& path, const ReadLimits& limits) {
  CheckpointReader reader(path, limits);
  std::uint64_t total = 0;
  // The sum cannot overflow: the file has all of them.
  for (const CheckpointInfo::Entry& entry : reader.info().entries) total += entry.bytes;
  const std::uint64_t most = limits.memory_for(reader.file_bytes());
  if (total > most) {
    throw InvalidArgument(str(reader.what(), ": its tensors have ", total, " bytes, more than the limit of ",
                              most, " for this file; whoever trusts it raises ReadLimits::base_bytes"));
  }
  return reader.read_rest({});
}

CheckpointInfo inspect_checkpoint(const std::filesystem::path& path, const ReadLimits& limits) {
  return CheckpointReader(path, limits).info();
}

void save_checkpoint(VariableStore& store, const std::filesystem::path& path, const ReadLimits& limits,
                     SourceSite site) {
  named_call("save_checkpoint()", site, [&] {
    Snapshot snapshot;
    snapshot.take(store);
    write_checkpoint(snapshot, path, limits);
  });
}

RestoreReport restore_checkpoint(VariableStore& store, const std::filesystem::path& path,
                                 const RestoreOptions& options, const ReadLimits& limits, SourceSite site) {
  return named_call("restore_checkpoint()", site, [&] {
    CheckpointReader reader(path, limits);
    // A checkpoint that does not fit is refused before memory is allocated for it: the store bounds the bytes
    // of its tensors.
    RestoreReport report;
    {
      const StoreAtRest rest(store, StoreAtRest::Access::kRead);
      std::vector<internal::Offered> offered;
      for (const CheckpointInfo::Entry& entry : reader.info().entries) {
        if (entry.kind != CheckpointInfo::Kind::kState && entry.copy == 0)
          offered.push_back({entry.name, entry.spec, entry.copies});
      }
      report = internal::match(internal::logical_variables(rest), offered, options, reader.what());
    }
    RestoreReport done = reader.read_rest(report.extra).restore(store, options, site);
    done.extra = std::move(report.extra);
    return done;
  });
}

}  // namespace lockstep
