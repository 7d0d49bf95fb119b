// core/membership/hub.cpp - the member of a job that all others are connected to.
#include "lockstep/core/membership/internal/hub.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/membership/internal/fields.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostStrangers = 64;
constexpr std::size_t kMostOfAName = 300;

std::size_t place(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

Hub::Hub(HubSpec spec, Wire& wire, SteadyTime now)
    : spec_(std::move(spec)),
      wire_(wire),
      seats_(place(spec_.count)),
      claims_(spec_.count),
      ticked_(now),
      next_(now),
      next_beat_(now + spec_.pace.beat) {}

void Hub::send(int link, const Message& message) {
  const auto found = links_.find(link);
  if (found != links_.end()) wire_.send(link, found->second.out.frame(message.encode()));
}

void Hub::send_all(const Message& message) {
  for (const Seat& seat : seats_) {
    if (seat.link >= 0) send(seat.link, message);
  }
}

void Hub::drop(int link) {
  links_.erase(link);
  wire_.close(link);
}

// --- connections

void Hub::linked(int link, SteadyTime now) {
  std::size_t strangers = 0;
  int oldest = link;
  for (const auto& [number, its] : links_) {
    if (its.seat >= 0) continue;
    ++strangers;
    if (oldest == link || its.since < links_.at(oldest).since) oldest = number;
  }
  if (strangers >= kMostStrangers) drop(oldest);
  Link& made = links_[link];
  made.since = now;
  made.nonce = spec_.nonce();
  send(link, {.kind = MessageKind::kChallenge, .numbers = {kProtocol}, .texts = {"lockstep", made.nonce}});
  next_ = std::min(next_, now + spec_.pace.patience_with_strangers());
}

void Hub::received(int link, std::string_view bytes, SteadyTime now) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  try {
    found->second.in.feed(bytes);
    for (;;) {
      const auto again = links_.find(link);  // serving a message may have dropped it
      if (again == links_.end()) return;
      const std::optional<std::string> message = again->second.in.next();
      if (!message) return;
      serve(link, Message::decode(*message), now);
    }
  } catch (const NotUnderstood& error) {
    ended(link, error.what(), now);
    wire_.close(link);
  }
}

void Hub::ended(int link, std::string_view how, SteadyTime now) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  const int index = found->second.seat;
  links_.erase(found);
  std::erase_if(watchers_, [link](const auto& watcher) { return watcher.second.first == link; });
  if (index < 0) return;
  Seat& seat = seats_[place(index)];
  seat.link = -1;
  if (!is_complete_) {
    --seated_;
  } else if (!seat.has_left) {
    judge(index, str("its connection ended: ", shown(how)), now);
  }
  see_whether_over(now);
}

// --- messages

void Hub::serve(int link, const Message& message, SteadyTime now) {
  const int index = links_.at(link).seat;
  if (index < 0) {
    if (message.kind != MessageKind::kJoin) throw NotUnderstood("it did not begin by joining");
    join(link, message, now);
    return;
  }
  Seat& seat = seats_[place(index)];
  seat.heard = now;
  switch (message.kind) {
    case MessageKind::kBeat: {
      seat.step = message.numbers[0];
      seat.waits_for = message.numbers[1];
      seat.waited_ms = message.numbers[2];
      seat.what = message.texts[0].substr(0, kMostOfAName);
      seat.reported = now;
      break;
    }
    case MessageKind::kPut: put(link, message); break;
    case MessageKind::kLook: look(link, message); break;
    case MessageKind::kClaim: {
      const std::int64_t ms = message.numbers[0];
      const bool is_bounded = ms >= 0 && ms < std::int64_t{1} << 40;
      claims_.claim(index, message.texts[0], message.texts[1], now,
                    is_bounded ? std::optional(now + std::chrono::milliseconds(ms)) : std::nullopt);
      look_at_claims(now);
      break;
    }
    case MessageKind::kText: {
      claims_.text(index, message.texts[0], message.texts[1]);
      look_at_claims(now);
      break;
    }
    case MessageKind::kHeard: {
      seat.has_heard = true;
      see_whether_over(now);
      break;
    }
    case MessageKind::kLeave: {
      seat.has_left = true;
      send_all({.kind = MessageKind::kLeft, .numbers = {index}});
      see_whether_over(now);
      break;
    }
    default: throw NotUnderstood("it sent what only the other side sends");
  }
}

// Why somebody who claims to be this member may not have a seat; empty if it may.
std::string Hub::why_not(const Message& join) const {
  const std::int64_t generation = join.numbers[0], index = join.numbers[1], count = join.numbers[2],
                     replicas = join.numbers[3];
  const std::string& job = join.texts[0];
  if (job != spec_.job_id)
    return str("this address belongs to the job '", shown(spec_.job_id), "', not to '", shown(job),
               "': do two jobs use one port?");
  if (generation != spec_.generation)
    return str("this is generation ", spec_.generation, " of the job, and you are of generation ",
               generation);
  if (count != spec_.count)
    return str("the job has ", spec_.count, " workers here, and ", count, " for ", shown(join.texts[1]));
  if (index >= count || index < 0) return str("there is no worker ", index, " of ", count);
  if (replicas != spec_.replicas)
    return str("the first worker has ", spec_.replicas, " replicas, and ", shown(join.texts[1]), " has ",
               replicas, ": all workers must have as many");
  const Seat& seat = seats_[place(index)];
  if (seat.link >= 0) return str("worker ", index, " is there already: ", named(seat));
  if (is_complete_) return "all workers have come together already, and have begun";
  return {};
}

void Hub::join(int link, const Message& message, SteadyTime now) {
  Link& its = links_.at(link);
  const std::string& nonce = message.texts[3];
  const std::string right = proof(spec_.secret, its.nonce, message);
  // Equal hashes of hashes, so that the time tells nothing about where they differ.
  if (!are_equal(Sha256().add(right).hash(), Sha256().add(message.texts[4]).hash())) {
    refuse(link, "its secret is not that of the job", false);
    return;
  }
  const SessionKeys keys = session_keys(spec_.secret, its.nonce, nonce);
  if (message.numbers[1] == -1) {
    send(link, {.kind = MessageKind::kWelcome, .texts = {keys.welcome}});
    its.out.seal_with(keys.of_hub);
    send(link, {.kind = MessageKind::kStatus, .texts = {status(now)}});
    drop(link);
    return;
  }
  if (const std::string why = why_not(message); !why.empty()) {
    // One of a later generation comes again until this one is gone, and one whose seat is taken until that is free.
    const bool is_early =
        message.texts[0] == spec_.job_id &&
        (message.numbers[0] > spec_.generation ||
         (message.numbers[0] == spec_.generation && !is_complete_ && message.numbers[1] >= 0 &&
          message.numbers[1] < spec_.count && seats_[place(message.numbers[1])].link >= 0));
    refuse(link, why, is_early);
    return;
  }
  its.seat = static_cast<int>(message.numbers[1]);
  send(link, {.kind = MessageKind::kWelcome, .texts = {keys.welcome}});
  its.in.expect_seals_with(keys.of_guest);
  its.out.seal_with(keys.of_hub);
  Seat& seat = seats_[place(its.seat)];
  seat = {.link = link,
          .heard = now,
          .reported = now,
          .task = shown(message.texts[1]),
          .address = shown(message.texts[2])};
  claims_.name(its.seat, seat.task);
  if (++seated_ == spec_.count) {
    seat_all();
  } else {
    send(link, {.kind = MessageKind::kMissing, .texts = {missing()}});
  }
}

void Hub::refuse(int link, std::string why, bool may_try_again) {
  send(link, {.kind = MessageKind::kRefuse,
              .numbers = {may_try_again ? 1 : 0, spec_.generation},
              .texts = {std::move(why)}});
  drop(link);
}

void Hub::seat_all() {
  is_complete_ = true;
  Message roster{.kind = MessageKind::kRoster};
  for (const Seat& seat : seats_) {
    roster.texts.push_back(seat.task);
    roster.texts.push_back(seat.address);
  }
  send_all(roster);
}

std::string Hub::missing() const {
  std::string list;
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    if (seats_[i].link < 0) list += str(list.empty() ? "" : ", ", i);
  }
  return list;
}

// --- what members leave for each other

void Hub::put(int link, const Message& message) {
  const std::string &key = message.texts[0], &value = message.texts[1];
  const bool is_put = values_.emplace(key, value).second;
  send(link, {.kind = MessageKind::kTaken, .numbers = {message.numbers[0], is_put ? 1 : 0}});
  if (!is_put) return;
  const auto [begin, end] = watchers_.equal_range(key);
  for (auto watcher = begin; watcher != end; ++watcher)
    send(watcher->second.first,
         {.kind = MessageKind::kValue, .numbers = {watcher->second.second, 1}, .texts = {value}});
  watchers_.erase(begin, end);
}

void Hub::look(int link, const Message& message) {
  const std::int64_t request = message.numbers[0];
  const auto found = values_.find(message.texts[0]);
  if (found != values_.end()) {
    send(link, {.kind = MessageKind::kValue, .numbers = {request, 1}, .texts = {found->second}});
  } else if (message.numbers[1] == 0) {
    send(link, {.kind = MessageKind::kValue, .numbers = {request, 0}, .texts = {""}});
  } else {
    watchers_.emplace(message.texts[0], std::pair(link, request));
  }
}

void Hub::look_at_claims(SteadyTime now) {
  for (const Claims::Question& question : claims_.take_questions())
    send(seats_[place(question.whom)].link, {.kind = MessageKind::kAskText, .texts = {question.subject}});
  for (const Claims::Outcome& outcome : claims_.take_outcomes()) {
    const Message message = outcome.why.empty()
                                ? Message{.kind = MessageKind::kAgreed, .texts = {outcome.subject}}
                                : Message{.kind = MessageKind::kDiffer,
                                          .numbers = {static_cast<std::int64_t>(outcome.code)},
                                          .texts = {outcome.subject, outcome.why}};
    for (const int whom : outcome.whom) send(seats_[place(whom)].link, message);
  }
  if (const std::optional<SteadyTime> next = claims_.next_tick())
    next_ = std::min(next_, std::max(*next, now));
}

// --- life and death

void Hub::judge(int index, const std::string& why, SteadyTime now) {
  if (verdict_) return;
  Seat& seat = seats_[place(index)];
  verdict_ = {.kind = MessageKind::kVerdict, .numbers = {index, seat.step}, .texts = {why}};
  judged_ = now;
  send_all(*verdict_);
  next_ = std::min(next_, now + spec_.pace.linger());
}

// Whoever is lost, or has left, need not hear.
void Hub::see_whether_over(SteadyTime now) {
  if (!is_complete_) return;
  const bool is_late = verdict_ && now >= judged_ + spec_.pace.linger();
  is_over_ = is_over_ || is_late || std::ranges::all_of(seats_, [this](const Seat& seat) {
               return seat.link < 0 || seat.has_left || (verdict_ && seat.has_heard);
             });
}

void Hub::tick(SteadyTime now) {
  const auto stood_still = now - ticked_;
  ticked_ = now;
  if (stood_still > spec_.pace.lost / 2) {
    // Not they were silent: nobody listened.
    for (Seat& seat : seats_) seat.heard = std::min(now, seat.heard + stood_still);
    for (auto& [number, link] : links_) link.since = std::min(now, link.since + stood_still);
  }
  std::vector<int> strangers;
  SteadyTime next = now + spec_.pace.beat;
  for (const auto& [number, link] : links_) {
    if (link.seat >= 0) continue;
    const SteadyTime until = link.since + spec_.pace.patience_with_strangers();
    if (now >= until) {
      strangers.push_back(number);
    } else {
      next = std::min(next, until);
    }
  }
  for (const int stranger : strangers) drop(stranger);

  for (std::size_t i = 0; i < seats_.size(); ++i) {
    const Seat& seat = seats_[i];
    if (seat.link < 0 || seat.has_left || now - seat.heard <= spec_.pace.lost) continue;
    const int link = seat.link;
    const std::string how = str("silent for ", seconds_text(now - seat.heard));
    if (is_complete_) judge(static_cast<int>(i), how, now);
    ended(link, how, now);
    wire_.close(link);
  }
  if (now >= next_beat_) {
    next_beat_ = now + spec_.pace.beat;
    for (const Seat& seat : seats_) {
      if (seat.link < 0) continue;
      if (is_complete_) {
        send(seat.link, {.kind = MessageKind::kBeat, .numbers = {-1, -1, 0}, .texts = {""}});
      } else {
        send(seat.link, {.kind = MessageKind::kMissing, .texts = {missing()}});
      }
    }
  }
  next_ = std::min(next, next_beat_);
  claims_.tick(now);
  look_at_claims(now);
  if (verdict_ && !is_over_) next_ = std::min(next_, std::max(judged_ + spec_.pace.linger(), now));
  see_whether_over(now);
}

std::string Hub::status(SteadyTime now) const {
  std::string text = str("job '", shown(spec_.job_id), "', generation ", spec_.generation, ", ", spec_.count,
                         spec_.count == 1 ? " worker\n" : " workers\n");
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    const Seat& seat = seats_[i];
    text += str(i, "  ");
    if (seat.task.empty()) {
      text += "has not joined\n";
      continue;
    }
    text += named(seat);
    if (seat.has_left) {
      text += "  has left";
    } else if (seat.link < 0) {
      text += "  is lost";
    } else {
      if (seat.step >= 0) text += str("  step ", seat.step);
      if (!seat.what.empty()) text += str("  ", printable(seat.what));
      if (seat.waits_for >= 0 && seat.waits_for < spec_.count) {
        const auto waited = std::chrono::milliseconds(seat.waited_ms) + (now - seat.reported);
        text += str("  waits for ", seats_[place(seat.waits_for)].task, " since ", seconds_text(waited));
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace lockstep::internal
