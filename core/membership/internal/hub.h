// core/membership/internal/hub.h - the member of a job to which all others are connected. It seats them, keeps what they leave for
// each other, compares what they claim, and says who is lost.
//
// It has no clock, no socket and no thread: whoever owns it tells what happened and when, and carries out what it asks of its Wire.
//
//   seating    A guest shows that it knows the secret, and which member of which job and generation it is. After all have a seat,
//              all get the roster. One whose connection ends before that may come again.
//   beats      Each side sends something every Pace::beat. A guest is lost if it was silent for Pace::lost, or if its connection
//              ended and it had not taken leave. The verdict goes to all others, and the hub stays until they have it.
//   strangers  are bounded in number, in what they may send, and in time.
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
#include "lockstep/core/membership/internal/claims.h"
#include "lockstep/core/membership/internal/frames.h"
#include "lockstep/core/membership/internal/messages.h"

namespace lockstep::internal {

struct HubSpec {
  std::string job_id = {}, secret = {};
  int generation = 0, count = 1, replicas = 1;
  Pace pace = {};
  Nonce nonce = {};
};

class LOCKSTEP_API Hub {
 public:
  Hub(HubSpec spec, Wire& wire, SteadyTime now);

  void linked(int link, SteadyTime now);  // somebody has connected
  void received(int link, std::string_view bytes, SteadyTime now);
  void ended(int link, std::string_view how, SteadyTime now);
  // To be called at next_tick() or earlier, and before what came meanwhile is told.
  void tick(SteadyTime now);
  SteadyTime next_tick() const { return next_; }
  // Nothing is left to do: all have gone, or a verdict has reached all.
  bool is_over() const { return is_over_; }
  // Lines for people: who is where, and who waits for whom.
  std::string status(SteadyTime now) const;

 private:
  struct Link {
    SteadyTime since = {};
    std::string nonce = {};
    FrameReader in = {};
    FrameWriter out = {};
    int seat = -1;  // -1: a stranger
  };
  struct Seat {
    int link = -1;
    bool has_left = false, has_heard = false;
    SteadyTime heard = {}, reported = {};
    std::string task = {}, address = {};
    std::int64_t step = -1, waits_for = -1, waited_ms = 0;
    std::string what = {};
  };

  void serve(int link, const Message& message, SteadyTime now);
  void join(int link, const Message& message, SteadyTime now);
  std::string why_not(const Message& join) const;
  void refuse(int link, std::string why, bool may_try_again);
  void seat_all();
  void put(int link, const Message& message);
  void look(int link, const Message& message);
  void judge(int seat, const std::string& why, SteadyTime now);
  void look_at_claims(SteadyTime now);
  void send(int link, const Message& message);
  void send_all(const Message& message);
  void drop(int link);
  void see_whether_over(SteadyTime now);
  std::string missing() const;
  std::string named(const Seat& seat) const { return seat.task + " (" + seat.address + ")"; }

  const HubSpec spec_;
  Wire& wire_;
  std::map<int, Link> links_;
  std::vector<Seat> seats_;
  int seated_ = 0;
  bool is_complete_ = false, is_over_ = false;
  std::map<std::string, std::string, std::less<>> values_;
  std::multimap<std::string, std::pair<int, std::int64_t>> watchers_;  // link and request, by key
  Claims claims_;
  std::optional<Message> verdict_;
  SteadyTime judged_ = {};
  SteadyTime ticked_, next_, next_beat_;
};

}  // namespace lockstep::internal
