// core/communicators/device_group.cpp - a group whose participants are devices of one process.
#include "lockstep/core/communicators/device_group.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "lockstep/core/communicators/group.h"
#include "lockstep/core/error.h"
#include "lockstep/core/work_in_flight.h"

namespace lockstep {

namespace {

Error error_of(const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return {code_of(error, ErrorCode::kUnavailable), message_of(error)};
  } catch (...) {
    return {ErrorCode::kUnavailable, "a participant failed and did not say why"};
  }
}

// The participants, as long as none of them has failed.
class Connected {
 public:
  Connected() = default;
  // All at the same time, and none is gone before the threads of all have ended, which abort the others.
  ~Connected() { Group::leave_all(groups_); }
  Connected(const Connected&) = delete;
  Connected& operator=(const Connected&) = delete;
  std::vector<std::unique_ptr<Group>>& groups() { return groups_; }  // by rank

  // Waits for an abort that is under way, which uses the groups.
  bool is_broken() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return is_broken_;
  }
  // The others would wait for one that has failed.
  void abort(const std::exception_ptr& why) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(is_broken_, true)) return;
    for (const std::unique_ptr<Group>& group : groups_)
      internal::insist([&] { group->abort(error_of(why)); });
  }

 private:
  std::mutex mutex_;  // of is_broken_; outlives the groups, whose threads abort
  bool is_broken_ = false;
  std::vector<std::unique_ptr<Group>> groups_;
};

// Signals when as many calls are over; then it is gone.
class Joint final : public Completion {
 public:
  Joint(Connected& connected, Completion& done, std::size_t calls)
      : connected_(connected), done_(done), left_(calls) {}

  // What was not started does not come.
  void drop(std::size_t calls, const std::exception_ptr& why) noexcept {
    for (std::size_t i = 0; i < calls; ++i) failed(why);
  }

 private:
  ~Joint() = default;
  void end(std::exception_ptr why) noexcept override {
    if (why != nullptr) {
      if (!has_failed_.exchange(true, std::memory_order_acq_rel)) first_ = why;
      connected_.abort(why);
    }
    if (left_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    Completion& done = done_;
    std::exception_ptr first = std::move(first_);
    delete this;  // NOLINT(cppcoreguidelines-owning-memory): the last call is over
    if (first != nullptr) {
      done.failed(std::move(first));
    } else {
      done.done();
    }
  }

  Connected& connected_;
  Completion& done_;
  std::atomic<std::size_t> left_;
  std::atomic<bool> has_failed_{false};
  std::exception_ptr first_;  // written by one, read after the last
};

}  // namespace

struct DeviceGroup::State {
  // What the calls of `lock` go to from now on; connected if need be, while the lock is not held.
  Connected& get(std::unique_lock<std::mutex>& lock, Deadline deadline);

  Connect connect;
  std::mutex mutex;  // calls of several threads have one order at all participants
  std::condition_variable changed;
  bool is_connecting = false;
  std::unique_ptr<Connected> connected;
};

Connected& DeviceGroup::State::get(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  const auto nobody_connects = [this] { return !is_connecting; };
  if (!deadline) {
    changed.wait(lock, nobody_connects);
  } else if (!changed.wait_until(lock, *deadline, nobody_connects)) {
    throw Error(ErrorCode::kDeadlineExceeded,
                "DeviceGroup: the participants were still being connected for another call");
  }
  if (connected != nullptr && !connected->is_broken()) return *connected;
  is_connecting = true;
  std::unique_ptr<Connected> fresh, broken = std::move(connected);
  lock.unlock();
  std::exception_ptr error;
  try {
    broken = nullptr;  // the devices are free then
    fresh = std::make_unique<Connected>();
    for (std::unique_ptr<Communicator>& participant : connect(deadline))
      fresh->groups().push_back(std::make_unique<Group>(std::move(participant)));
  } catch (...) {
    error = std::current_exception();
    fresh = nullptr;
  }
  lock.lock();
  is_connecting = false;
  connected = std::move(fresh);
  changed.notify_all();
  if (error != nullptr) std::rethrow_exception(error);
  return *connected;
}

DeviceGroup::DeviceGroup(Connect connect) : state_(std::make_unique<State>()) {
  if (!connect) throw InvalidArgument("DeviceGroup: got no function that connects the participants");
  state_->connect = std::move(connect);
}

DeviceGroup::~DeviceGroup() = default;

void DeviceGroup::start(std::span<const CommunicatorCall> calls, Completion& done) {
  Deadline deadline;
  for (const CommunicatorCall& call : calls) {
    if (call.deadline && (!deadline || *call.deadline < *deadline)) deadline = call.deadline;
  }
  std::unique_lock<std::mutex> lock(state_->mutex);
  Connected& connected = state_->get(lock, deadline);
  const std::size_t size = connected.groups().size();
  if (calls.empty() || size == 0 || calls.size() % size != 0)
    throw InvalidArgument(str("DeviceGroup: ", calls.size(), " calls of ", size, " participants"));
  auto* const joint =
      new Joint(connected, done, calls.size());  // NOLINT(cppcoreguidelines-owning-memory): see Joint
  for (std::size_t i = 0; i < calls.size(); ++i) {
    try {
      connected.groups()[i % size]->start(calls[i], *joint);
    } catch (...) {  // those that were started fail, since the others never come
      joint->drop(calls.size() - i, std::current_exception());
      return;
    }
  }
}

}  // namespace lockstep
