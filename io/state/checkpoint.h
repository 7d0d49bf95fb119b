// io/state/checkpoint.h - variables in a file.
//
//   save_checkpoint(strategy.variables(), "model.lkc");
//   restore_checkpoint(other.variables(), "model.lkc");             // another strategy, any number of replicas
//
// A checkpoint holds what a Snapshot holds (io/state/snapshot.h): every variable (once if its copies are one
// value), optimizer slots included, named states, and the step counter. A program's variables are
// program.variables(), a strategy's strategy.variables(). To save beside training and keep the last few, use
// a CheckpointSeries (io/state/checkpoint_series.h).
//
//   writing   the file appears whole or not at all (io/files/files.h); a file of that name stays intact until
//             then, and its permissions are kept; a new one is for its owner alone (0600). A checkpoint that
//             the same limits would not read back is not written
//   reading   every byte is checked: header, index and each tensor have a CRC-32C, gaps must be zero, sizes
//             must add up to the file's, bools must be 0 or 1. A file that is damaged anywhere is refused
//             whole (Error with kDataLoss), and so is one of an unknown version (kUnimplemented). Memory is
//             allocated only for bytes that the file really has, and within the limits (core/read_limits.h);
//             a file above them is refused with InvalidArgument before that
//   restoring compares names, dtypes and shapes before tensors are read, and sets variables only once all of them are
//             there and checked: on any error nothing has changed
//
// The format: docs/file_formats.md. Thread safety: any thread; saving and restoring happen between runs of
// the store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/source_site.h"
#include "lockstep/core/variable_store.h"
#include "lockstep/io/files/removed_limits.h"
#include "lockstep/io/state/snapshot.h"

namespace lockstep {

// For files that are restored into a store. They may have any size: tensors are only read if the store has
// the same variables, and the names and shapes of those are in proportion to the file.
inline constexpr ReadLimits kCheckpointLimits{.file_bytes = ReadLimits::unlimited().file_bytes};

// The header and the index of a checkpoint.
struct CheckpointInfo {
  enum class Kind : std::uint8_t {
    kValue,  // a variable's one value
    kCopy,   // a copy of a variable whose copies are each replica's own
    kState,  // bytes that belong to no variable
  };
  struct Entry {
    std::string name;
    Kind kind = Kind::kValue;
    std::uint32_t copy = 0, copies = 0;  // of kCopy: which replica's, of how many
    TensorSpec spec;
    std::uint64_t offset = 0;  // of its bytes in the file
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
  };
  std::uint32_t version = 0;
  std::uint64_t step = 0;
  std::vector<Entry> entries;  // variables by name and replica, then states by name
};

// Throws FailedPrecondition for variables that cannot be saved (io/state/snapshot.h), and the errors of
// io/files/files.h.
LOCKSTEP_API void save_checkpoint(VariableStore& store, const std::filesystem::path& path,
                                  const ReadLimits& limits = kCheckpointLimits,
                                  SourceSite site = SourceSite::current());

// Throws FailedPrecondition naming all variables that are missing, extra or mismatched, Error(kDataLoss) for
// a damaged file; changes nothing then.
LOCKSTEP_API RestoreReport restore_checkpoint(VariableStore& store, const std::filesystem::path& path,
                                              const RestoreOptions& options = {},
                                              const ReadLimits& limits = kCheckpointLimits,
                                              SourceSite site = SourceSite::current());

// The same in two halves, without a store.
LOCKSTEP_API void write_checkpoint(const Snapshot& snapshot, const std::filesystem::path& path,
                                   const ReadLimits& limits = kCheckpointLimits);
LOCKSTEP_API Snapshot read_checkpoint(const std::filesystem::path& path, const ReadLimits& limits = {});

// Header and index alone: cheap, but does not tell whether the tensors are whole.
LOCKSTEP_API CheckpointInfo inspect_checkpoint(const std::filesystem::path& path,
                                               const ReadLimits& limits = kCheckpointLimits);

}  // namespace lockstep
