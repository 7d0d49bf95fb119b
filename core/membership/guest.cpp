// core/membership/guest.cpp - a member of a job, as it talks to the hub.
#include "lockstep/core/membership/internal/guest.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/membership/internal/fields.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostOfAReason = 1000;
constexpr std::chrono::milliseconds kTryAgain{20};

}  // namespace

Guest::Guest(GuestSpec spec, Wire& wire, SteadyTime now)
    : spec_(std::move(spec)),
      wire_(wire),
      ticked_(now),
      next_(now),
      next_beat_(now),
      heard_(now),
      next_try_(now) {}

void Guest::send(const Message& message) {
  if (link_ >= 0) wire_.send(link_, out_.frame(message.encode()));
}

void Guest::finish(ErrorCode code, std::string why) {
  if (!end_) end_ = End{.code = code, .why = std::move(why)};
}

// --- connections

void Guest::linked(int link, SteadyTime now) {
  if (link != link_) return;
  state_ = State::kJoining;
  in_ = {};
  out_ = {};
  keys_.reset();
  heard_ = now;
}

void Guest::ended(int link, std::string_view how, SteadyTime now) {
  if (link != link_) return;
  link_ = -1;
  if (end_ || is_gone()) return;
  if (state_ != State::kSeated) {
    start_again(now, shown(how, kMostOfAReason));
  } else if (has_left(0)) {
    finish(ErrorCode::kUnavailable, str(roster_[0].task, " (", roster_[0].address, ") has left the job"));
  } else {
    lose(0, str("its connection ended: ", shown(how, kMostOfAReason)), -1);
  }
}

void Guest::start_again(SteadyTime now, std::string_view why) {
  if (link_ >= 0) wire_.close(std::exchange(link_, -1));
  state_ = State::kApart;
  trouble_ = why;
  missing_.clear();
  next_try_ = now + kTryAgain;
  next_ = std::min(next_, next_try_);
}

void Guest::received(int link, std::string_view bytes, SteadyTime now) {
  if (link != link_) return;
  try {
    in_.feed(bytes);
    while (link == link_) {
      const std::optional<std::string> message = in_.next();
      if (!message) return;
      heard_ = now;
      serve(Message::decode(*message), now);
    }
  } catch (const NotUnderstood& error) {
    wire_.close(link);
    ended(link, error.what(), now);
  }
}

void Guest::tick(SteadyTime now) {
  const auto stood_still = now - ticked_;
  ticked_ = now;
  next_ = now + spec_.pace.beat;
  if (end_ || is_gone()) return;
  if (state_ == State::kSeated && spec_.count > 1 && stood_still > spec_.pace.lost) {
    lose(spec_.index,
         str("this process stood still for ", seconds_text(stood_still),
             ", and the others went on without it"),
         progress_.step);
    return;
  }
  if (stood_still > spec_.pace.lost / 2) heard_ = std::min(now, heard_ + stood_still);
  if (state_ == State::kApart) {
    if (now >= next_try_) {
      state_ = State::kConnecting;
      heard_ = now;
      link_ = wire_.connect();
    } else {
      next_ = std::min(next_, next_try_);
    }
  } else if (state_ == State::kSeated || state_ == State::kWaiting) {
    if (now - heard_ > spec_.pace.lost) {
      const std::string how = str("silent for ", seconds_text(now - heard_));
      const int link = link_;
      if (state_ == State::kSeated) {
        lose(0, str(how, ", or this worker is cut off from it"), -1);
      } else {
        ended(link, how, now);
      }
      wire_.close(link);
    } else if (now >= next_beat_) {
      beat(now);
    }
    next_ = std::min(next_, next_beat_);
  } else if (now - heard_ > spec_.pace.patience_with_strangers()) {
    start_again(now, state_ == State::kConnecting ? "it does not answer" : "it does not let this worker in");
  }
}

void Guest::beat(SteadyTime now) {
  next_beat_ = now + spec_.pace.beat;
  send({.kind = MessageKind::kBeat,
        .numbers = {progress_.step, progress_.waits_for, progress_.since.count()},
        .texts = {progress_.what}});
}

// --- messages

void Guest::serve(const Message& message, SteadyTime now) {
  const bool is_in = state_ == State::kWaiting || state_ == State::kSeated;
  if (message.kind == MessageKind::kChallenge && state_ == State::kJoining && !keys_) return join(message);
  if (message.kind == MessageKind::kRefuse && state_ == State::kJoining) {
    if (message.numbers[0] != 0) return start_again(now, shown(message.texts[0], kMostOfAReason));
    return finish(ErrorCode::kInvalidArgument, str(spec_.task, " was refused by ", spec_.hub, ": ",
                                                   shown(message.texts[0], kMostOfAReason)));
  }
  if (message.kind == MessageKind::kWelcome && state_ == State::kJoining && keys_) {
    if (message.texts[0] != keys_->welcome) throw NotUnderstood("it does not know the secret of the job");
    in_.expect_seals_with(keys_->of_hub);
    state_ = State::kWaiting;
    next_beat_ = now;
    return;
  }
  if (!is_in) throw NotUnderstood("it did not begin as the hub of a job does");
  switch (message.kind) {
    case MessageKind::kMissing: missing_ = shown(message.texts[0], kMostOfAReason); break;
    case MessageKind::kRoster: {
      if (message.texts.size() != 2 * static_cast<std::size_t>(spec_.count))
        throw NotUnderstood("a roster of another length");
      for (std::size_t i = 0; i < message.texts.size(); i += 2)
        roster_.push_back(
            {shown(message.texts[i], kMostOfAReason), shown(message.texts[i + 1], kMostOfAReason)});
      state_ = State::kSeated;
      break;
    }
    case MessageKind::kBeat: break;
    case MessageKind::kTaken:
    case MessageKind::kValue: {
      const auto request = answers_.find(message.numbers[0]);
      if (request == answers_.end()) break;  // nobody waits for it any more
      request->second = Answer{.is_there = message.numbers[1] != 0,
                               .value = message.texts.empty() ? std::string() : message.texts[0]};
      break;
    }
    case MessageKind::kAskText: {
      const auto claimed = claims_.find(message.texts[0]);
      if (claimed != claims_.end())
        send({.kind = MessageKind::kText, .texts = {claimed->first, claimed->second.text}});
      break;
    }
    case MessageKind::kAgreed:
    case MessageKind::kDiffer: {
      const auto claimed = claims_.find(message.texts[0]);
      if (claimed == claims_.end()) break;
      End outcome{.code = ErrorCode::kInternal, .why = {}};
      if (message.kind == MessageKind::kDiffer)
        outcome = {.code = message.numbers[0] == static_cast<std::int64_t>(ErrorCode::kDeadlineExceeded)
                               ? ErrorCode::kDeadlineExceeded
                               : ErrorCode::kInvalidArgument,
                   .why = message.texts[1]};
      claimed->second.outcome = std::move(outcome);
      break;
    }
    case MessageKind::kVerdict: {
      if (message.numbers[0] < 0 || message.numbers[0] >= spec_.count || roster_.empty())
        throw NotUnderstood("a verdict on nobody");
      send({.kind = MessageKind::kHeard});
      lose(static_cast<int>(message.numbers[0]), shown(message.texts[0], kMostOfAReason), message.numbers[1]);
      break;
    }
    case MessageKind::kLeft: left_.insert(static_cast<int>(message.numbers[0])); break;
    default: throw NotUnderstood("it sent what only members send");
  }
}

void Guest::join(const Message& challenge) {
  if (challenge.texts[0] != "lockstep") throw NotUnderstood("it is no hub of a job");
  if (challenge.numbers[0] != kProtocol) {
    finish(ErrorCode::kInvalidArgument, str(spec_.hub, " runs another version of Lockstep (protocol ",
                                            challenge.numbers[0], ", here ", kProtocol, ")"));
    return;
  }
  nonce_ = spec_.nonce();
  Message join{.kind = MessageKind::kJoin,
               .numbers = {spec_.generation, spec_.index, spec_.count, spec_.replicas},
               .texts = {spec_.job_id, spec_.task, spec_.address, nonce_, ""}};
  join.texts.back() = proof(spec_.secret, challenge.texts[1], join);
  send(join);
  keys_ = session_keys(spec_.secret, challenge.texts[1], nonce_);
  out_.seal_with(keys_->of_guest);
}

void Guest::lose(int index, std::string_view why, std::int64_t last_step) {
  if (end_) return;
  lost_ = LostMember{.rank = index,
                     .who = roster_[static_cast<std::size_t>(index)],
                     .why = std::string(why),
                     .last_step = last_step};
  finish(ErrorCode::kUnavailable, lost_->to_string());
}

std::string Guest::what_is_missing() const {
  if (state_ == State::kWaiting && !missing_.empty()) return str("missing are workers ", missing_);
  return str("worker 0 is not reached at ", spec_.hub, trouble_.empty() ? "" : ": ", trouble_);
}

// --- what the process asks for

std::int64_t Guest::put(std::string_view key, std::string_view value) {
  const std::int64_t request = requests_++;
  answers_[request];
  send({.kind = MessageKind::kPut, .numbers = {request}, .texts = {std::string(key), std::string(value)}});
  return request;
}

std::int64_t Guest::look(std::string_view key, bool waits) {
  const std::int64_t request = requests_++;
  answers_[request];
  send({.kind = MessageKind::kLook, .numbers = {request, waits ? 1 : 0}, .texts = {std::string(key)}});
  return request;
}

std::optional<Guest::Answer> Guest::take_answer(std::int64_t request) {
  const auto found = answers_.find(request);
  if (found == answers_.end() || !found->second) return std::nullopt;
  std::optional<Answer> answer = std::move(found->second);
  answers_.erase(found);
  return answer;
}

void Guest::forget(std::int64_t request) { answers_.erase(request); }

void Guest::claim(const std::string& subject, const std::string& hash, std::string text,
                  std::optional<std::chrono::milliseconds> patience) {
  claims_[subject] = {.text = std::move(text), .outcome = {}};
  send({.kind = MessageKind::kClaim,
        .numbers = {patience ? patience->count() : -1},
        .texts = {subject, hash}});
}

std::optional<Guest::End> Guest::take_outcome(const std::string& subject) {
  const auto found = claims_.find(subject);
  if (found == claims_.end() || !found->second.outcome) return std::nullopt;
  std::optional<End> outcome = std::move(found->second.outcome);
  claims_.erase(found);
  return outcome;
}

void Guest::leave() { send({.kind = MessageKind::kLeave}); }

}  // namespace lockstep::internal
