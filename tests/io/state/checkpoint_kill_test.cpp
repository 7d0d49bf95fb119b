// Tests: io/state/checkpoint_series.cpp
// Kills a process that does nothing but save, again and again, and looks at what it left.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/io/files/files.h"
#include "lockstep/io/state/checkpoint_series.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

// A few variables that all hold the number of the step: a mixture of two steps would show.
void make_variables(VariableStore& store) {
  for (const std::int64_t rows : {1, 1000, 20'000}) {
    const TensorSpec spec{DType::kI64, {rows}};
    store.find_or_create(str("v", rows), spec, [&] { return Tensor::zeros(spec.dtype, spec.shape); });
  }
}

void set_all(VariableStore& store, std::uint64_t step) {
  for (const std::string& name : store.names()) {
    store.set(name, Tensor::full(DType::kI64, store.find(name)->spec().shape, static_cast<double>(step)));
  }
  store.set_step(step);
}

void expect_whole(VariableStore& store) {
  for (const std::string& name : store.names()) {
    const Tensor value = store.value(name);
    EXPECT_TRUE(
        std::ranges::all_of(value.data<std::int64_t>(),
                            [&](std::int64_t x) { return static_cast<std::uint64_t>(x) == store.step(); }))
        << name << " at step " << store.step();
  }
}

// What the process says through the pipe: 'r' when it begins; 'b' and 'a' before and after each write, with
// the step.
struct Word {
  char what = 0;
  std::uint64_t step = 0;
};

void say(int pipe, const Word& word) {
  if (::write(pipe, &word, sizeof word) != sizeof word) ::_exit(2);
}

[[noreturn]] void save_for_ever(const std::filesystem::path& folder, int pipe) {
  try {
    CheckpointSeries series(folder, {.keep = 2,
                                     .before_write =
                                         [pipe](const SavedCheckpoint& s) {
                                           say(pipe, {'b', s.step});
                                         },
                                     .after_write =
                                         [pipe](const SavedCheckpoint& s) {
                                           say(pipe, {'a', s.step});
                                         }});
    VariableStore store;
    make_variables(store);
    series.restore_latest(store);
    say(pipe, {'r', store.step()});
    for (std::uint64_t step = store.step() + 1;; ++step) {
      set_all(store, step);
      series.save(store);
    }
  } catch (...) {
    ::_exit(1);
  }
}

TEST(CheckpointKill, LeavesAWholeCheckpointWheneverItComes) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow threads made after a fork";
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "ThreadSanitizer does not follow threads made after a fork";
#endif
#endif
  const TemporaryFolder folder;
  VariableStore store;
  make_variables(store);
  std::uint64_t last = 1;
  {
    CheckpointSeries series(folder.path());
    set_all(store, last);
    series.save(store);
  }
  std::mt19937 random(20'240'917);
  std::size_t cut_short = 0;  // kills in the middle of a write
  for (std::size_t round = 0; round < testing::repeats(200); ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_for_ever(folder.path(), pipe[1]);
    ::close(pipe[1]);
    Word word;
    std::uint64_t announced = 0;  // the last step that was on the disk before the kill
    const auto hear = [&] {
      if (::read(pipe[0], &word, sizeof word) != sizeof word) return false;
      if (word.what == 'a') announced = word.step;
      return true;
    };
    ASSERT_TRUE(hear()) << "round " << round;
    // Not to wait for something, but to be at no particular place; every second time at one inside a write.
    const std::uint64_t writes = round % 2 == 0 ? 0 : 1 + random() % 3;
    for (std::uint64_t begun = 0; begun < writes; begun += word.what == 'b' ? 1 : 0)
      ASSERT_TRUE(hear()) << "round " << round;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (writes == 0 ? 20'000 : 300)));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "round " << round;
    while (hear()) {  // what it had said by then
    }
    ::close(pipe[0]);

    CheckpointSeries series(folder.path());
    const auto restored = series.restore_latest(store);
    ASSERT_TRUE(restored.has_value());
    ASSERT_TRUE(restored->damaged.empty()) << "round " << round << ": " << restored->damaged[0].second;
    EXPECT_EQ(restored->path, *series.latest());
    expect_whole(store);
    EXPECT_GE(store.step(), last) << "round " << round;
    EXPECT_GE(store.step(), announced) << "round " << round << ": it said that this one was on the disk";
    last = store.step();
    for (const std::filesystem::path& path : series.list()) {  // the one before is intact as well
      restore_checkpoint(store, path);
      expect_whole(store);
    }
    cut_short += static_cast<std::size_t>(std::ranges::count_if(
        std::filesystem::directory_iterator(folder.path()),
        [](const auto& entry) { return !name_behind_temporary(entry.path().filename().string()).empty(); }));
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(last, 1U) << "nothing was ever saved";
  EXPECT_GT(cut_short, 0U) << "no kill came while a file was being written";
  RecordProperty("cut_short", static_cast<int>(cut_short));
}

}  // namespace
}  // namespace lockstep
