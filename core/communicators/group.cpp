// core/communicators/group.cpp - a Communicator whose calls complete by themselves.
#include "lockstep/core/communicators/group.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/process_mark.h"

namespace lockstep {

namespace {

constexpr std::chrono::seconds kLeaving{2};  // for the others to hear that a round was given up

}  // namespace

struct Group::Started {
  CommunicatorCall call;
  Completion* done = nullptr;  // null: nobody asks
  Round round = 0;
  std::shared_ptr<const std::string> what = nullptr;  // null: the call itself
  std::string why = {};                               // the text of a call that declines
  // Of a vote: is a stop wanted here, and by anybody?
  bool is_vote = false;
  std::int64_t wants_stop = 0, stops = 0;
  Pending pending = {};
};

struct Group::State {
  using Calls = std::list<std::unique_ptr<Started>>;  // that move from one to the other without new memory

  explicit State(std::unique_ptr<Communicator> given) : communicator(std::move(given)) {}

  void serve();
  bool may_begin() const;
  bool begin(Started& started);
  void complete(std::unique_ptr<Started> started);
  void look_at(const Started* started);

  const ProcessMark process;
  const Error no_memory{ErrorCode::kOutOfMemory, "there is no memory to say why"};
  std::atomic<Round> last_round{0};
  std::atomic<bool> wants_stop{false}, stops{false};
  std::atomic<std::chrono::milliseconds::rep> timeout{0};
  std::mutex mutex;
  std::condition_variable changed;
  Calls queue;
  bool quit = false;
  std::condition_variable ended;
  bool is_over = false;              // the thread does nothing any more
  const Started* current = nullptr;  // what the thread waits for
  std::chrono::steady_clock::time_point since;
  // Of the thread alone.
  std::unique_ptr<Communicator> communicator;
  Calls waiting, under_way;
  Round given_up = 0;  // the last round that was, and why
  std::exception_ptr reason;
  std::thread thread;
};

Group::Group(std::unique_ptr<Communicator> communicator) {
  if (communicator == nullptr) throw InvalidArgument("Group: got no communicator");
  rank_ = communicator->rank();
  size_ = communicator->size();
  takes_host_ = communicator->takes(DeviceKind::kCpu);
  takes_cards_ = communicator->takes(DeviceKind::kGpu);
  votes_ = size_ > 1 && communicator->can_decline();
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

// Others hear from a thread that waits for them that a round was given up; if they do not come for that, the group ends.
void Group::join() noexcept {
  if (!state_->process.is_of_this_process() || !state_->thread.joinable()) return;
  {
    std::unique_lock<std::mutex> lock(state_->mutex);
    State& state = *state_;
    bool is_aborted = false;
    const auto gives_up = [&] {
      return !is_aborted && state.current != nullptr &&
             state.current->call.kind == CommunicatorCall::Kind::kDecline;
    };
    while (!state.is_over) {
      if (!gives_up()) {
        state.ended.wait(lock);
      } else if (!state.ended.wait_for(lock, kLeaving, [&] { return state.is_over || !gives_up(); })) {
        is_aborted = true;
        lock.unlock();
        abort(Error(ErrorCode::kUnavailable, "it has left the group"));
        lock.lock();
      }
    }
  }
  state_->thread.join();
}

void Group::set_timeout(std::chrono::milliseconds timeout) noexcept {
  state_->timeout.store(timeout.count(), std::memory_order_relaxed);
}

void Group::abort(const Error& why) { state_->communicator->abort(why); }

void Group::start(const CommunicatorCall& call, Completion& done, Round round,
                  std::shared_ptr<const std::string> what) {
  auto started = std::make_unique<Started>();
  started->call = call;
  started->done = &done;
  started->round = votes_ ? round : 0;
  started->what = std::move(what);
  queue(std::move(started));
}

void Group::queue(std::unique_ptr<Started> started) {
  if (!state_->process.is_of_this_process()) {
    throw FailedPrecondition(
        str(to_string(started->call),
            ": the group was made by the parent of this process, whose threads a forked ",
            "child does not have; give the child a group of its own"));
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->queue.push_back(std::move(started));
  }
  state_->changed.notify_one();
}

// --- rounds

Group::Round Group::begin_round() noexcept { return ++state_->last_round; }

void Group::give_up(Round round, ErrorCode code, std::string_view why) noexcept {
  if (size_ == 1) return;
  try {
    if (!votes_) return abort(Error(code, std::string(why)));
    auto started = std::make_unique<Started>();
    started->round = round;
    started->why = why.substr(0, Communicator::kMostReason);
    started->call.kind = CommunicatorCall::Kind::kDecline;
    started->call.dtype = DType::kU8;
    started->call.count = static_cast<std::int64_t>(started->why.size());
    started->call.in = started->why.data();
    started->call.reason = code;
    queue(std::move(started));
  } catch (const FailedPrecondition&) {  // in a child that fork() made: it is not its group
  } catch (const std::exception&) {
    abort(state_->no_memory);
  }
}

void Group::vote(Round round, Completion& done) {
  auto started = std::make_unique<Started>();
  started->done = &done;
  started->round = round;
  started->is_vote = true;
  started->call = {.kind = CommunicatorCall::Kind::kAllReduce,
                   .op = ReplicaReduce::kMax,
                   .dtype = DType::kI64,
                   .count = 1,
                   .in = &started->wants_stop,
                   .out = &started->stops,
                   .deadline = {}};
  queue(std::move(started));
}

void Group::want_stop() noexcept { state_->wants_stop.store(true, std::memory_order_relaxed); }
bool Group::is_stop_wanted() const noexcept {
  return (votes_ ? state_->stops : state_->wants_stop).load(std::memory_order_relaxed);
}

std::optional<Group::Waiting> Group::waiting() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->current == nullptr) return std::nullopt;
  const Started& started = *state_->current;
  return Waiting{.what = started.is_vote           ? "the end of a run"
                         : started.what != nullptr ? *started.what
                                                   : to_string(started.call),
                 .for_member = state_->communicator->awaited(),
                 .since = state_->since};
}

// --- the thread

// New calls are begun before an old one is waited for, but those of rounds: a round may be given up. Takes leave at the end:
// another thread may still abort the communicator, so that it lives on.
void Group::State::serve() {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    if (under_way.empty() && waiting.empty()) changed.wait(lock, [this] { return quit || !queue.empty(); });
    waiting.splice(waiting.end(), queue);
    if (under_way.empty() && waiting.empty()) break;
    lock.unlock();
    while (may_begin()) {
      if (begin(*waiting.front())) {
        under_way.splice(under_way.end(), waiting, waiting.begin());
      } else {
        waiting.pop_front();
      }
    }
    if (!under_way.empty()) {
      std::unique_ptr<Started> oldest = std::move(under_way.front());
      under_way.pop_front();
      complete(std::move(oldest));
    }
    lock.lock();
  }
  lock.unlock();
  try {
    communicator->close();
  } catch (...) {  // its destructor leaves as well
  }
  lock.lock();
  is_over = true;
  ended.notify_all();
}

bool Group::State::may_begin() const {
  if (waiting.empty()) return false;
  return under_way.empty() || (waiting.front()->round == 0 && under_way.back()->round == 0);
}

// False: it is over.
bool Group::State::begin(Started& started) {
  std::exception_ptr error;
  if (started.round != 0 && started.round == given_up) {
    error = reason;
  } else {
    try {
      if (started.is_vote) started.wants_stop = wants_stop.load(std::memory_order_relaxed) ? 1 : 0;
      const bool may_wait = started.is_vote || started.call.kind == CommunicatorCall::Kind::kDecline;
      if (const std::chrono::milliseconds most(timeout.load(std::memory_order_relaxed));
          most.count() > 0 && !started.call.deadline && !may_wait)
        started.call.deadline = deadline_in(most);
      started.pending = communicator->call(started.call);
      return true;
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (started.done != nullptr) started.done->failed(std::move(error));
  return false;
}

void Group::State::look_at(const Started* started) {
  const std::lock_guard<std::mutex> lock(mutex);
  current = started;
  since = std::chrono::steady_clock::now();
  ended.notify_all();
}

void Group::State::complete(std::unique_ptr<Started> started) {
  std::exception_ptr error;
  look_at(started.get());
  try {
    started->pending.wait();
    if (started->stops != 0) stops.store(true, std::memory_order_relaxed);
  } catch (const Declined&) {
    error = std::current_exception();
    given_up = started->round;
    reason = error;
  } catch (...) {
    error = std::current_exception();
  }
  look_at(nullptr);
  Completion* const done = started->done;
  started.reset();
  if (done == nullptr) return;
  if (error != nullptr) {
    done->failed(std::move(error));
  } else {
    done->done();
  }
}

}  // namespace lockstep
