// tools/progress.cpp - a line that shows the progress of long work, if somebody watches.
#include "progress.h"

#include <ostream>
#include <stop_token>
#include <utility>

#include <unistd.h>

#include "lockstep/core/base/printable.h"
#include "terminal.h"

namespace lockstep::tools {

ProgressSink standard_error() {
  return {&plain_standard_error(), isatty(STDERR_FILENO) != 0, std::chrono::milliseconds(200)};
}

Progress::Progress(std::string what, std::size_t total, ProgressSink sink)
    : what_(std::move(what)), total_(total), sink_(sink), next_(Clock::now() + sink.patience) {
  if (!sink_.watched) return;
  waker_ = std::jthread([this](const std::stop_token& stop) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!over_.wait_for(lock, stop, sink_.patience, [&] { return stop.stop_requested(); }) && !shown_) show();
  });
}

Progress::~Progress() {
  waker_ = {};  // ends the thread
  clear();
}

void Progress::at(std::size_t done, std::string_view detail) {
  if (!sink_.watched) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  line_ = what_;
  if (total_ > 0) line_ += " " + std::to_string(done) + " of " + std::to_string(total_);
  if (!detail.empty()) line_.append(": ").append(detail);
  if (Clock::now() >= next_) show();
}

void Progress::show() {
  if (line_.empty()) return;
  *sink_.out << "\r\x1b[K" << printable(line_) << std::flush;
  shown_ = true;
  next_ = Clock::now() + std::chrono::milliseconds(100);
}

void Progress::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  line_.clear();
  if (std::exchange(shown_, false)) *sink_.out << "\r\x1b[K" << std::flush;
}

}  // namespace lockstep::tools
