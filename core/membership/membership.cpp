// core/membership/membership.cpp - the workers of a job, who know of each other.
#include "lockstep/core/membership/membership.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/base/sha256.h"
#include "lockstep/core/base/thread_guards.h"
#include "lockstep/core/membership/internal/guest.h"
#include "lockstep/core/membership/internal/hub.h"
#include "lockstep/core/membership/internal/sockets.h"
#include "lockstep/core/membership/internal/visitor.h"
#include "lockstep/core/process_mark.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using internal::ConnectionEvent;
using internal::Guest;
using internal::Hub;

constexpr std::chrono::seconds kLeaving{2};
constexpr std::chrono::milliseconds kMostPatience = std::chrono::hours(24);
constexpr std::chrono::milliseconds kKnock{5};  // between two looks into the folder
constexpr std::chrono::milliseconds kLook{20};  // at a stop token

std::string random_nonce() {
  std::random_device random;
  std::string nonce;
  while (nonce.size() < 16) {
    const unsigned value = random();
    for (unsigned i = 0; i < 4; ++i) nonce += static_cast<char>(value >> (8 * i) & 0xFF);
  }
  return nonce;
}

bool has_passed(Deadline deadline) { return deadline && Clock::now() >= *deadline; }

[[noreturn]] void throw_given_up(const MembershipSpec& spec) {
  throw Error(ErrorCode::kCancelled, str(spec.worker.task(), ": joining the job was given up"));
}

void check(const MembershipSpec& spec) {
  const WorkerSpec& worker = spec.worker;
  if (worker.count < 1 || worker.rank < 0 || worker.rank >= worker.count)
    throw InvalidArgument(str("Membership: there is no worker ", worker.rank, " of ", worker.count));
  if (spec.lost > kMostPatience)
    throw InvalidArgument("Membership: a worker that is silent for a day is lost: `lost` is too long");
  if (spec.beat <= std::chrono::milliseconds(0) || spec.beat > kMostPatience || spec.lost < 3 * spec.beat)
    throw InvalidArgument(str("Membership: a worker that is silent for ", spec.lost.count(),
                              " ms would be lost, and beats come every ", spec.beat.count(),
                              " ms: `lost` must be at least three beats"));
  if (spec.replicas < 1) throw InvalidArgument("Membership: a worker has at least one replica");
  if (worker.count > 1 && worker.coordinator.empty() && spec.folder.empty())
    throw InvalidArgument(
        str("Membership: nothing says where the worker of rank 0 is reached: the launcher does not tell; ",
            "set LOCKSTEP_COORDINATOR to its host:port, or give a folder that all workers see"));
}

// Whether it is on this machine for sure.
bool is_loopback(std::string_view address) {
  const std::string_view host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

void check_secret(const MembershipSpec& spec, std::string_view address) {
  if (!spec.secret.empty() || spec.is_open || is_loopback(address)) return;
  throw FailedPrecondition(str(
      "Membership: ", printable(address),
      " can be reached from other machines, and there is no secret that keeps ",
      "strangers out: give all workers the same MembershipSpec::secret (LOCKSTEP_SECRET), or set is_open (",
      "LOCKSTEP_OPEN=1) in a network that you trust"));
}

// A host as it is written before a port.
std::string bracketed(const std::string& host) {
  return host.find(':') != std::string::npos && !host.starts_with('[') ? "[" + host + "]" : host;
}

}  // namespace

std::string LostMember::to_string() const { return str(who.task, " (", who.address, ") is lost: ", why); }
Error LostMember::error() const { return {ErrorCode::kUnavailable, to_string()}; }

class Membership::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(MembershipSpec spec) : spec_(std::move(spec)) {}

  void join(Deadline deadline, const std::stop_token& stop);
  void leave() noexcept;
  bool is_of_this_process() const { return process_.is_of_this_process(); }
  void stay() { stays_ = shared_from_this(); }

  const MembershipSpec& spec() const { return spec_; }
  const Participant& participant(int rank) const;
  void when_lost(std::function<void(const LostMember&)> call);
  void check();
  void agree(const std::string& subject, std::string text, Deadline deadline);
  void report(const MemberProgress& progress);
  void report_by(std::function<MemberProgress()> ask);
  bool put(const std::string& key, std::string_view bytes);
  bool look(const std::string& key, std::string* bytes);
  void wait_for(const std::string& key, Deadline deadline);

 private:
  using Lock = std::unique_lock<std::mutex>;
  std::string meeting_place(Deadline deadline, const std::stop_token& stop);
  void run() noexcept;
  void serve();
  void tell(const std::vector<ConnectionEvent>& events, SteadyTime now);
  Lock locked();
  // Until the request is answered, or the deadline has passed: then nothing.
  std::optional<Guest::Answer> await(Lock& lock, std::int64_t request, Deadline deadline);
  void throw_end() const;

  const MembershipSpec spec_;
  const ProcessMark process_;
  std::shared_ptr<State> stays_;
  std::vector<Participant> roster_;  // once it has joined

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  internal::Sockets sockets_;
  std::optional<Hub> hub_;
  std::optional<Guest> guest_;
  std::map<int, bool> is_of_hub_;                           // connections
  std::map<std::string, std::string, std::less<>> values_;  // of keys, which never change
  std::function<void(const LostMember&)> when_lost_;
  std::shared_ptr<const std::function<MemberProgress()>> ask_;
  SteadyTime asked_ = {};
  bool stops_ = false, is_left_ = false;
  std::thread thread_;
};

// --- joining

// Where the worker of rank 0 listens; that one listens when this returns.
std::string Membership::State::meeting_place(Deadline deadline, const std::stop_token& stop) {
  const WorkerSpec& worker = spec_.worker;
  if (worker.count == 1 && worker.coordinator.empty()) return {};
  std::string address = worker.coordinator;
  if (worker.rank == 0 && !address.empty()) {
    check_secret(spec_, address);
    return sockets_.listen(address);
  }
  if (!address.empty()) {
    check_secret(spec_, address);
    return address;
  }
  FileRendezvous folder(spec_.folder);
  const std::string key =
      str("coordinator.", worker.job_id.empty() ? "job" : worker.job_id, ".", spec_.generation);
  if (worker.rank == 0) {
    check_secret(spec_, bracketed(spec_.host) + ":0");
    address = sockets_.listen(bracketed(spec_.host) + ":0");
    folder.set(key, address);
    return address;
  }
  while (!folder.has(key)) {
    if (stop.stop_requested()) throw_given_up(spec_);
    if (has_passed(deadline))
      throw Error(ErrorCode::kDeadlineExceeded,
                  str(worker.task(), ": the worker of rank 0 has not left word in ", spec_.folder.string(),
                      " in time"));
    std::this_thread::sleep_for(kKnock);
  }
  address = folder.get(key);
  check_secret(spec_, address);
  return address;
}

void Membership::State::join(Deadline deadline, const std::stop_token& stop) {
  const WorkerSpec& worker = spec_.worker;
  const std::string place = meeting_place(deadline, stop);
  const SteadyTime now = Clock::now();
  const internal::Pace pace{.beat = spec_.beat, .lost = spec_.lost};
  Lock lock(mutex_);
  if (worker.rank == 0) {
    hub_.emplace(internal::HubSpec{.job_id = worker.job_id,
                                   .secret = spec_.secret,
                                   .generation = spec_.generation,
                                   .count = worker.count,
                                   .replicas = spec_.replicas,
                                   .pace = pace,
                                   .nonce = random_nonce},
                 sockets_, now);
  } else {
    sockets_.set_hub(place);
  }
  const bool is_listed = static_cast<std::size_t>(worker.rank) < worker.addresses.size();
  guest_.emplace(
      internal::GuestSpec{
          .job_id = worker.job_id,
          .secret = spec_.secret,
          .task = worker.task(),
          .address = is_listed ? worker.addresses[static_cast<std::size_t>(worker.rank)] : spec_.host,
          .generation = spec_.generation,
          .index = worker.rank,
          .count = worker.count,
          .replicas = spec_.replicas,
          .hub = place,
          .pace = pace,
          .nonce = random_nonce},
      sockets_, now);
  {
    const internal::SignalsBlocked quiet;
    thread_ = std::thread([this] { run(); });
  }
  while (guest_->roster().empty() && !guest_->end()) {
    if (stop.stop_requested()) throw_given_up(spec_);
    if (has_passed(deadline))
      throw Error(ErrorCode::kDeadlineExceeded,
                  str(worker.task(),
                      ": the workers of the job did not come together in time: ", guest_->what_is_missing()));
    changed_.wait_until(lock, std::min(deadline.value_or(Clock::time_point::max()), Clock::now() + kLook));
  }
  if (guest_->roster().empty()) throw_end();
  roster_ = guest_->roster();
}

// --- its thread

void Membership::State::run() noexcept {
  try {
    serve();
  } catch (const std::exception& error) {  // no memory: the others will find this worker silent
    const Lock lock(mutex_);
    guest_->give_up(code_of(error, ErrorCode::kInternal));
    changed_.notify_all();
  }
}

void Membership::State::serve() {
  Lock lock(mutex_);
  while (!stops_) {
    const SteadyTime now = Clock::now();
    if (ask_ != nullptr && now - asked_ >= spec_.beat / 2) {
      asked_ = now;
      const auto ask = ask_;
      lock.unlock();
      const MemberProgress progress = (*ask)();
      lock.lock();
      guest_->report(progress);
      continue;
    }
    if (hub_) hub_->tick(now);
    guest_->tick(now);
    const SteadyTime next = std::min(guest_->next_tick(), hub_ ? hub_->next_tick() : SteadyTime::max());
    changed_.notify_all();
    if (guest_->lost() && when_lost_) {
      const std::function<void(const LostMember&)> call = std::exchange(when_lost_, {});
      const LostMember lost = *guest_->lost();
      lock.unlock();
      call(lost);
      lock.lock();
      continue;
    }
    const std::vector<ConnectionEvent> events = sockets_.wait(lock, next);
    const SteadyTime then = Clock::now();
    if (hub_)
      hub_->tick(then);  // before what came meanwhile: had it stood still, nobody else would have been silent
    guest_->tick(then);
    tell(events, then);
  }
}

void Membership::State::tell(const std::vector<ConnectionEvent>& events, SteadyTime now) {
  for (const ConnectionEvent& event : events) {
    if (event.kind == ConnectionEvent::Kind::kCame) is_of_hub_[event.link] = true;
    const auto found = is_of_hub_.find(event.link);
    const bool is_of_hub = found != is_of_hub_.end();
    switch (event.kind) {
      case ConnectionEvent::Kind::kCame: hub_->linked(event.link, now); break;
      case ConnectionEvent::Kind::kLinked: guest_->linked(event.link, now); break;
      case ConnectionEvent::Kind::kReceived: {
        if (is_of_hub) {
          hub_->received(event.link, event.bytes, now);
        } else {
          guest_->received(event.link, event.bytes, now);
        }
        break;
      }
      case ConnectionEvent::Kind::kEnded: {
        if (is_of_hub) {
          hub_->ended(event.link, event.bytes, now);
          is_of_hub_.erase(found);
        } else {
          guest_->ended(event.link, event.bytes, now);
        }
        break;
      }
    }
  }
}

// --- what its process asks for

Membership::State::Lock Membership::State::locked() {
  if (!is_of_this_process())
    throw FailedPrecondition(
        "the membership was made by the parent of this process; give the child one of its own");
  return Lock(mutex_);
}

void Membership::State::throw_end() const {
  if (is_left_) throw FailedPrecondition(str(spec_.worker.task(), " has left the job"));
  throw_error(guest_->end()->code, guest_->end()->why);
}

const Participant& Membership::State::participant(int rank) const {
  if (rank < 0 || rank >= static_cast<int>(roster_.size()))
    throw InvalidArgument(str("Membership: there is no worker ", rank, " of ", roster_.size()));
  return roster_[static_cast<std::size_t>(rank)];
}

void Membership::State::when_lost(std::function<void(const LostMember&)> call) {
  Lock lock = locked();
  if (!guest_->lost()) {
    when_lost_ = std::move(call);
    return;
  }
  const LostMember lost = *guest_->lost();
  lock.unlock();
  call(lost);
}

void Membership::State::check() {
  const Lock lock = locked();
  if (is_left_ || guest_->end()) throw_end();
}

void Membership::State::report(const MemberProgress& progress) {
  const Lock lock = locked();
  guest_->report(progress);
}

void Membership::State::report_by(std::function<MemberProgress()> ask) {
  const Lock lock = locked();
  ask_ = ask ? std::make_shared<const std::function<MemberProgress()>>(std::move(ask)) : nullptr;
}

std::optional<Guest::Answer> Membership::State::await(Lock& lock, std::int64_t request, Deadline deadline) {
  for (;;) {
    if (std::optional<Guest::Answer> answer = guest_->take_answer(request)) return answer;
    if (is_left_ || guest_->end()) throw_end();
    if (has_passed(deadline)) {
      guest_->forget(request);
      return std::nullopt;
    }
    if (deadline) {
      changed_.wait_until(lock, *deadline);
    } else {
      changed_.wait(lock);
    }
  }
}

bool Membership::State::put(const std::string& key, std::string_view bytes) {
  Lock lock = locked();
  return await(lock, guest_->put(key, bytes), {})->is_there;
}

bool Membership::State::look(const std::string& key, std::string* bytes) {
  Lock lock = locked();
  auto found = values_.find(key);
  if (found == values_.end()) {
    std::optional<Guest::Answer> answer = await(lock, guest_->look(key, false), {});
    if (!answer->is_there) return false;
    found = values_.emplace(key, std::move(answer->value)).first;
  }
  if (bytes != nullptr) *bytes = found->second;
  return true;
}

void Membership::State::wait_for(const std::string& key, Deadline deadline) {
  Lock lock = locked();
  if (values_.contains(key)) return;
  std::optional<Guest::Answer> answer = await(lock, guest_->look(key, true), deadline);
  if (answer) values_.emplace(key, std::move(answer->value));
}

void Membership::State::agree(const std::string& subject, std::string text, Deadline deadline) {
  const std::string hash = internal::to_hex(internal::Sha256().add(text).hash());
  Lock lock = locked();
  if (is_left_ || guest_->end()) throw_end();
  std::optional<std::chrono::milliseconds> patience;
  if (deadline)
    patience = std::max(std::chrono::milliseconds(0),
                        std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - Clock::now()));
  guest_->claim(subject, hash, std::move(text), patience);
  for (;;) {
    if (const std::optional<Guest::End> outcome = guest_->take_outcome(subject)) {
      if (outcome->why.empty()) return;
      throw_error(outcome->code, str("the workers do not agree on ", subject, ": ", outcome->why));
    }
    if (is_left_ || guest_->end()) throw_end();
    changed_.wait(lock);
  }
}

// --- the end

void Membership::State::leave() noexcept {
  {
    Lock lock(mutex_);
    if (is_left_) return;
    const bool has_joined = guest_ && !guest_->roster().empty();
    const SteadyTime until = Clock::now() + kLeaving;
    if (has_joined && !guest_->end()) {
      guest_->leave();
      changed_.wait_until(lock, until, [this] { return guest_->is_gone() || guest_->end(); });
    }
    if (has_joined && hub_) changed_.wait_until(lock, until, [this] { return hub_->is_over(); });
    // What was sent last has to be on its way.
    changed_.wait_until(lock, until, [this] { return sockets_.is_flushed(); });
    is_left_ = stops_ = true;
    sockets_.wake();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// --- the public object

Membership::Membership(std::shared_ptr<State> state) : state_(std::move(state)) {}

std::unique_ptr<Membership> Membership::join(const MembershipSpec& spec, Deadline deadline,
                                             const std::stop_token& stop) {
  lockstep::check(spec);
  std::unique_ptr<Membership> membership(new Membership(std::make_shared<State>(spec)));
  membership->state_->join(deadline, stop);
  return membership;
}

Membership::~Membership() { leave(); }

void Membership::leave() noexcept {
  if (state_->is_of_this_process()) {
    state_->leave();
  } else {
    state_->stay();  // its thread is not there, and what it left may be in any state
  }
}

int Membership::rank() const { return state_->spec().worker.rank; }
int Membership::size() const { return state_->spec().worker.count; }
const Participant& Membership::participant(int rank) const { return state_->participant(rank); }
void Membership::when_lost(std::function<void(const LostMember&)> call) {
  state_->when_lost(std::move(call));
}
void Membership::check() const { state_->check(); }
void Membership::agree(const std::string& subject, std::string text, Deadline deadline) {
  state_->agree(subject, std::move(text), deadline);
}
void Membership::report(const MemberProgress& progress) { state_->report(progress); }
void Membership::report_by(std::function<MemberProgress()> ask) { state_->report_by(std::move(ask)); }
bool Membership::put(const std::string& key, std::string_view bytes) { return state_->put(key, bytes); }
bool Membership::look(const std::string& key, std::string* bytes) { return state_->look(key, bytes); }
void Membership::wait_for(const std::string& key, Deadline deadline) { state_->wait_for(key, deadline); }

std::string Membership::status(const MembershipSpec& spec, Deadline deadline) {
  const std::string& address = spec.worker.coordinator;
  if (address.empty()) throw InvalidArgument("Membership: status() needs the host:port of the coordinator");
  check_secret(spec, address);
  return internal::status_of_job(address, spec.worker.job_id, spec.secret, random_nonce(), deadline);
}

}  // namespace lockstep
