// core/work_in_flight.cpp - work of devices that goes on after the run which began it has returned.
#include "lockstep/core/work_in_flight.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace lockstep {

namespace {

// Calls `each` for all, and throws the first error afterwards: what one device has lost, others still do.
template <class F>
void for_all(const std::vector<WorkInFlight::End>& ends, F&& each) {
  std::exception_ptr first;
  for (const WorkInFlight::End& end : ends) {
    try {
      each(end);
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace

WorkInFlight::WorkInFlight(std::vector<End> ends) : ends_(std::move(ends)) {}

std::uint64_t WorkInFlight::record() {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  ++last_;
  for_all(ends_, [](const End& end) { end.stream->record(*end.event); });
  return last_;
}

void WorkInFlight::record_surely() noexcept {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  ++last_;
  for (const End& end : ends_) internal::insist([&] { end.stream->record(*end.event); });
}

void WorkInFlight::judge_by(Look look, const void* group) {
  look_ = std::move(look);
  group_ = group;
}

std::exception_ptr WorkInFlight::refusal(std::uint64_t number, bool seen) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const std::lock_guard<std::mutex> judging(judging_);
  if (look_ && number == last_ && judged_ != last_) {
    judged_ = last_;
    seen_ = false;
    if (std::exception_ptr why = look_(); why != nullptr) refused_.emplace_back(last_, std::move(why));
  }
  const auto found =
      std::ranges::find(refused_, number, &std::pair<std::uint64_t, std::exception_ptr>::first);
  if (found == refused_.end()) return nullptr;
  seen_ = seen_ || (seen && number == last_);
  return found->second;
}

std::exception_ptr WorkInFlight::take_refusal() {
  const std::uint64_t number = last();
  std::exception_ptr why = refusal(number, false);
  const std::lock_guard<std::mutex> judging(judging_);
  return std::exchange(dealt_with_, number) == number ? nullptr : why;
}

bool WorkInFlight::is_seen() const {
  const std::lock_guard<std::mutex> judging(judging_);
  return seen_;
}

void WorkInFlight::close() noexcept {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  ends_.clear();
  look_ = nullptr;
  ++last_;
}

// A run that is not the last one is over, or the last one would not have begun.
bool WorkInFlight::wait(std::uint64_t number, std::optional<SteadyTime> deadline) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (number != last_ || over_.load(std::memory_order_acquire) == number) return true;
  bool over = true;
  for_all(ends_, [&](const End& end) { over = end.event->wait(deadline) && over; });
  if (over) over_.store(number, std::memory_order_release);
  return over;
}

bool WorkInFlight::is_over(std::uint64_t number) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (number != last_ || over_.load(std::memory_order_acquire) == number) return true;
  bool over = true;
  for_all(ends_, [&](const End& end) { over = end.event->is_done() && over; });
  if (over) over_.store(number, std::memory_order_release);
  return over;
}

std::uint64_t WorkInFlight::last() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  return last_;
}

void WorkInFlight::precede(Stream& stream, std::uint64_t number) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (number != last_ || over_.load(std::memory_order_acquire) == number) return;
  for (const End& end : ends_) {
    if (end.stream != &stream) stream.wait(*end.event);
  }
}

void MemoryUses::Use::wait() const {
  work->wait(number);
  if (!judged) return;
  if (const std::exception_ptr why = work->refusal(number, true); why != nullptr) std::rethrow_exception(why);
}

void MemoryUses::add(const std::shared_ptr<WorkInFlight>& work, std::uint64_t number, bool writes,
                     bool judged) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Uses kept;
  if (!writes) {
    for (Use& use : uses_) {
      const bool is_over = use.work->last() != use.number;
      if (!is_over || use.judged) kept.push_back(std::move(use));
    }
  }
  kept.push_back({work, number, writes, judged});
  uses_ = std::move(kept);
}

MemoryUses::Uses MemoryUses::in_the_way(bool to_write) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Uses found;
  for (const Use& use : uses_) {
    if (use.writes || to_write) found.push_back(use);
  }
  return found;
}

void MemoryUses::wait(bool to_write) const {
  for (const Use& use : in_the_way(to_write)) use.wait();
}

void MemoryUses::wait_for_others(const void* group, bool to_write) const {
  for (const Use& use : in_the_way(to_write)) {
    if (use.work->group() != nullptr && use.work->group() != group) use.wait();
  }
}

bool MemoryUses::is_free(bool to_write) const {
  return std::ranges::all_of(in_the_way(to_write),
                             [](const Use& use) { return use.work->is_over(use.number); });
}

void MemoryUses::precede(Stream& stream, bool to_write) const {
  for (const Use& use : in_the_way(to_write)) use.work->precede(stream, use.number);
}

}  // namespace lockstep
