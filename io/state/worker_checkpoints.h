// io/state/worker_checkpoints.h - checkpoints of a model that several workers train: all save, one writes.
//
//   WorkerCheckpoints checkpoints(strategy, "/shared/run-42");
//   checkpoints.restore_latest();                                  // after variables and functions are made
//   ...
//   if (strategy.variables().step() % 100 == 0) checkpoints.save();
//
// All workers make it and call the same methods at the same steps, as they run the same functions. A call that fails
// on one worker fails on all; a worker that calls alone waits for the others, and fails with them if they run something
// else instead.
//
//   save       The first worker writes, on a thread of its own (io/state/checkpoint_series.h). Variables that are each
//              replica's own, such as metrics, are combined over the replicas of all workers. So the file is the one that
//              one process with all of the replicas writes, to the byte, and fits any number of workers and replicas.
//   restore    The first worker chooses the newest checkpoint that is whole. Each worker reads it; where one does not see
//              that file, or another one in its place, all get the values from the first worker.
//   generation A job that was started again takes the series over from a worker of the generation before that stands
//              still (WorkerSpec::generation).
//
// On one worker it is a CheckpointSeries. Not over several workers: copies of variables that are slices.
//
// Thread safety: as the functions of the strategy.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "lockstep/core/base/export.h"
#include "lockstep/io/state/checkpoint_series.h"

namespace lockstep {

class Strategy;

class LOCKSTEP_API WorkerCheckpoints {
 public:
  // The strategy must outlive it. The generation of the options is the worker's.
  WorkerCheckpoints(Strategy& strategy, std::filesystem::path folder, CheckpointSeriesOptions options = {});
  ~WorkerCheckpoints();
  WorkerCheckpoints(const WorkerCheckpoints&) = delete;
  WorkerCheckpoints& operator=(const WorkerCheckpoints&) = delete;

  void save();
  // Until everything saved so far is on the disk, on all workers.
  void wait();
  // As CheckpointSeries; what it says is the same on all workers.
  std::optional<SeriesRestore> restore_latest(const RestoreOptions& options = {},
                                              SourceSite site = SourceSite::current());

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
