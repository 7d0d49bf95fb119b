// tests/support/simulated_job.h - the workers of a job in one process and in time that is made up: what the hub and its guests do
// about processes that die, freeze or are cut off, as often and as fast as a test wants.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/membership/internal/guest.h"
#include "lockstep/core/membership/internal/hub.h"

namespace lockstep::testing {

class SimulatedJob {
 public:
  using Duration = std::chrono::nanoseconds;

  struct Worker final : internal::Wire {
    SimulatedJob* job = nullptr;
    int index = 0;
    bool is_alive = true, is_frozen = false;
    std::optional<internal::Hub> hub;
    std::optional<internal::Guest> guest;

    void send(int link, std::string bytes) override { job->send(link, std::move(bytes)); }
    void close(int link) override { job->end(link, "it was closed"); }
    int connect() override { return job->connect(*this); }
  };

  explicit SimulatedJob(int count, internal::Pace pace = {}) : count_(count), pace_(pace) {}

  SteadyTime now() const { return now_; }
  internal::GuestSpec guest_spec(int index) {
    return {.job_id = "job",
            .secret = "secret",
            .task = "worker:" + std::to_string(index),
            .address = "host-" + std::to_string(index),
            .index = index,
            .count = count_,
            .hub = "host-0:1",
            .pace = pace_,
            .nonce = [this] { return nonce(); }};
  }
  internal::HubSpec hub_spec() {
    return {.job_id = "job", .secret = "secret", .count = count_, .pace = pace_, .nonce = [this] {
              return nonce();
            }};
  }

  // A worker as it should be, or as `spec` has it. The one of index 0 is the hub's.
  Worker& start(int index) { return start(guest_spec(index)); }
  Worker& start(internal::GuestSpec spec) {
    Worker& worker = *workers_.emplace_back(std::make_unique<Worker>());
    worker.job = this;
    worker.index = static_cast<int>(workers_.size()) - 1;
    if (spec.index == 0) {
      worker.hub.emplace(hub_spec(), worker, now_);
      hub_ = worker.index;
    }
    worker.guest.emplace(std::move(spec), worker, now_);
    return worker;
  }
  // All of them; the job has begun when this returns.
  void start_all() {
    for (int i = 0; i < count_; ++i) start(i);
    run_for(std::chrono::milliseconds(100));
  }
  Worker& operator[](int index) { return *workers_[static_cast<std::size_t>(index)]; }
  internal::Hub& hub() { return *(*this)[hub_].hub; }

  // Its process ends, and the system closes its connections.
  void kill(int index) {
    Worker& worker = (*this)[index];
    worker.is_alive = false;
    for (const int link : links_of(index)) end(link, "connection reset by peer");
  }
  void freeze(int index) { (*this)[index].is_frozen = true; }
  void thaw(int index) { (*this)[index].is_frozen = false; }
  // Nothing passes between it and the hub any more, and nobody is told.
  void cut_off(int index) { cut_.insert(index); }
  // Somebody who is no worker connects to the hub; what it sends.
  int stranger() {
    const auto [own, theirs] = make_link(-1, hub_);
    later(Duration(0), hub_, Event::Kind::kCame, theirs, {});
    return own;
  }
  void send(int link, std::string bytes) {
    const auto found = links_.find(link);
    if (found == links_.end()) return;
    if (change) bytes = change(std::move(bytes));
    const int from = found->second.owner, other = found->second.other;
    const auto theirs = links_.find(other);
    if (theirs == links_.end() || cut_.contains(from) || cut_.contains(theirs->second.owner)) return;
    const int to = theirs->second.owner;
    later(from == to ? Duration(0) : delay, to, Event::Kind::kReceived, other, std::move(bytes));
  }
  bool is_open(int link) const { return links_.contains(link); }

  void run_for(Duration duration) {
    const SteadyTime until = now_ + duration;
    while (step(until)) {
    }
    now_ = until;
  }
  // Whether it becomes true in that time.
  bool run_until(const std::function<bool()>& is_true, Duration most) {
    const SteadyTime until = now_ + most;
    while (!is_true()) {
      if (!step(until)) {
        now_ = until;
        return is_true();
      }
    }
    return true;
  }

  Duration delay = std::chrono::milliseconds(1);
  std::function<std::string(std::string)> change;  // of what is sent

 private:
  struct Link {
    int owner = -1, other = -1;
    bool is_of_hub = false;
  };
  struct Event {
    enum class Kind : std::uint8_t { kCame, kLinked, kReceived, kEnded };
    Kind kind = Kind::kCame;
    int worker = -1, link = -1;
    std::string bytes = {};
  };

  std::string nonce() {
    std::string nonce = std::to_string(nonces_++);
    nonce.resize(16, '.');
    return nonce;
  }
  std::vector<int> links_of(int index) const {
    std::vector<int> links;
    for (const auto& [link, its] : links_) {
      if (its.owner == index) links.push_back(link);
    }
    return links;
  }
  std::pair<int, int> make_link(int from, int to) {
    const int own = made_++, theirs = made_++;
    links_[own] = {.owner = from, .other = theirs, .is_of_hub = false};
    links_[theirs] = {.owner = to, .other = own, .is_of_hub = true};
    return {own, theirs};
  }
  int connect(Worker& worker) {
    if (hub_ < 0 || !(*this)[hub_].is_alive) {
      const int link = made_++;
      links_[link] = {.owner = worker.index, .other = link};
      later(delay, worker.index, Event::Kind::kEnded, link, "connection refused");
      return link;
    }
    const auto [own, theirs] = make_link(worker.index, hub_);
    later(delay, hub_, Event::Kind::kCame, theirs, {});
    later(delay, worker.index, Event::Kind::kLinked, own, {});
    return own;
  }
  void end(int link, const std::string& how) {
    const auto found = links_.find(link);
    if (found == links_.end()) return;
    const int other = found->second.other;
    links_.erase(found);
    const auto theirs = links_.find(other);
    if (theirs == links_.end()) return;
    if (cut_.contains(theirs->second.owner)) return;
    later(delay, theirs->second.owner, Event::Kind::kEnded, other, how);
  }
  void later(Duration in, int worker, Event::Kind kind, int link, std::string bytes) {
    events_.emplace(now_ + in, Event{kind, worker, link, std::move(bytes)});
  }

  static void tick(Worker& worker, SteadyTime now) {
    if (worker.hub) worker.hub->tick(now);
    worker.guest->tick(now);
  }
  static SteadyTime next_tick(const Worker& worker) {
    return worker.hub ? std::min(worker.hub->next_tick(), worker.guest->next_tick())
                      : worker.guest->next_tick();
  }

  // The next thing that happens, at `until` at the latest; whether there was one.
  bool step(SteadyTime until) {
    auto event = std::ranges::find_if(events_, [this](const auto& its) {
      const int worker = its.second.worker;
      return worker < 0 || !(*this)[worker].is_frozen;
    });
    Worker* ticking = nullptr;
    for (const std::unique_ptr<Worker>& worker : workers_) {
      if (!worker->is_alive || worker->is_frozen) continue;
      if (ticking == nullptr || next_tick(*worker) < next_tick(*ticking)) ticking = worker.get();
    }
    const SteadyTime of_event = event == events_.end() ? SteadyTime::max() : std::max(now_, event->first);
    const SteadyTime of_tick = ticking == nullptr ? SteadyTime::max() : std::max(now_, next_tick(*ticking));
    if (std::min(of_event, of_tick) > until) return false;
    now_ = std::min(of_event, of_tick);
    if (of_event <= of_tick) {
      const Event happened = std::move(event->second);
      events_.erase(event);
      happen(happened);
    } else {
      tick(*ticking, now_);
    }
    return true;
  }

  void happen(const Event& event) {
    const auto link = links_.find(event.link);
    if (link == links_.end()) return;
    const bool is_of_hub = link->second.is_of_hub;
    if (event.kind == Event::Kind::kEnded) links_.erase(link);
    if (event.worker < 0 || !(*this)[event.worker].is_alive) return;
    Worker& worker = (*this)[event.worker];
    tick(worker, now_);
    switch (event.kind) {
      case Event::Kind::kCame: worker.hub->linked(event.link, now_); break;
      case Event::Kind::kLinked: worker.guest->linked(event.link, now_); break;
      case Event::Kind::kReceived: {
        if (is_of_hub) {
          worker.hub->received(event.link, event.bytes, now_);
        } else {
          worker.guest->received(event.link, event.bytes, now_);
        }
        break;
      }
      case Event::Kind::kEnded: {
        if (is_of_hub) {
          worker.hub->ended(event.link, event.bytes, now_);
        } else {
          worker.guest->ended(event.link, event.bytes, now_);
        }
        break;
      }
    }
  }

  const int count_;
  const internal::Pace pace_;
  SteadyTime now_ = SteadyTime(std::chrono::hours(1));
  std::vector<std::unique_ptr<Worker>> workers_;
  int hub_ = -1, made_ = 0, nonces_ = 0;
  std::map<int, Link> links_;
  std::set<int> cut_;
  std::multimap<SteadyTime, Event> events_;
};

}  // namespace lockstep::testing
