// io/traces/internal/event_ring.h - the last events of one thread.
//
// One thread adds events, any thread may copy them. New events lie in a few pages that stay in the cache;
// they move a chunk at a time, under a mutex, to the memory that keeps the older ones. So the thread waits
// for memory once per chunk, for the whole chunk. When each event went to memory by itself, the next
// kernel's stores waited for it: that cost more than all the rest of recording.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace lockstep::internal {

template <class Event>
class EventRing {
 public:
  static constexpr std::size_t kMostChunk = 256;

  // Keeps at least the last `events` events, and at most min(events, kMostChunk) more.
  explicit EventRing(std::size_t events)
      : chunk_(std::clamp<std::size_t>(events, 1, kMostChunk)), kept_(std::max<std::size_t>(events, 1)) {}

  // The slot of the next event, to be filled by the adding thread; publish() adds it.
  Event& next() { return fresh_[slot_]; }
  void publish() {
    head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    if (++slot_ == chunk_) keep_chunk();
  }

  // Appends the kept events to `events`, oldest first, and returns how many older ones are overwritten.
  std::uint64_t copy_to(std::vector<Event>& events) const {
    events.reserve(events.size() + kept_.size() + chunk_);  // before the adding thread may have to wait
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::uint64_t begin = moved_ > kept_.size() ? moved_ - kept_.size() : 0;
    for (std::uint64_t i = begin; i < moved_; ++i) events.push_back(kept_[i % kept_.size()]);
    // The fresh events are overwritten only after they have moved, which needs the mutex.
    const std::uint64_t fresh = head_.load(std::memory_order_acquire) - moved_;
    events.insert(events.end(), fresh_.begin(), fresh_.begin() + static_cast<std::ptrdiff_t>(fresh));
    return begin;
  }

 private:
  void keep_chunk() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t to = moved_ % kept_.size();
    const std::size_t first = std::min(chunk_, kept_.size() - to);  // the rest wraps around to the beginning
    std::copy_n(fresh_.begin(), first, kept_.begin() + static_cast<std::ptrdiff_t>(to));
    std::copy_n(fresh_.begin() + static_cast<std::ptrdiff_t>(first), chunk_ - first, kept_.begin());
    moved_ += chunk_;
    slot_ = 0;
  }

  const std::size_t chunk_;
  std::array<Event, kMostChunk> fresh_{};
  std::size_t slot_ = 0;                // of the next event; used by the adding thread alone
  std::atomic<std::uint64_t> head_{0};  // events so far
  mutable std::mutex mutex_;            // guards the members below
  std::vector<Event> kept_;
  std::uint64_t moved_ = 0;  // events moved to kept_ so far, overwritten ones included
};

}  // namespace lockstep::internal
