// tools/progress.h - a line that shows the progress of long work, if somebody watches.
//
//   Progress progress("pass", pipeline.size());
//   progress.at(3, "fuse-elementwise");            // "pass 3 of 12: fuse-elementwise"
//   Progress drawing("drawing");                   // without a known total
//   drawing.at(0, "20000 nodes");                  // "drawing: 20000 nodes"
//
// Only if standard error is a terminal, and only for work that takes a while: the line appears after 200 ms,
// even within one long piece of work. The destructor removes it, also after an exception, so that the next
// output begins on an empty line. Thread safety: one thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <iosfwd>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace lockstep::tools {

struct ProgressSink {
  std::ostream* out;
  bool watched;                        // otherwise nothing is written
  std::chrono::milliseconds patience;  // work that ends before that shows nothing
};
ProgressSink standard_error();

class Progress {
 public:
  explicit Progress(std::string what, std::size_t total = 0, ProgressSink sink = standard_error());
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void at(std::size_t done, std::string_view detail = {});
  // Takes the line away, so that something else can be printed.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  void show();  // under the mutex

  const std::string what_;
  const std::size_t total_;
  const ProgressSink sink_;
  std::mutex mutex_;
  std::condition_variable_any over_;
  std::string line_;
  bool shown_ = false;
  Clock::time_point next_;  // when to show the line again: not more often than people read
  std::jthread waker_;      // shows the line if nobody calls at() for a while
};

}  // namespace lockstep::tools
