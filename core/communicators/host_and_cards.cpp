// core/communicators/host_and_cards.cpp - one group that exchanges arrays of the host, and of cards.
#include "lockstep/core/communicators/host_and_cards.h"

#include <deque>
#include <exception>
#include <new>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

class AgreedCall;

// Calls under way keep them alive.
struct Engines {
  std::unique_ptr<Communicator> host, cards;
  std::deque<AgreedCall*> asked;  // collectives of cards that have not begun, in order
};

class AgreedCall final : public PendingState {
 public:
  AgreedCall(std::shared_ptr<Engines> engines, const CommunicatorCall& call)
      : engines_(std::move(engines)), call_(call) {
    CommunicatorCall agreement = call;
    agreement.is_agreement = true;
    agreement_ = engines_->host->call(agreement);
  }
  ~AgreedCall() override = default;
  AgreedCall(const AgreedCall&) = delete;
  AgreedCall& operator=(const AgreedCall&) = delete;

  bool done(int /*rank*/) override { return begin_all(false) && (refused_ != nullptr || performed_.done()); }

  void wait(int /*rank*/) override {
    begin_all(true);
    if (refused_ != nullptr) std::rethrow_exception(refused_);
    try {
      performed_.wait();
    } catch (const std::exception& error) {
      end_both(error);
      throw;
    }
  }

  void release(int rank) noexcept override {
    std::erase(engines_->asked, this);
    if (!has_begun_) drop(rank);
    delete this;  // NOLINT(cppcoreguidelines-owning-memory): as PendingState says
  }

 private:
  // The calls up to this one, as soon as all have agreed on them. False: not all have.
  bool begin_all(bool waits) {
    while (!has_begun_) {
      AgreedCall& first = *engines_->asked.front();
      if (!waits && !first.agreement_.done()) return false;
      engines_->asked.pop_front();
      first.begin();
    }
    return true;
  }

  void begin() {
    has_begun_ = true;
    try {
      agreement_.wait();
    } catch (const Declined&) {
      refused_ = std::current_exception();
      return;
    } catch (const std::exception& error) {
      refused_ = std::current_exception();
      end_both(error);
      return;
    }
    try {
      performed_ = engines_->cards->call(call_);
    } catch (const std::exception& error) {  // the others have begun
      refused_ = std::current_exception();
      end_both(error);
    }
  }

  // The others may know already that all have agreed, and have begun.
  void drop(int rank) const noexcept {
    try {
      end_both(Error(ErrorCode::kUnavailable,
                     str("participant ", rank, " dropped ", to_string(call_), " before it had begun")));
    } catch (const std::bad_alloc&) {  // they wait until their deadline
    }
  }

  void end_both(const std::exception& error) const {
    const Error why(ErrorCode::kUnavailable, message_of(error));
    engines_->cards->abort(why);
    engines_->host->abort(why);
  }

  const std::shared_ptr<Engines> engines_;
  const CommunicatorCall call_;
  Pending agreement_, performed_;
  bool has_begun_ = false;
  std::exception_ptr refused_;
};

class HostAndCards final : public Communicator {
 public:
  HostAndCards(std::unique_ptr<Communicator> host, std::unique_ptr<Communicator> cards)
      : engines_(std::make_shared<Engines>(Engines{std::move(host), std::move(cards), {}})) {}
  ~HostAndCards() override { HostAndCards::close(); }

  int rank() const override { return engines_->host->rank(); }
  int size() const override { return engines_->host->size(); }
  bool takes(DeviceKind /*memory*/) const override { return true; }
  bool can_decline() const override { return engines_->host->can_decline(); }
  int awaited() const override { return engines_->host->awaited(); }
  void abort(const Error& why) override {
    engines_->cards->abort(why);
    engines_->host->abort(why);
  }
  void close() override {
    engines_->cards->close();
    engines_->host->close();
  }

 protected:
  Pending start(const CommunicatorCall& call) override {
    if (call.memory == DeviceKind::kCpu) return engines_->host->call(call);
    if (!call.is_collective()) return engines_->cards->call(call);
    auto made = std::make_unique<AgreedCall>(engines_, call);
    engines_->asked.push_back(made.get());
    return {made.release(), rank()};
  }

 private:
  std::shared_ptr<Engines> engines_;
};

}  // namespace

std::unique_ptr<Communicator> host_and_cards(std::unique_ptr<Communicator> host,
                                             std::unique_ptr<Communicator> cards) {
  if (host == nullptr || cards == nullptr)
    throw InvalidArgument("host_and_cards: expected two communicators, got none in place of one");
  if (host->rank() != cards->rank() || host->size() != cards->size())
    throw InvalidArgument(str("host_and_cards: participant ", host->rank(), " of ", host->size(), " and ",
                              cards->rank(), " of ", cards->size(), " are not the same"));
  if (!host->takes(DeviceKind::kCpu) || !cards->takes(DeviceKind::kGpu))
    throw InvalidArgument(
        "host_and_cards: the first is to take memory of the host, and the second that of cards");
  return std::make_unique<HostAndCards>(std::move(host), std::move(cards));
}

}  // namespace lockstep
