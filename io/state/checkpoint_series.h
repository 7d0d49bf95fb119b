// io/state/checkpoint_series.h - checkpoints during training: the last few in a folder, written by a thread
// of their own.
//
//   CheckpointSeries series("run/checkpoints", {.keep = 3});
//   series.restore_latest(strategy.variables());                       // if there is one
//   for (std::uint64_t step = strategy.variables().step(); step < 10'000; ++step) {
//     train(x, y);
//     if (step % 100 == 99) series.save(strategy.variables());         // copies, and returns
//   }
//   series.wait();                                                     // the last one is on the disk; or its error
//
// The stall. save() waits for runs that have begun, copies the variables into memory, and returns: at most
// the time to copy them, never the time to write them, however slow the disk. One thread writes, one
// checkpoint at a time. A save while a write is under way waits its turn as a copy in memory; a further one
// takes its place, so that the newest is always written next (superseded() counts those that were
// never written). So there are at most two copies in memory beside the variables, and their memory is used
// again. Threads that save at once copy one after another.
//
// Files are "<name>-<number>.lkc", numbered as they were written: latest() is the highest number, also after
// training went on from an older one. Each appears whole or not at all (io/files/files.h): a process that is
// killed at any moment leaves the earlier ones as they were, and the one it was writing whole or not visible.
// Older ones are removed once a newer one is on the disk.
//
// failure   an error of the writing thread is thrown once, by the next save() (which then saves nothing),
//           wait() or restore_latest(). The destructor finishes what is to be written and cannot throw: call
//           wait() first. A save() that gets no memory, or cannot start the thread, throws and saves nothing:
//           earlier saves are written all the same, and a later save may succeed.
// fork()    the thread stays in the parent. In the child save(), wait() and restore_latest() throw FailedPrecondition, and
//           the destructor does nothing.
//
// One series at a time writes to a folder under one name: from its first save() to its end it has a lock there
// (the file ".<name>.lock"), and save() of another one, of this process or any other, throws FailedPrecondition
// that names the process. The lock ends with the process, also if it is killed. A job that was started again says so
// (CheckpointSeriesOptions::generation): then it takes the series over from a process of an earlier generation that
// stands still; that one writes nothing more after it has thawed, and a file that it was about to name is older than
// those of the new one. Any number may read and restore meanwhile. Thread safety: all methods may be called from any
// thread; not from a node of a run that uses the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/core/variable_store.h"
#include "lockstep/io/state/checkpoint.h"
#include "lockstep/io/state/snapshot.h"

namespace lockstep {

struct SavedCheckpoint {
  std::filesystem::path path;
  std::uint64_t step = 0;
};

struct CheckpointSeriesOptions {
  std::size_t keep = 5;             // how many files to keep; 0: all
  std::string name = "checkpoint";  // of the files: letters, digits, '_', '-' and '.', no '.' first
  // How often the job was started before. From 1 on, the numbers of files go on at the next multiple of 10^12.
  int generation = 0;
  // For writing and restoring alike (io/state/checkpoint.h).
  ReadLimits limits = kCheckpointLimits;
  // Called on the writing thread before a checkpoint is written, and once it is on the disk and older ones
  // are removed, if they can be. They must not call the series; an exception from them counts as an error of
  // the writing.
  std::function<void(const SavedCheckpoint&)> before_write = {};
  std::function<void(const SavedCheckpoint&)> after_write = {};
};

// What restore_latest() did.
struct SeriesRestore {
  std::filesystem::path path;
  RestoreReport report;
  // Newer checkpoints that are damaged, each with its fault.
  std::vector<std::pair<std::filesystem::path, std::string>> damaged;
};

class LOCKSTEP_API CheckpointSeries {
 public:
  // Makes the folder if there is none. Throws InvalidArgument for a name that could leave the folder.
  explicit CheckpointSeries(std::filesystem::path folder, CheckpointSeriesOptions options = {});
  ~CheckpointSeries();
  CheckpointSeries(const CheckpointSeries&) = delete;
  CheckpointSeries& operator=(const CheckpointSeries&) = delete;

  // `states` are named states beside the variables (io/state/snapshot.h). Throws InvalidArgument if a name comes twice.
  void save(VariableStore& store, std::vector<Snapshot::State> states = {});
  // Waits until everything saved so far is on the disk, saves that other threads have under way included.
  void wait();

  // The checkpoints that are there, oldest first, and the newest of them.
  std::vector<std::filesystem::path> list() const;
  std::optional<std::filesystem::path> latest() const;

  // Restores the newest checkpoint that is whole; returns nothing if there are none at all. Waits for a write
  // under way. Throws Error(kDataLoss) if all are damaged, and as restore_checkpoint if one does not fit.
  std::optional<SeriesRestore> restore_latest(VariableStore& store, const RestoreOptions& options = {},
                                              SourceSite site = SourceSite::current());

  std::uint64_t superseded() const;

 private:
  struct Writer;
  std::unique_ptr<Writer> writer_;
};

}  // namespace lockstep
