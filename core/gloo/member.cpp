// core/gloo/member.cpp - a participant of a group over Gloo: its calls, who performs them, and who looks at the clock.
#include "lockstep/core/gloo/internal/member.h"

#include <algorithm>

#include "lockstep/core/base/thread_guards.h"

namespace lockstep::internal::gloo_group {
namespace {

using Kind = CommunicatorCall::Kind;

constexpr std::chrono::seconds kReason{1};     // for the reason of a loss to come, after the connection ended
constexpr std::chrono::milliseconds kLook{1};  // between two looks of a lane's thread
constexpr int kLooks = 10;                     // without anything new, before it sleeps until it is woken
constexpr int kEager = 64;  // operations that it takes at once, after one that nobody came for

}  // namespace

// --- calls

void Member::check_process(const CommunicatorCall& call) const {
  if (!is_of_this_process())
    throw FailedPrecondition(
        str(to_string(call), ": the group was made by the parent of this process, whose ",
            "connections a forked child does not share; give the child a group of its own"));
}

bool Operation::done(int /*rank*/) {
  member_->check_process(call_);
  const std::lock_guard<std::mutex> lock(member_->mutex_);
  if (phase_ != Phase::kOver && !lane_.is_taken) {  // so whoever asks makes progress
    lane_.eager = kEager;
    lane_.wake.notify_one();
  }
  return phase_ == Phase::kOver;
}

void Operation::wait(int /*rank*/) {
  member_->check_process(call_);
  std::unique_lock<std::mutex> lock(member_->mutex_);
  while (phase_ != Phase::kOver) {
    if (!member_->failure_ && !lane_.is_taken) {
      const SigPipeBlocked quiet;
      member_->advance(lane_, lock);
    } else {
      member_->changed_.wait(lock);
    }
  }
  if (declined_) throw Declined(*declined_);
  if (failure_) throw_error(failure_->code, failure_->why);
}

void Operation::release(int /*rank*/) noexcept {
  if (!member_->is_of_this_process()) return;  // it stays for ever: see Member::stay
  {
    std::unique_lock<std::mutex> lock(member_->mutex_);
    if (phase_ == Phase::kQueued || phase_ == Phase::kGathering)
      member_->set_failure(lock, {.why = text("participant ", member_->spec_.rank, " gave up ",
                                              to_string(call_), " before all had called it")});
    while (phase_ != Phase::kOver) member_->changed_.wait(lock);
  }
  const std::shared_ptr<Operation> last = std::move(self_);
}

void Operation::awaits(int rank) {
  const std::lock_guard<std::mutex> lock(member_->mutex_);
  awaited_ = rank;
  since_ = Clock::now();
}

void Operation::begins() {
  const std::lock_guard<std::mutex> lock(member_->mutex_);
  phase_ = Phase::kRunning;
  since_ = began_ = Clock::now();
  if (member_->is_leaving_) member_->changed_.notify_all();
}

Lane& Member::lane_of(const CommunicatorCall& call) {
  if (call.is_collective()) return collectives_;
  Lane& lane = messages_[{call.peer, call.kind == Kind::kSend}];
  if (!lane.thread.joinable() && !failure_ && !is_leaving_) {
    const SignalsBlocked quiet;
    lane.thread = std::thread([this, &lane] { attend(lane); });
    lane.runs = true;
  }
  return lane;
}

Pending Member::start(const CommunicatorCall& call) {
  check_process(call);
  Lock lock(mutex_);
  Lane& lane = lane_of(call);
  const Place place{call.is_collective() ? -1 : call.peer, call.kind == Kind::kSend ? 1 : 0, lane.started};
  auto operation = std::make_shared<Operation>(shared_from_this(), lane, call, place);
  const bool is_first = lane.queue.empty();
  lane.queue.push_back(operation);
  ++lane.started;
  operation->self_ = operation;
  let_go(lock);
  if (failure_ && !lane.runs) {
    if (operation->phase_ != Phase::kOver) {
      lane.queue.pop_back();
      end_operation(*operation);
    }
  } else {
    is_busy_ = true;
    const Clock::time_point now = Clock::now();
    const Operation& first = *lane.queue.front();
    operation->ran_before_ =
        lane.ran + (first.phase_ == Phase::kRunning ? now - first.began_ : Clock::duration(0));
    watch(std::min(call.deadline.value_or(kNever), now + spec_.patience));
    if (lane.sleeps || (is_first && lane.eager > 0)) lane.wake.notify_one();
  }
  return {operation.get(), spec_.rank};
}

int Member::awaited() {
  const Lock lock(mutex_);
  if (collectives_.queue.empty()) return -1;
  const Operation& first = *collectives_.queue.front();
  return first.phase_ == Phase::kQueued || first.phase_ == Phase::kOver ? -1 : first.awaited_;
}

// The failure of the group, as this operation's.
void Member::end_operation(Operation& operation) {
  operation.phase_ = Phase::kOver;
  operation.failure_ = {.code = failure_->at == operation.place_ ? failure_->code : ErrorCode::kUnavailable,
                        .why = text(operation.name(), ": ", failure_->why)};
}

// --- time

// The keeper need not be woken for what it sees in time anyway.
void Member::watch(Clock::time_point until) {
  if (until < kept_until_) keeper_wake_.notify_one();
}

// The thread that looks at the clock, since those who perform are held up inside Gloo. It sleeps while nothing begins.
void Member::keep() {
  Lock lock(mutex_);
  while (!failure_ && !is_left_) {
    const Clock::time_point now = Clock::now();
    kept_until_ = is_busy_ ? now + spec_.patience : kNever;
    is_busy_ = false;
    each_lane([&](const Lane& lane) {
      judge(lock, lane, now);
      if (!lane.queue.empty()) is_busy_ = true;
      kept_until_ = std::min(kept_until_, next_look(lane));
    });
    if (failure_) break;
    if (kept_until_ == kNever) {
      keeper_wake_.wait(lock);
    } else {
      keeper_wake_.wait_until(lock, kept_until_);
    }
  }
  wind_up(lock);
}

// Twice as long for what any participant may hold up: by then the one that is held up itself has said who it is.
std::chrono::milliseconds Member::patience_for(const Operation& operation) const {
  return operation.awaited_ >= 0 ? spec_.patience : 2 * spec_.patience;
}

// Of a queue whose first operation is not running. Time in which earlier ones ran does not count.
Clock::time_point Member::deadline_of(const Operation& operation) const {
  const Clock::duration behind = operation.lane_.ran - operation.ran_before_;
  const Deadline& deadline = operation.call_.deadline;
  return !deadline || *deadline > kNever - behind ? kNever : *deadline + behind;
}

Clock::time_point Member::next_look(const Lane& lane) const {
  if (lane.queue.empty()) return kNever;
  const Operation& first = *lane.queue.front();
  if (first.phase_ == Phase::kRunning) return first.since_ + patience_for(first);
  Clock::time_point next = kNever;
  for (const std::shared_ptr<Operation>& operation : lane.queue)
    next = std::min(next, deadline_of(*operation));
  return next;
}

void Member::judge(Lock& lock, const Lane& lane, Clock::time_point now) {
  if (failure_ || next_look(lane) > now) return;
  const Operation& first = *lane.queue.front();
  if (first.phase_ == Phase::kRunning) {
    set_failure(lock, {.why = text(first.awaited_ >= 0 ? of_group(first.awaited_) : "another participant",
                                   " did not go on with it for ", patience_for(first).count(), " ms"),
                       .at = first.place_});
    return;
  }
  const auto late =
      std::ranges::find_if(lane.queue, [&](const auto& operation) { return deadline_of(*operation) <= now; });
  const int missing = first.place_.peer != -1             ? first.place_.peer
                      : first.phase_ == Phase::kGathering ? first.awaited_
                                                          : -1;
  set_failure(
      lock, {.code = ErrorCode::kDeadlineExceeded,
             .why = text("the deadline passed before ", missing >= 0 ? of_group(missing) : std::string("all"),
                         " had called ", late->get() == &first ? std::string("it") : first.name(),
                         "; the group is broken, make a new one"),
             .at = (*late)->place_});
}

// --- threads

void Member::start_threads() {
  const SignalsBlocked quiet;
  keeper_ = std::thread([this] { keep(); });
  collectives_.thread = std::thread([this] { attend(collectives_); });
  for (int rank = 0; rank < spec_.size; ++rank) {
    if (rank != spec_.rank)
      peers_[static_cast<std::size_t>(rank)].listener = std::thread([this, rank] { listen(rank); });
  }
}

// The thread of a lane, which performs what nobody waits for. While operations follow each other it looks now and then, so that
// starting one wakes nobody.
void Member::attend(Lane& lane) {
  Lock lock(mutex_);
  lane.runs = true;
  std::optional<std::uint64_t> free;  // the number of the operation that nobody had come for
  std::uint64_t completed = 0;
  int looks = 0;
  while (!failure_ && !is_left_) {
    const bool is_free = !lane.queue.empty() && !lane.is_taken;
    if (is_free && (lane.eager > 0 || free == lane.completed)) {
      if (lane.eager == 0) lane.eager = kEager;
      advance(lane, lock);
      continue;
    }
    free = is_free ? std::optional(lane.completed) : std::nullopt;
    looks = is_free || completed != lane.completed ? 0 : looks + 1;
    completed = lane.completed;
    lane.sleeps = looks >= kLooks;
    if (lane.sleeps) {
      lane.wake.wait(lock);
    } else {
      lane.wake.wait_for(lock, kLook);
    }
    lane.sleeps = false;
  }
  changed_.wait(lock, [&lane] { return !lane.is_taken; });
  // Nothing touches the arrays of this lane any more.
  if (failure_) {
    for (const std::shared_ptr<Operation>& operation : lane.queue) end_operation(*operation);
    lane.queue.clear();
  }
  lane.runs = false;
  changed_.notify_all();
}

// Performs the first operation of a lane.
void Member::advance(Lane& lane, Lock& lock) noexcept {
  const std::shared_ptr<Operation> operation = lane.queue.front();
  operation->phase_ = Phase::kGathering;
  lane.is_taken = true;
  if (lane.eager > 0) --lane.eager;
  watch(next_look(lane));
  lock.unlock();
  std::optional<Failure> failure = perform(*operation);
  lock.lock();
  lane.is_taken = false;
  if (failure) {
    set_failure(lock, std::move(*failure));  // the lane's thread ends the operation
  } else {
    operation->phase_ = Phase::kOver;
    lane.queue.pop_front();
    ++lane.completed;
    lane.ran += Clock::now() - operation->began_;
    if (lane.sleeps && !lane.queue.empty()) lane.wake.notify_one();
    let_go(lock);
  }
  changed_.notify_all();
}

std::optional<Failure> Member::perform(Operation& operation) noexcept {
  const CommunicatorCall& call = operation.call_;
  try {
    try {
      const DefaultFloats floats;  // the same bits on all participants
      if (call.is_collective()) {
        exchange_.collective(call, operation.place_.number, operation);
      } else if (call.kind == Kind::kSend) {
        exchange_.send(call, operation);
      } else {
        exchange_.receive(call, operation);
      }
      return {};
    } catch (const GlooInterrupted&) {
      return Failure{.why = "interrupted"};  // the reason is known already
    } catch (const GlooLost& lost) {
      // The listener of that participant hears what it said last, or that it is gone.
      Lock lock(mutex_);
      changed_.wait_for(lock, kReason, [&] { return failure_.has_value(); });
      const int who = operation.awaited_;
      return Failure{
          .why = str(who >= 0 && operation.phase_ == Phase::kGathering ? of_group(who) : "a participant",
                     " was lost: ", lost.what())};
    } catch (const Declined& declined) {
      operation.declined_ = declined;  // nobody else looks before it is over
      return {};
    } catch (const Error& error) {
      return Failure{.code = error.code(), .why = error.message(), .at = operation.place_};
    } catch (const std::exception& error) {
      return Failure{
          .code = code_of(error, ErrorCode::kInternal), .why = message_of(error), .at = operation.place_};
    }
  } catch (...) {
    return Failure{.code = ErrorCode::kOutOfMemory, .why = "out of memory", .at = operation.place_};
  }
}

}  // namespace lockstep::internal::gloo_group
