#include "progress.h"

#include <iostream>
#include <utility>

#include <unistd.h>

namespace lockstep::tools {

Progress::Progress(std::string what, std::size_t total)
    : what_(std::move(what)),
      total_(total),
      watched_(isatty(STDERR_FILENO) != 0),
      next_(std::chrono::steady_clock::now() + std::chrono::milliseconds(200)) {}  // short work shows nothing

Progress::~Progress() { clear(); }

void Progress::at(std::size_t done, std::string_view detail) {
  if (!watched_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  std::cerr << "\r\x1b[K" << what_ << ' ' << done << " of " << total_;
  if (!detail.empty()) std::cerr << ": " << detail;
  std::cerr << std::flush;
  shown_ = true;
}

void Progress::clear() {
  if (std::exchange(shown_, false)) std::cerr << "\r\x1b[K" << std::flush;
}

}  // namespace lockstep::tools
