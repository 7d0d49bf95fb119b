#include "threads.h"

#include <pthread.h>
#include <sched.h>

namespace lockstep::bench {

Threads::Threads(int count, bool pinned) {
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  for (int participant = 0; participant < count; ++participant) {
    threads_.emplace_back([this, participant] { work(participant); });
    if (!pinned || processors == 0) continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(participant % processors), &set);
    // Where that is not allowed, it runs wherever it can.
    pthread_setaffinity_np(threads_.back().native_handle(), sizeof set, &set);
  }
}

Threads::~Threads() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  called_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Threads::run(const std::function<void(int)>& body) {
  std::unique_lock lock(mutex_);
  body_ = &body;
  running_ = static_cast<int>(threads_.size());
  ++call_;
  called_.notify_all();
  finished_.wait(lock, [this] { return running_ == 0; });
}

void Threads::work(int participant) {
  std::size_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    called_.wait(lock, [&] { return stops_ || call_ != seen; });
    if (stops_) return;
    seen = call_;
    const std::function<void(int)>& body = *body_;
    lock.unlock();
    body(participant);
    lock.lock();
    if (--running_ == 0) finished_.notify_all();
  }
}

}  // namespace lockstep::bench
