// tools/progress.h - a line that says how far long work has come, where somebody watches.
//
//   Progress progress("pass", pipeline.size());
//   progress.at(3, "fuse-elementwise");            // "pass 3 of 12: fuse-elementwise"
//   Progress drawing("drawing");                   // of which nobody knows how far it is
//   drawing.at(0, "20000 nodes");                  // "drawing: 20000 nodes"
//
// Only where standard error is a terminal, and only for work that takes a while: the line appears after 200
// ms, also within one long piece of work. It goes when the Progress does, also by an exception, so that what
// is printed next begins on an empty line. Thread safety: one thread.
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
  std::chrono::milliseconds patience;  // work that is over before that shows nothing
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
  Clock::time_point next_;  // not more often than people read
  std::jthread waker_;      // shows the line where nobody calls at() for a while
};

}  // namespace lockstep::tools
