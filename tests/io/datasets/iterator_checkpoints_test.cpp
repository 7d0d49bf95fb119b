// Tests: io/datasets/iterator_checkpoints.cpp
// Positions of iterators beside variables: in files, in snapshots, in series; what does not fit changes nothing.
#include "lockstep/io/datasets/iterator_checkpoints.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/dataset.h"
#include "support/dataset_test.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::numbers_of;
using testing::refusal_of;

AnyDataset input() { return datasets::range(20).shuffle(8, {.seed = 3}).repeat().batch(3).prefetch(4); }

class IteratorCheckpoints : public ::testing::Test {
 protected:
  std::vector<std::int64_t> next() { return numbers_of(*train.next()); }

  TemporaryFolder folder;
  VariableStore store;
  DatasetIterator train = input().iterator({.name = "train"});
};

TEST_F(IteratorCheckpoints, AFileGivesThePositionBack) {
  for (int i = 0; i < 5; ++i) next();
  store.set_step(5);
  save_checkpoint(store, folder.path() / "a.lkc", {&train});
  const auto expected = next();
  DatasetIterator other = input().iterator({.name = "train", .threads = 3});
  VariableStore other_store;
  const RestoreReport report = restore_checkpoint(other_store, folder.path() / "a.lkc", {&other});
  EXPECT_EQ(report.step, 5U);
  EXPECT_THAT(report.states, IsEmpty());
  EXPECT_EQ(numbers_of(*other.next()), expected);
}

TEST_F(IteratorCheckpoints, AStepThatFailedIsNotInTheFile) {
  next();
  std::optional<Element> batch = train.next();
  const auto expected = numbers_of(*batch);
  train.give_back(*std::move(batch));
  save_checkpoint(store, folder.path() / "a.lkc", {&train});
  DatasetIterator other = input().iterator({.name = "train"});
  restore_checkpoint(store, folder.path() / "a.lkc", {&other});
  EXPECT_EQ(numbers_of(*other.next()), expected);
}

TEST_F(IteratorCheckpoints, SnapshotsAndSeriesHoldPositions) {
  next();
  Snapshot snapshot;
  snapshot.take(store);
  take_positions(snapshot, {&train});
  CheckpointSeries series(folder.path() / "series");
  series.save(store, states_of({&train}));
  series.wait();
  const auto expected = next();
  restore(snapshot, store, {&train});
  EXPECT_EQ(next(), expected);
  next();
  EXPECT_TRUE(restore_latest(series, store, {&train}));
  EXPECT_EQ(next(), expected);
}

TEST_F(IteratorCheckpoints, WhatDoesNotFitChangesNothing) {
  next();
  store.set_step(7);
  save_checkpoint(store, folder.path() / "a.lkc", {&train});
  store.set_step(9);
  DatasetIterator other = datasets::range(20).batch(4).iterator({.name = "train"});
  const auto path = folder.path() / "a.lkc";
  EXPECT_THAT(refusal_of([&] {
                restore_checkpoint(store, path, {&train, &other});
              }),
              AllOf(HasSubstr("the iterator 'train'"), HasSubstr("belongs to another dataset"),
                    HasSubstr("operation 1 was 'prefetch()")));
  DatasetIterator unsaved = input().iterator({.name = "test"});
  EXPECT_THAT(refusal_of([&] {
                restore_checkpoint(store, path, {&train, &unsaved});
              }),
              HasSubstr("'test' was not saved"));
  EXPECT_EQ(store.step(), 9U);
  EXPECT_THAT(refusal_of([&] {
                static_cast<void>(states_of({&train, &train}));
              }),
              HasSubstr("two iterators are called 'train'"));
  restore_checkpoint(store, path, {&train, &unsaved}, {.allow_missing = true});
  EXPECT_EQ(store.step(), 7U);
}

}  // namespace
}  // namespace lockstep
