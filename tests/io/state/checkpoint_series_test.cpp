// Tests: io/state/checkpoint_series.cpp, io/state/series_lock.cpp
#include "lockstep/io/state/checkpoint_series.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/store_at_rest.h"
#include "lockstep/io/files/files.h"
#include "support/forked.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A store whose only variable says at which step it was saved.
class CheckpointSeriesTest : public ::testing::Test {
 protected:
  CheckpointSeriesTest() {
    store_.find_or_create("w", {DType::kF32, {1000}}, [] { return Tensor::zeros({1000}); });
  }
  void step() {
    store_.advance_step();
    store_.set("w", Tensor::full(DType::kF32, {1000}, static_cast<double>(store_.step())));
  }
  static std::vector<std::string> names(const CheckpointSeries& series) {
    std::vector<std::string> result;
    for (const std::filesystem::path& path : series.list()) result.push_back(path.filename().string());
    return result;
  }
  void damage(const std::filesystem::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }

  TemporaryFolder folder_;
  VariableStore store_;
};

TEST_F(CheckpointSeriesTest, KeepsTheLastFewAndFindsTheNewest) {
  std::vector<std::uint64_t> saved;
  {
    CheckpointSeries series(
        folder_ / "run" / "deep",
        {.keep = 2, .after_write = [&](const SavedCheckpoint& s) { saved.push_back(s.step); }});
    EXPECT_EQ(series.latest(), std::nullopt);
    EXPECT_FALSE(series.restore_latest(store_).has_value());
    for (int i = 0; i < 4; ++i) {
      step();
      series.save(store_);
      series.wait();
    }
    EXPECT_THAT(names(series), ElementsAre("checkpoint-00000003.lkc", "checkpoint-00000004.lkc"));
  }
  EXPECT_THAT(saved, ElementsAre(1, 2, 3, 4));

  // Another one goes on where the first stopped, also with an older state.
  std::ofstream(folder_ / "run/deep/checkpoint-x.lkc") << "not ours";
  CheckpointSeries series(folder_ / "run" / "deep", {.keep = 0});
  EXPECT_EQ(series.latest()->filename(), "checkpoint-00000004.lkc");
  store_.set_step(1);
  series.save(store_);
  series.wait();
  EXPECT_THAT(names(series),
              ElementsAre("checkpoint-00000003.lkc", "checkpoint-00000004.lkc", "checkpoint-00000005.lkc"));
  EXPECT_EQ(series.restore_latest(store_)->report.step, 1U);
}

TEST_F(CheckpointSeriesTest, ReturnsFromSaveWhileTheWriterIsHeld) {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::promise<void> begun;
  bool first = true;
  CheckpointSeries series(folder_.path(), {.keep = 0, .before_write = [&](const SavedCheckpoint&) {
                                             if (std::exchange(first, false)) begun.set_value();
                                             released.wait();
                                           }});
  step();
  series.save(store_);
  begun.get_future().wait();
  // The writer stands still and does so until it is released below: whatever returns until then has not
  // waited for it.
  for (int i = 0; i < 3; ++i) {
    step();
    series.save(store_);
  }
  EXPECT_EQ(series.superseded(), 2U);
  EXPECT_THAT(series.list(), ElementsAre());
  release.set_value();
  series.wait();

  std::vector<std::uint64_t> steps;
  for (const std::filesystem::path& path : series.list()) {
    const Snapshot snapshot = read_checkpoint(path);
    steps.push_back(snapshot.step());
    EXPECT_EQ(snapshot.find("w")->data<float>()[999], static_cast<float>(snapshot.step()));
  }
  EXPECT_THAT(steps, ElementsAre(1, 4)) << "the one under way, and the newest";
}

TEST_F(CheckpointSeriesTest, FinishesWritingWhenItGoes) {
  {
    CheckpointSeries series(folder_.path());
    step();
    series.save(store_);
  }
  EXPECT_EQ(CheckpointSeries(folder_.path()).restore_latest(store_)->report.step, 1U);
}

TEST_F(CheckpointSeriesTest, ThrowsErrorsOfTheWriterOnceAndGoesOn) {
  bool full = true;
  CheckpointSeries series(folder_.path(), {.before_write = [&](const SavedCheckpoint&) {
                            if (full) throw Error(ErrorCode::kUnavailable, "the disk is full");
                          }});
  series.save(store_);
  EXPECT_THROW(series.wait(), Error);
  series.wait();  // once
  EXPECT_EQ(series.latest(), std::nullopt);

  full = false;
  series.save(store_);
  series.wait();
  EXPECT_EQ(names(series).size(), 1U);

  std::filesystem::remove_all(folder_.path());
  series.save(store_);
  try {
    series.wait();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr(folder_.path().string()));
  }
  std::filesystem::create_directory(folder_.path());
}

TEST_F(CheckpointSeriesTest, KeepsWhatWaitsWhereASaveFails) {
  std::promise<void> release, begun;
  std::shared_future<void> released = release.get_future().share();
  bool first = true;
  CheckpointSeries series(folder_.path(), {.before_write = [&](const SavedCheckpoint&) {
                            if (std::exchange(first, false)) begun.set_value();
                            released.wait();
                          }});
  step();
  series.save(store_);
  begun.get_future().wait();
  step();
  series.save(store_);

  VariableStore slices;
  const auto zero = [] { return Tensor::zeros({1}); };
  const VariableRole first_of_three{.copies = CopyRule::kSlices, .slice_axis = 0, .slice_extent = 3};
  slices.find_or_create("mine", {DType::kF32, {1}}, zero, first_of_three);
  EXPECT_THROW(series.save(slices), FailedPrecondition);
  release.set_value();
  series.wait();
  EXPECT_EQ(series.superseded(), 0U);
  EXPECT_EQ(read_checkpoint(*series.latest()).step(), 2U);
}

TEST_F(CheckpointSeriesTest, FallsBackToTheNewestThatIsWhole) {
  CheckpointSeries series(folder_.path());
  for (int i = 0; i < 3; ++i) {
    step();
    series.save(store_);
    series.wait();
  }
  const std::vector<std::filesystem::path> paths = series.list();
  damage(paths[2]);
  damage(paths[1]);
  const SeriesRestore restored = *series.restore_latest(store_);
  EXPECT_EQ(restored.report.step, 1U);
  EXPECT_EQ(restored.path, paths[0]);
  ASSERT_EQ(restored.damaged.size(), 2U);
  EXPECT_EQ(restored.damaged[0].first, paths[2]);
  EXPECT_EQ(store_.value("w").data<float>()[0], 1.F);

  damage(paths[0]);
  store_.set_step(77);
  try {
    series.restore_latest(store_);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    for (const std::filesystem::path& path : paths)
      EXPECT_THAT(error.message(), HasSubstr(path.filename().string()));
  }
  EXPECT_EQ(store_.step(), 77U);
}

TEST_F(CheckpointSeriesTest, DoesNotFallBackWhereVariablesDoNotFit) {
  CheckpointSeries series(folder_.path());
  series.save(store_);
  VariableStore other;
  EXPECT_THROW(series.restore_latest(other), FailedPrecondition);
}

TEST_F(CheckpointSeriesTest, RemovesWhatAKilledProcessLeft) {
  std::ofstream(folder_ / ".checkpoint-00000001.lkc.tmp-12-0") << "half";
  std::ofstream(folder_ / ".other-00000001.lkc.tmp-12-0") << "of another series";
  std::ofstream(folder_ / ".checkpoint-ema-00000001.lkc.tmp-12-0") << "of one with a longer name";
  CheckpointSeries series(folder_.path());
  EXPECT_EQ(series.latest(), std::nullopt);
  EXPECT_TRUE(std::filesystem::exists(folder_ / ".checkpoint-00000001.lkc.tmp-12-0"))
      << "readers remove nothing";
  series.save(store_);
  series.wait();
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".checkpoint-00000001.lkc.tmp-12-0"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / ".other-00000001.lkc.tmp-12-0"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / ".checkpoint-ema-00000001.lkc.tmp-12-0"));
}

TEST_F(CheckpointSeriesTest, WritesTheNewestOfThoseWhoSaveAtOnce) {
  CheckpointSeries series(folder_.path(), {.keep = 0});
  std::vector<std::thread> savers;
  for (int t = 0; t < 4; ++t) {
    savers.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        store_.advance_step();
        series.save(store_);
      }
    });
  }
  for (std::thread& saver : savers) saver.join();
  series.wait();
  std::vector<std::uint64_t> steps;
  for (const std::filesystem::path& path : series.list()) steps.push_back(inspect_checkpoint(path).step);
  EXPECT_TRUE(std::ranges::is_sorted(steps)) << ::testing::PrintToString(steps);
  EXPECT_EQ(steps.back(), 100U);
  EXPECT_EQ(steps.size() + series.superseded(), 100U);
}

// Another thread is about to replace what waits to be written: that is not on the disk, and is waited for.
TEST_F(CheckpointSeriesTest, WaitsForWhatAnotherThreadIsSaving) {
  std::promise<void> release, begun, first_written;
  std::shared_future<void> released = release.get_future().share();
  bool first = true, written = false;
  CheckpointSeries series(folder_.path(), {.before_write =
                                               [&](const SavedCheckpoint&) {
                                                 if (std::exchange(first, false)) begun.set_value();
                                                 released.wait();
                                               },
                                           .after_write =
                                               [&](const SavedCheckpoint&) {
                                                 if (!std::exchange(written, true)) first_written.set_value();
                                               }});
  step();
  series.save(store_);
  begun.get_future().wait();
  step();
  series.save(store_);  // waits in memory
  std::future<void> saving, waiting;
  {
    // Whoever saves now stands in the middle of it.
    const StoreAtRest held(store_, StoreAtRest::Access::kWrite);
    saving = std::async(std::launch::async, [&] { series.save(store_); });
    release.set_value();
    first_written.get_future().wait();
    waiting = std::async(std::launch::async, [&] {
      series.wait();
      EXPECT_EQ(inspect_checkpoint(*series.latest()).step, 2U);
    });
    waiting.wait_for(std::chrono::milliseconds(30));  // where it does not wait, it is wrong by now
  }
  saving.get();
  waiting.get();
}

// What a reader has listed may be gone when it opens it: then there is a newer one.
TEST_F(CheckpointSeriesTest, IsReadWhileAnotherRemovesOldOnes) {
  CheckpointSeries writer(folder_.path(), {.keep = 1});
  step();
  writer.save(store_);
  writer.wait();
  std::jthread reader([&](const std::stop_token& stop) {
    CheckpointSeries series(folder_.path());
    VariableStore store;
    store.find_or_create("w", {DType::kF32, {1000}}, [] { return Tensor::zeros({1000}); });
    while (!stop.stop_requested()) {
      const std::uint64_t before = store.step();
      try {
        series.restore_latest(store);
        EXPECT_GE(store.step(), before);
      } catch (const Error& error) {
        FAIL() << error.what();
      }
    }
  });
  for (std::size_t i = 0; i < testing::repeats(100); ++i) {
    step();
    writer.save(store_);
    writer.wait();
  }
}

TEST_F(CheckpointSeriesTest, LeavesAloneWhatIsNoCheckpointOfItsOwn) {
  std::filesystem::create_directories(folder_ / "checkpoint-9.lkc" / "in it");
  std::ofstream(folder_ / "checkpoint-18446744073709551615.lkc") << "a number without a next one";
  std::filesystem::create_symlink("nowhere", folder_ / "checkpoint-7.lkc");
  CheckpointSeries series(folder_.path(), {.keep = 1});
  EXPECT_EQ(series.latest(), std::nullopt);
  EXPECT_FALSE(series.restore_latest(store_).has_value());
  for (int i = 0; i < 2; ++i) {
    step();
    series.save(store_);
    series.wait();
  }
  EXPECT_THAT(names(series), ElementsAre("checkpoint-00000011.lkc"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "checkpoint-9.lkc" / "in it"));

  std::ofstream(folder_ / "checkpoint-999999999999999999.lkc") << "the last one that there is";
  series.save(store_);
  EXPECT_THROW(series.wait(), FailedPrecondition);
}

TEST_F(CheckpointSeriesTest, SaysWhatItCannotRemoveOnceTheNewOneIsWritten) {
  std::vector<std::uint64_t> announced;
  bool in_the_way = false;
  CheckpointSeries series(
      folder_.path(), {.keep = 1,
                       .before_write =
                           [&](const SavedCheckpoint&) {
                             if (!in_the_way) return;  // a folder that is not empty cannot be removed
                             std::filesystem::remove(folder_ / "checkpoint-00000001.lkc");
                             std::filesystem::create_directories(folder_ / "checkpoint-00000001.lkc" / "x");
                           },
                       .after_write = [&](const SavedCheckpoint& s) { announced.push_back(s.step); }});
  for (int i = 0; i < 2; ++i) {
    step();
    in_the_way = i == 1;
    series.save(store_);
    if (i == 0) series.wait();
  }
  try {
    series.wait();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.message(),
                HasSubstr("checkpoint-00000002.lkc\" is written, but older ones cannot be removed"));
    EXPECT_THAT(error.message(), HasSubstr("checkpoint-00000001.lkc"));
  }
  EXPECT_THAT(announced, ElementsAre(1, 2));
  EXPECT_EQ(series.restore_latest(store_)->report.step, 2U);
}

TEST_F(CheckpointSeriesTest, StaysInItsFolder) {
  for (const char* name : {"", ".", "..", "../x", "a/b", "/etc/x", ".hidden", "a b"}) {
    EXPECT_THROW(CheckpointSeries(folder_.path(), {.name = name}), InvalidArgument) << name;
  }
  EXPECT_EQ(CheckpointSeries(folder_.path(), {.name = "run-3.b"}).latest(), std::nullopt);
}

// The message of what it throws; empty where it does not.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const FailedPrecondition& error) {
    return error.message();
  }
  return {};
}

TEST_F(CheckpointSeriesTest, RefusesASecondWriterOfThisProcess) {
  {
    CheckpointSeries first(folder_.path()), second(folder_.path()), other(folder_.path(), {.name = "other"});
    first.save(store_);
    first.wait();
    EXPECT_THAT(refusal([&] { second.save(store_); }),
                HasSubstr(str("this process, ", ::getpid(),
                              " (test_io), already writes the checkpoints 'checkpoint'")));
    other.save(store_);
    EXPECT_TRUE(second.restore_latest(store_).has_value()) << "reading is open to all";
    first.save(store_);
  }
  CheckpointSeries next(folder_.path());
  EXPECT_EQ(names(next).size(), 2U);
  next.save(store_);
  next.wait();
  EXPECT_EQ(names(next).size(), 3U);
}

TEST_F(CheckpointSeriesTest, LeavesNoLockBehind) {
  {
    CheckpointSeries series(folder_.path());
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "who only reads takes none";
    series.save(store_);
    EXPECT_TRUE(std::filesystem::exists(folder_ / ".checkpoint.lock"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".checkpoint.lock"));
  // What is no lock of a living process blocks nobody.
  std::ofstream(folder_ / ".checkpoint.lock") << ::getppid();
  CheckpointSeries series(folder_.path());
  EXPECT_EQ(refusal([&] { series.save(store_); }), "");
}

TEST_F(CheckpointSeriesTest, RefusesASecondWriterUntilTheFirstProcessIsGone) {
  int pipe[2] = {};
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    CheckpointSeries series(folder_.path());
    series.save(store_);
    series.wait();
    if (::write(pipe[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char ready = 0;
  EXPECT_EQ(::read(pipe[0], &ready, 1), 1);
  CheckpointSeries series(folder_.path());
  EXPECT_THAT(refusal([&] { series.save(store_); }), HasSubstr(str("process ", child, " (test_io) writes")));
  EXPECT_TRUE(series.restore_latest(store_).has_value());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ / ".checkpoint.lock")) << "left behind";
  EXPECT_EQ(refusal([&] { series.save(store_); }), "");
  series.wait();
  EXPECT_EQ(names(series).size(), 2U);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

// A writer stands still; one of the next generation goes on in its place. What the first one still writes is older.
TEST_F(CheckpointSeriesTest, IsTakenOverFromAWriterThatStandsStill) {
  int pipe[2] = {};
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    CheckpointSeries series(folder_.path(), {.keep = 2});
    series.save(store_);
    series.wait();
    if (::write(pipe[1], "x", 1) != 1) ::_exit(1);
    ::raise(SIGSTOP);
    series.save(store_);
    const std::string why = refusal([&] { series.wait(); });
    ::_exit(why.find("a later start of the job writes there now (checkpoint-1000000000001.lkc)") ==
            std::string::npos);
  }
  char ready = 0;
  ASSERT_EQ(::read(pipe[0], &ready, 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  {
    CheckpointSeries next(folder_.path(), {.keep = 2, .generation = 1});
    step();
    next.save(store_);
    next.wait();
    EXPECT_EQ(names(next),
              (std::vector<std::string>{"checkpoint-00000001.lkc", "checkpoint-1000000000001.lkc"}));
    CheckpointSeries same(folder_.path(), {.generation = 1});
    EXPECT_THAT(refusal([&] { same.save(store_); }), HasSubstr("already writes the checkpoints"));
    ::kill(child, SIGCONT);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(names(next),
              (std::vector<std::string>{"checkpoint-00000001.lkc", "checkpoint-1000000000001.lkc"}));
    // It may have been about to give its file a name.
    std::filesystem::copy_file(folder_ / "checkpoint-00000001.lkc", folder_ / "checkpoint-00000002.lkc");
    EXPECT_EQ(inspect_checkpoint(*next.latest()).step, 1U);
    EXPECT_TRUE(std::filesystem::exists(folder_ / ".checkpoint.lock"))
        << "it is not the first one's any more";
  }
  // A job that begins anew has generation 0, and goes on behind the newest.
  CheckpointSeries later(folder_.path());
  later.save(store_);
  later.wait();
  EXPECT_EQ(names(later).back(), "checkpoint-1000000000002.lkc");
  EXPECT_THROW(CheckpointSeries(folder_.path(), {.generation = -1}), InvalidArgument);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_F(CheckpointSeriesTest, FollowsNoLinkOfAStranger) {
  if (::geteuid() != 0) GTEST_SKIP() << "links can be given away by root alone";
  std::filesystem::create_directory(folder_ / "open");
  std::filesystem::create_directory(folder_ / "mine");
  std::filesystem::permissions(folder_ / "open", std::filesystem::perms{01777});
  std::filesystem::create_symlink("../mine", folder_ / "open/run");
  ASSERT_EQ(::lchown((folder_ / "open/run").c_str(), 1234, 1234), 0);
  EXPECT_THAT(refusal([&] { CheckpointSeries series(folder_ / "open/run"); }),
              HasSubstr("open/run\" is not followed"));
  EXPECT_THAT(refusal([&] { restore_checkpoint(store_, folder_ / "open/run/checkpoint-00000001.lkc"); }),
              HasSubstr("open/run\" is not followed"));
}

// The thread that writes is in the parent.
TEST_F(CheckpointSeriesTest, RefusesToSaveInAForkedChildAndEndsThere) {
  std::optional<CheckpointSeries> series(std::in_place, folder_.path());
  series->save(store_);
  series->wait();
  EXPECT_EQ(testing::exit_status_of_child([&] {
              try {
                series->save(store_);
                return 1;
              } catch (const FailedPrecondition&) {
              }
              try {
                series->wait();
                return 2;
              } catch (const FailedPrecondition&) {
              }
              series.reset();
              return 0;
            }),
            0);
  series->save(store_);
  series->wait();
  EXPECT_EQ(series->list().size(), 2U);
}

}  // namespace
}  // namespace lockstep
