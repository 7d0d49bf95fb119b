// core/communicators/in_process_group.cpp - a Communicator between threads of one process, through their own
// memory.
#include "lockstep/core/communicators/in_process_group.h"

#include "lockstep/core/communicators/internal/in_process_room.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using internal::InProcessRoom;

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(InProcessRoom& room, int rank) : room_(room), rank_(rank) { room.claim(rank); }
  ~InProcessCommunicator() override {
    leave("left the group: its communicator was destroyed");
    room_.leave(rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return room_.size(); }
  void abort(const Error& why) override { room_.lose(rank_, str("has ended it: ", why.what())); }
  bool can_decline() const override { return true; }
  void close() override { leave("left the group: it closed its communicator"); }

 protected:
  Pending start(const CommunicatorCall& call) override {
    if (is_closed_) throw FailedPrecondition(str(to_string(call), ": this communicator is closed"));
    return room_.start(rank_, call);
  }

 private:
  void leave(const char* why) {
    if (!is_closed_) room_.lose(rank_, why);
    is_closed_ = true;
  }

  InProcessRoom& room_;  // kept alive by the participant's seat
  int rank_;
  bool is_closed_ = false;
};

void check_rank(const char* what, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  throw InvalidArgument(
      str("InProcessGroup::", what, ": there is no participant ", rank, "; the group has ", size));
}

}  // namespace

InProcessGroup::InProcessGroup(int participants) {
  if (participants < 1)
    throw InvalidArgument(str("InProcessGroup: expected at least one participant, got ", participants));
  if (participants > InProcessRoom::kMostParticipants) {
    throw InvalidArgument(str("InProcessGroup: expected at most ", InProcessRoom::kMostParticipants,
                              " participants, got ", participants));
  }
  room_ = std::make_shared<InProcessRoom>(participants);
}

InProcessGroup::~InProcessGroup() { room_->shut(); }

int InProcessGroup::size() const { return room_->size(); }

std::unique_ptr<Communicator> InProcessGroup::join(int rank) {
  check_rank("join", rank, size());
  return std::make_unique<InProcessCommunicator>(*room_, rank);
}

void InProcessGroup::declare_lost(int rank, const std::string& why) {
  check_rank("declare_lost", rank, size());
  room_->lose(rank, str("was declared lost: ", why));
}

}  // namespace lockstep
