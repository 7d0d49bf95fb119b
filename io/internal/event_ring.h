// io/internal/event_ring.h - the last events of one thread.
//
// One thread adds events, any thread may copy what is there. Slots are claimed a chunk at a time under a mutex, which is all
// that keeps a reader from seeing a slot change: but for one event in kChunk, adding one costs its own stores and one more.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace lockstep::internal {

template <class Event>
class EventRing {
 public:
  static constexpr std::size_t kChunk = 64;

  // Keeps at least the last `events`.
  explicit EventRing(std::size_t events) : slots_(std::max<std::size_t>(events, 1) + kChunk) {}

  // The slot of the next event, to be filled by the adding thread; publish() adds it.
  Event& next() {
    if (at_ % kChunk == 0) claim();
    return slots_[slot_];
  }
  void publish() {
    if (++slot_ == slots_.size()) slot_ = 0;
    head_.store(++at_, std::memory_order_release);
  }

  // Adds what is kept, oldest first, to `events`, and returns how many came before.
  std::uint64_t copy_to(std::vector<Event>& events) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::uint64_t end = head_.load(std::memory_order_acquire);
    const std::uint64_t begin = claimed_ > slots_.size() ? claimed_ - slots_.size() : 0;
    for (std::uint64_t i = begin; i < end; ++i) events.push_back(slots_[i % slots_.size()]);
    return begin;
  }

 private:
  void claim() {
    const std::lock_guard<std::mutex> lock(mutex_);
    claimed_ = at_ + kChunk;
  }

  std::vector<Event> slots_;
  std::uint64_t at_ = 0;  // of the next event; the adding thread's
  std::size_t slot_ = 0;  // the same, among the slots
  std::atomic<std::uint64_t> head_{0};
  mutable std::mutex mutex_;
  std::uint64_t claimed_ = 0;  // slots of events below may be written at any time, if they are not yet
};

}  // namespace lockstep::internal
