// core/communicators/group.cpp - a Communicator whose calls complete by themselves.
#include "lockstep/core/communicators/group.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/process_mark.h"

namespace lockstep {

struct Group::State {
  explicit State(std::unique_ptr<Communicator> given) : communicator(std::move(given)) {}

  struct Started {
    CommunicatorCall call;
    Completion* done = nullptr;
  };
  struct UnderWay {
    Pending pending;
    Completion* done = nullptr;
  };

  void serve();
  void begin(const Started& started);

  const ProcessMark process;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Started> queue;
  bool quit = false;
  // Of the thread alone.
  std::unique_ptr<Communicator> communicator;
  std::deque<UnderWay> under_way;
  std::thread thread;
};

Group::Group(std::unique_ptr<Communicator> communicator) {
  if (communicator == nullptr) throw InvalidArgument("Group: got no communicator");
  rank_ = communicator->rank();
  size_ = communicator->size();
  memory_kind_ = communicator->memory_kind();
  state_ = std::make_unique<State>(std::move(communicator));
  state_->thread = std::thread([state = state_.get()] { state->serve(); });
}

Group::~Group() {
  if (!state_->process.is_of_this_process()) {
    // The thread exists in the parent alone, and may have left everything in any state: stay away from it.
    static_cast<void>(state_.release());
    return;
  }
  quit();
  join();
}

void Group::leave_all(std::span<const std::unique_ptr<Group>> groups) noexcept {
  for (const std::unique_ptr<Group>& group : groups) group->quit();
  for (const std::unique_ptr<Group>& group : groups) group->join();
}

void Group::quit() noexcept {
  if (!state_->process.is_of_this_process()) return;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->quit = true;
  }
  state_->changed.notify_one();
}

void Group::join() noexcept {
  if (state_->process.is_of_this_process() && state_->thread.joinable()) state_->thread.join();
}

void Group::abort(const Error& why) { state_->communicator->abort(why); }

void Group::start(const CommunicatorCall& call, Completion& done) {
  if (!state_->process.is_of_this_process()) {
    throw FailedPrecondition(
        str(to_string(call), ": the group was made by the parent of this process, whose threads a forked ",
            "child does not have; give the child a group of its own"));
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->queue.push_back({call, &done});
  }
  state_->changed.notify_one();
}

// New calls are begun before an old one is waited for. Takes leave at the end: another thread may still abort the communicator,
// so that it lives on.
void Group::State::serve() {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    if (under_way.empty()) changed.wait(lock, [this] { return quit || !queue.empty(); });
    if (under_way.empty() && queue.empty()) break;
    const std::deque<Started> fresh = std::exchange(queue, {});
    lock.unlock();
    for (const Started& started : fresh) begin(started);
    if (!under_way.empty()) {
      UnderWay oldest = std::move(under_way.front());
      under_way.pop_front();
      std::exception_ptr error;
      try {
        oldest.pending.wait();
      } catch (...) {
        error = std::current_exception();
      }
      if (error != nullptr) {
        oldest.done->failed(std::move(error));
      } else {
        oldest.done->done();
      }
    }
    lock.lock();
  }
  lock.unlock();
  try {
    communicator->close();
  } catch (...) {  // its destructor leaves as well
  }
}

void Group::State::begin(const Started& started) {
  try {
    Pending pending = communicator->call(started.call);
    under_way.push_back({std::move(pending), started.done});
  } catch (...) {
    started.done->failed(std::current_exception());
  }
}

}  // namespace lockstep
