// core/gloo/internal/exchange.h - what a participant sends and receives for each call.
//
// Thread safety: collectives one after the other, on any threads; so are the messages of each direction with another participant.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/gloo/internal/mesh.h"

namespace lockstep::internal {

// The messages between two participants, by what they are for.
enum GlooSlot : std::uint64_t {
  kCallSlot = 1,     // collectives: the call, and up to 64 KiB of its array
  kPieceSlot,        // pieces of arrays, to whoever combines them
  kResultSlot,       // results
  kControlSlot,      // of the group itself
  kMessageCallSlot,  // messages: the call
  kMessageSlot,      // what they carry
};

// Hears how far an operation is.
class GlooProgress {
 public:
  virtual void awaits(
      int rank) = 0;          // the call of that participant, or its next piece; -1: that any takes one
  virtual void begins() = 0;  // all have called it

 protected:
  ~GlooProgress() = default;
};

class GlooExchange {
 public:
  GlooExchange(GlooMesh& mesh, int rank, int size, bool is_ring);
  ~GlooExchange();
  GlooExchange(const GlooExchange&) = delete;
  GlooExchange& operator=(const GlooExchange&) = delete;

  // The collective of this number, from 0. Throw InvalidArgument, which names both sides, if calls do not agree, GlooLost and
  // GlooInterrupted; Declined, after which the next may be called.
  void collective(const CommunicatorCall& call, std::uint64_t number, GlooProgress& progress);
  void send(const CommunicatorCall& call, GlooProgress& progress);
  void receive(const CommunicatorCall& call, GlooProgress& progress);

 private:
  struct Call;
  // What participants combine: the elements [begin, begin + count) of all inputs, into `out`.
  struct Part {
    std::int64_t begin = 0, count = 0;
    std::byte* out = nullptr;  // of the one that combines them
  };

  void meet(const CommunicatorCall& call, std::uint64_t number, GlooProgress& progress);
  int find_decline(std::uint64_t number) const;  // -1: nobody declines it
  void expect_next(std::size_t turn);            // the call after the next
  void compute_small(const CommunicatorCall& call, std::uint64_t number);
  std::vector<Part> parts_of(const CommunicatorCall& call) const;
  std::int64_t piece_bytes() const;
  void combine(const CommunicatorCall& call, std::span<const Part> parts, GlooProgress& progress);
  void go_round(const CommunicatorCall& call, GlooProgress& progress);
  void copy(const CommunicatorCall& call, GlooProgress& progress);
  const Call& call_of(int rank, std::uint64_t number) const;
  const std::byte* small_input(int rank, std::uint64_t number, const CommunicatorCall& call) const;

  GlooMesh& mesh_;
  const int rank_, size_;
  const bool is_ring_;
  // Two of each, for calls of even and of odd numbers: the next ones may come before this one is over.
  struct Mailbox;
  std::array<std::vector<Mailbox>, 2> in_;       // by rank
  std::array<std::unique_ptr<Mailbox>, 2> out_;  // to all
  std::array<int, 2> unsent_ = {0, 0};
  struct Stage;
  std::vector<Stage> stages_;  // by rank; made when they are first needed
};

}  // namespace lockstep::internal
