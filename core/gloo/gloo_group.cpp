// core/gloo/gloo_group.cpp - a Communicator between processes, over Gloo's TCP connections.
#include "lockstep/core/gloo/gloo_group.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "lockstep/core/base/thread_guards.h"
#include "lockstep/core/error.h"
#include "lockstep/core/gloo/internal/member.h"

namespace lockstep {
namespace {

using internal::gloo_group::Member;

constexpr std::chrono::milliseconds kMostPatience = std::chrono::hours(24 * 365);

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<Member> member) : member_(std::move(member)) {}
  ~GlooCommunicator() override { GlooCommunicator::close(); }

  int rank() const override { return member_->spec().rank; }
  int size() const override { return member_->spec().size; }
  bool can_decline() const override { return true; }
  int awaited() const override { return member_->is_of_this_process() ? member_->awaited() : -1; }
  void close() override {
    is_closed_ = true;
    if (member_->is_of_this_process()) {
      member_->leave();
    } else {
      member_->stay();
    }
  }
  void abort(const Error& why) override {
    if (!member_->is_of_this_process()) return;
    member_->fail({.why = str("participant ", rank(), " of ", size(), " ended the group: ", why.message())});
  }

 protected:
  Pending start(const CommunicatorCall& call) override {
    if (is_closed_) throw FailedPrecondition(str(to_string(call), ": this communicator is closed"));
    return member_->start(call);
  }

 private:
  std::shared_ptr<Member> member_;
  bool is_closed_ = false;
};

}  // namespace

std::unique_ptr<Communicator> connect_gloo(const GlooGroupSpec& spec, Rendezvous& rendezvous,
                                           Deadline deadline, const std::stop_token& stop) {
  if (spec.size < 1 || spec.rank < 0 || spec.rank >= spec.size)
    throw InvalidArgument(str("connect_gloo: there is no member ", spec.rank, " of ", spec.size));
  if (spec.patience <= std::chrono::milliseconds(0))
    throw InvalidArgument("connect_gloo: the patience is not positive");
  GlooGroupSpec own = spec;
  own.patience = std::min(spec.patience, kMostPatience);
  const internal::SigPipeBlocked quiet;
  const auto failed = [&spec](const std::exception& error) {
    return Error(ErrorCode::kUnavailable, str("group '", spec.name, "' cannot be built: ", error.what()));
  };
  std::shared_ptr<Member> member;
  try {
    member = std::make_shared<Member>(own, rendezvous, deadline, stop);
    member->start_threads();
  } catch (const internal::GlooLost& lost) {  // somebody has gone already
    throw failed(lost);
  } catch (const std::system_error& error) {
    if (member != nullptr) member->fail({.why = internal::gloo_group::text(error.what())});
    throw failed(error);
  }
  return std::make_unique<GlooCommunicator>(std::move(member));
}

}  // namespace lockstep
