// core/membership/visitor.cpp - asks the hub of a job how things are, without being a member.
#include "lockstep/core/membership/internal/visitor.h"

#include <chrono>
#include <mutex>
#include <optional>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/membership/internal/fields.h"
#include "lockstep/core/membership/internal/frames.h"
#include "lockstep/core/membership/internal/messages.h"
#include "lockstep/core/membership/internal/sockets.h"

namespace lockstep::internal {
namespace {

class Visitor {
 public:
  Visitor(std::string address, std::string job_id, std::string secret, std::string nonce)
      : address_(std::move(address)),
        job_id_(std::move(job_id)),
        secret_(std::move(secret)),
        nonce_(std::move(nonce)) {}

  std::string ask(Deadline deadline) {
    const SteadyTime until = deadline.value_or(std::chrono::steady_clock::now() + std::chrono::hours(24));
    std::mutex mutex;
    std::unique_lock<std::mutex> lock(mutex);
    Sockets sockets;
    sockets.set_hub(address_);
    const int link = sockets.connect();
    while (std::chrono::steady_clock::now() < until) {
      for (const ConnectionEvent& event : sockets.wait(lock, until)) {
        if (event.kind == ConnectionEvent::Kind::kEnded) throw failed(event.bytes);
        if (event.kind != ConnectionEvent::Kind::kReceived) continue;
        in_.feed(event.bytes);
        while (const std::optional<std::string> bytes = in_.next()) {
          if (std::optional<std::string> status = serve(Message::decode(*bytes), sockets, link))
            return *status;
        }
      }
    }
    throw Error(ErrorCode::kDeadlineExceeded, str(printable(address_), " did not answer in time"));
  }

  Error failed(std::string_view how) const {
    return {ErrorCode::kUnavailable,
            str("the worker of rank 0 is not reached at ", printable(address_), ": ", printable(how))};
  }

 private:
  std::optional<std::string> serve(const Message& message, Sockets& sockets, int link) {
    switch (message.kind) {
      case MessageKind::kChallenge: {
        if (message.texts[0] != "lockstep" || message.numbers[0] != kProtocol || keys_)
          throw NotUnderstood("it is no job of this version of Lockstep");
        keys_ = session_keys(secret_, message.texts[1], nonce_);
        Message join{
            .kind = MessageKind::kJoin, .numbers = {0, -1, 0, 0}, .texts = {job_id_, "", "", nonce_, ""}};
        join.texts.back() = proof(secret_, message.texts[1], join);
        sockets.send(link, FrameWriter().frame(join.encode()));
        return std::nullopt;
      }
      case MessageKind::kWelcome: {
        if (!keys_ || message.texts[0] != keys_->welcome) throw NotUnderstood("it does not know the secret");
        in_.expect_seals_with(keys_->of_hub);
        return std::nullopt;
      }
      case MessageKind::kRefuse:
        throw InvalidArgument(str(printable(address_), ": ", printable(message.texts[0])));
      case MessageKind::kStatus: return message.texts[0];
      default: throw NotUnderstood("it is no job of this version of Lockstep");
    }
  }

  const std::string address_, job_id_, secret_, nonce_;
  FrameReader in_;
  std::optional<SessionKeys> keys_;
};

}  // namespace

std::string status_of_job(const std::string& address, const std::string& job_id, const std::string& secret,
                          const std::string& nonce, Deadline deadline) {
  Visitor visitor(address, job_id, secret, nonce);
  try {
    return visitor.ask(deadline);
  } catch (const NotUnderstood& error) {
    throw visitor.failed(error.what());
  }
}

}  // namespace lockstep::internal
