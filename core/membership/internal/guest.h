// core/membership/internal/guest.h - a member of a job, as it talks to the hub.
//
// Like the hub it has no clock, no socket and no thread. It connects until it is seated or refused; from then on it sends signs of
// life and expects them. What a process asks for is answered by messages: it looks again after each.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/steady_time.h"
#include "lockstep/core/error.h"
#include "lockstep/core/membership/internal/frames.h"
#include "lockstep/core/membership/internal/messages.h"
#include "lockstep/core/membership/membership.h"

namespace lockstep::internal {

struct GuestSpec {
  std::string job_id = {}, secret = {}, task = {}, address = {};
  int generation = 0, index = 0, count = 1, replicas = 1;
  std::string hub = {};  // its address, for messages
  Pace pace = {};
  Nonce nonce = {};
};

class LOCKSTEP_API Guest {
 public:
  Guest(GuestSpec spec, Wire& wire, SteadyTime now);

  void linked(int link, SteadyTime now);
  void received(int link, std::string_view bytes, SteadyTime now);
  void ended(int link, std::string_view how, SteadyTime now);
  // To be called at next_tick() or earlier, and before what came meanwhile is told.
  void tick(SteadyTime now);
  SteadyTime next_tick() const { return next_; }

  // Empty until all have come together.
  const std::vector<Participant>& roster() const { return roster_; }
  std::string what_is_missing() const;  // while they have not
  struct End {
    ErrorCode code = ErrorCode::kUnavailable;
    std::string why;
  };
  // Nothing will come any more: it was refused, somebody is lost, or the hub has left.
  const std::optional<End>& end() const { return end_; }
  const std::optional<LostMember>& lost() const { return lost_; }
  bool has_left(int index) const { return left_.contains(index); }
  // The hub knows that this one leaves.
  bool is_gone() const { return has_left(spec_.index); }

  // --- what the process asks for, once there is a roster

  struct Answer {
    bool is_there = false;
    std::string value = {};
  };
  std::int64_t put(std::string_view key, std::string_view value);
  std::int64_t look(std::string_view key, bool waits);
  // Once.
  std::optional<Answer> take_answer(std::int64_t request);
  void forget(std::int64_t request);

  // `text` is shown if the hashes differ.
  void claim(const std::string& subject, const std::string& hash, std::string text,
             std::optional<std::chrono::milliseconds> patience);
  // Once; code kInternal and no text: all agree.
  std::optional<End> take_outcome(const std::string& subject);

  void report(const MemberProgress& progress) { progress_ = progress; }
  void leave();
  // Something went wrong in this process.
  void give_up(ErrorCode code) noexcept {
    if (!end_) end_ = End{.code = code, .why = {}};
  }

 private:
  enum class State : std::uint8_t { kApart, kConnecting, kJoining, kWaiting, kSeated };

  void serve(const Message& message, SteadyTime now);
  void join(const Message& challenge);
  void send(const Message& message);
  void start_again(SteadyTime now, std::string_view why);
  void lose(int index, std::string_view why, std::int64_t last_step);
  void finish(ErrorCode code, std::string why);
  void beat(SteadyTime now);

  const GuestSpec spec_;
  Wire& wire_;
  State state_ = State::kApart;
  int link_ = -1;
  FrameReader in_;
  FrameWriter out_;
  std::string nonce_;
  std::optional<SessionKeys> keys_;
  std::vector<Participant> roster_;
  std::string missing_, trouble_;  // while it joins
  std::optional<End> end_;
  std::optional<LostMember> lost_;
  std::set<int> left_;
  MemberProgress progress_;
  std::int64_t requests_ = 0;
  std::map<std::int64_t, std::optional<Answer>> answers_;
  struct Claimed {
    std::string text;
    std::optional<End> outcome;
  };
  std::map<std::string, Claimed, std::less<>> claims_;
  SteadyTime ticked_, next_, next_beat_, heard_, next_try_;
};

}  // namespace lockstep::internal
