// core/membership/internal/messages.h - what the hub and its guests say to each other.
//
// Thread safety: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/sha256.h"
#include "lockstep/core/base/steady_time.h"

namespace lockstep::internal {

constexpr std::int64_t kProtocol = 1;

enum class MessageKind : std::uint8_t {
  // The hub to whoever connects: its protocol; "lockstep", a nonce.
  kChallenge = 1,
  // A guest to the hub: generation, index (-1: a visitor), number of members, replicas; the job, its task, its address, a nonce,
  // and the HMAC with the secret of both nonces and all of this.
  kJoin,
  // The hub to a guest: whether it may try again, its generation; why.
  kRefuse,
  // The hub to a guest that may stay: that the hub knows the secret, too. All that follow are sealed.
  kWelcome,
  kMissing,  // the hub: who has not joined yet
  kRoster,   // the hub, when all have joined: task and address of each
  // Either, so that the other one knows that it lives. Of a guest: last step, whom it waits for, since how many ms; what it does.
  kBeat,
  kPut,      // a guest: request; key, value
  kTaken,    // the hub: request, whether the value was put
  kLook,     // a guest: request, whether to wait until there is one; key
  kValue,    // the hub: request, whether there is one; value
  kClaim,    // a guest: ms until it gives up, or -1; subject, hash
  kAgreed,   // the hub: subject
  kAskText,  // the hub: subject
  kText,     // a guest: subject, text
  kDiffer,   // the hub: the code of the error; subject, what differs
  kVerdict,  // the hub: who is lost, the last step of that one; why
  kHeard,    // a guest: it knows the verdict
  kLeave,    // a guest: it goes, in order
  kLeft,     // the hub: who has gone in order
  kStatus,   // the hub to a visitor: how things are
};

struct LOCKSTEP_API Message {
  MessageKind kind = MessageKind::kBeat;
  std::vector<std::int64_t> numbers = {};
  std::vector<std::string> texts = {};

  std::string encode() const;
  // Throws NotUnderstood; what it returns has as many numbers and texts as its kind has.
  static Message decode(std::string_view bytes);
};

// What a process may do over the connections it has. Calls return at once.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual void send(int link, std::string bytes) = 0;
  virtual void close(int link) = 0;  // when what was sent is on its way; nothing more comes from it
  // To the hub; whether it is there is told later.
  virtual int connect() = 0;
};

using Nonce = std::function<std::string()>;  // 16 bytes that nobody can guess
// Both nonces and the secret make the keys of a connection, one for each direction.
struct SessionKeys {
  Sha256Hash of_hub, of_guest;
  std::string welcome;  // shows that the hub has them
};
LOCKSTEP_API SessionKeys session_keys(std::string_view secret, std::string_view hub_nonce,
                                      std::string_view guest_nonce);
// What a guest shows of the secret.
LOCKSTEP_API std::string proof(std::string_view secret, std::string_view hub_nonce, const Message& join);

// How long things take, from two numbers that users choose.
struct Pace {
  std::chrono::nanoseconds beat = std::chrono::milliseconds(200);
  std::chrono::nanoseconds lost = std::chrono::seconds(1);  // without a sign of life
  std::chrono::nanoseconds patience_with_strangers() const { return 2 * lost; }
  std::chrono::nanoseconds linger() const { return lost / 2; }  // for a verdict to reach all
};
LOCKSTEP_API std::string seconds_text(std::chrono::nanoseconds time);  // "1.2 s"
// Of a text that somebody else has sent, so much, made safe to show.
LOCKSTEP_API std::string shown(std::string_view text, std::size_t most = 300);

}  // namespace lockstep::internal
