// io/datasets/iterator_checkpoints.h - positions of iterators in checkpoints, beside the variables of the same step.
//
//   save_checkpoint(strategy.variables(), "model.lkc", {&train, &test});
//   restore_checkpoint(strategy.variables(), "model.lkc", {&train, &test});
//
//   CheckpointSeries series("run/checkpoints");
//   series.save(strategy.variables(), states_of({&train}));        // after a committed step
//   restore_latest(series, strategy.variables(), {&train});
//
// A position is a named state (io/state/snapshot.h) under the iterator's name (IteratorOptions::name): two iterators of one
// checkpoint need two names. Save after a committed step, on the thread that calls next(): then position and variables
// belong together.
//
// failure   An iterator whose position was not saved, or was saved of another dataset, is named in a FailedPrecondition. Then
//           nothing has changed, neither variables nor iterators
//
// Thread safety: as the iterators: the thread that uses them.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <optional>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/core/variable_store.h"
#include "lockstep/io/datasets/dataset_iterator.h"
#include "lockstep/io/state/checkpoint.h"
#include "lockstep/io/state/checkpoint_series.h"
#include "lockstep/io/state/snapshot.h"

namespace lockstep {

template <class... Ts>
class TypedIterator;

// An iterator, with types (io/datasets/dataset.h) or without.
class IteratorRef {
 public:
  IteratorRef(DatasetIterator* iterator)
      : iterator_(iterator) {}  // NOLINT(google-explicit-constructor): it is one
  template <class... Ts>
  IteratorRef(TypedIterator<Ts...>* iterator)  // NOLINT(google-explicit-constructor): likewise
      : iterator_(&iterator->untyped()) {}
  DatasetIterator& operator*() const { return *iterator_; }
  DatasetIterator* operator->() const { return iterator_; }

 private:
  DatasetIterator* iterator_;
};
using IteratorList = std::initializer_list<IteratorRef>;

// Throws InvalidArgument if two have one name.
LOCKSTEP_API std::vector<Snapshot::State> states_of(IteratorList iterators);

// As without iterators (io/state/checkpoint.h, snapshot.h, checkpoint_series.h). Their states are not left in the report.
LOCKSTEP_API void save_checkpoint(VariableStore& store, const std::filesystem::path& path,
                                  IteratorList iterators, const ReadLimits& limits = kCheckpointLimits,
                                  SourceSite site = SourceSite::current());
LOCKSTEP_API RestoreReport restore_checkpoint(VariableStore& store, const std::filesystem::path& path,
                                              IteratorList iterators, const RestoreOptions& options = {},
                                              const ReadLimits& limits = kCheckpointLimits,
                                              SourceSite site = SourceSite::current());
LOCKSTEP_API void take_positions(Snapshot& snapshot, IteratorList iterators);
LOCKSTEP_API RestoreReport restore(const Snapshot& snapshot, VariableStore& store, IteratorList iterators,
                                   const RestoreOptions& options = {},
                                   SourceSite site = SourceSite::current());
LOCKSTEP_API std::optional<SeriesRestore> restore_latest(CheckpointSeries& series, VariableStore& store,
                                                         IteratorList iterators,
                                                         const RestoreOptions& options = {},
                                                         SourceSite site = SourceSite::current());

}  // namespace lockstep
