// graph/run/drain.cpp - what happens to a run that ended for its caller while deferred calls of it go on.
#include "lockstep/graph/run/internal/drain.h"

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

namespace lockstep::internal {

namespace {

// The abandoned runs of the process. There is a thread while there are any. Never destroyed: calls may end
// while the process ends.
class Drains {
 public:
  static Drains& of_process() {
    static auto* const drains = new Drains;  // NOLINT(cppcoreguidelines-owning-memory): see above
    return *drains;
  }

  void add(Flights& flights, std::function<void()> end) {
    std::list<Entry> fresh;
    fresh.push_back({&flights, std::move(end)});
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!has_thread_) {
      std::thread([this] { serve(); }).detach();
      has_thread_ = true;
    }
    entries_.splice(entries_.end(), fresh);
  }

  void look() noexcept {
    { const std::lock_guard<std::mutex> lock(mutex_); }  // the thread is asleep, or has not looked yet
    changed_.notify_one();
  }

 private:
  struct Entry {
    Flights* flights;
    std::function<void()> end;
  };

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!entries_.empty()) {
      std::list<Entry> over;
      const auto first = std::ranges::find_if(entries_, [](const Entry& e) { return e.flights->over(); });
      if (first == entries_.end()) {
        changed_.wait(lock);
        continue;
      }
      over.splice(over.end(), entries_, first);
      lock.unlock();
      over.front().end();
      over.clear();  // the program and the runtime may end here
      lock.lock();
    }
    has_thread_ = false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> entries_;
  bool has_thread_ = false;
};

}  // namespace

void Flights::drop() noexcept {
  Flights* const outer = outer_;
  if (count_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // Nothing of this run may be touched any more.
  if (outer != nullptr) {
    outer->drop();
  } else {
    Drains::of_process().look();
  }
}

bool drain(Flights& flights, std::function<void()> end) noexcept {
  try {
    Drains::of_process().add(flights, std::move(end));
  } catch (...) {
    return false;
  }
  flights.drop();
  return true;
}

}  // namespace lockstep::internal
