// tools/progress.h - a line that says how far long work has come, where somebody watches.
//
//   Progress progress("pass", pipeline.size());
//   progress.at(3, "fuse-elementwise");            // "pass 3 of 12: fuse-elementwise"
//
// Only where standard error is a terminal; the line goes when the Progress does, also by an exception, so that what is printed
// next begins on an empty line. Thread safety: one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::tools {

class Progress {
 public:
  Progress(std::string what, std::size_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void at(std::size_t done, std::string_view detail = {});
  // Takes the line away, so that something else can be printed.
  void clear();

 private:
  std::string what_;
  std::size_t total_;
  bool watched_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_;  // not more often than people read
};

}  // namespace lockstep::tools
