// core/gloo/internal/shared_rings.h - the messages of a group of which all participants are on one machine, through memory that they
// share.
//
// Each participant has memory in which every other one has a ring, for what it sends to this participant, and a bell, which they
// ring when they have written or read something. Messages are matched as those of GlooMesh are: between two participants, in order,
// slot by slot. What is sent of different slots is received in the order in which it was sent: a participant that waits for a message
// must have begun to receive all that were sent before it, or begin to before it waits.
//
// Nobody but those who wait moves bytes: every message that was begun goes on while its participant waits for any of them. What a
// wait has received leaves the sender room for what it had begun to send before.
//
// Thread safety: one thread at a time; interrupt() from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::internal {

// What one buffer sends, or receives.
struct RingTransfers {
  std::size_t under_way = 0;
  std::size_t ended = 0;  // and nobody has waited for them yet
};

class SharedRings {
 public:
  // The memory of this participant; null if the system gives none.
  static std::unique_ptr<SharedRings> make(int rank, int size);
  ~SharedRings();
  SharedRings(const SharedRings&) = delete;
  SharedRings& operator=(const SharedRings&) = delete;

  // For the others: where this participant's memory is.
  std::string description() const;
  // Do both descriptions come from one machine, and from one network on it?
  static bool are_near(const std::string& one, const std::string& other);
  // Finds the memory of another participant; false if it cannot be had.
  bool join(int other, const std::string& description);
  // All have found each other: nobody else can.
  void close_door() noexcept;

  void send(int to, std::uint64_t slot, const void* from, std::size_t bytes, RingTransfers& of);
  // Of at most so many bytes.
  void receive(int from, std::uint64_t slot, void* to, std::size_t bytes, RingTransfers& of);
  // Until one more of them has ended. Throws GlooInterrupted, and GlooLost for a message that is longer than its memory.
  void await(RingTransfers& of);
  // Nothing touches the memory of these any more. Those that had not ended are lost, and so is all that follows.
  void forget(const RingTransfers& of) noexcept;
  // Whoever waits, now or later, gets GlooInterrupted.
  void interrupt() noexcept;

 private:
  struct Bell;
  struct Ring;
  struct Memory;
  struct Message {  // as it is in a ring, before its bytes
    std::uint64_t slot = 0, bytes = 0;
  };
  struct Outgoing {
    Message message;
    const std::byte* from = nullptr;
    std::uint64_t done = 0;
    bool is_begun = false;
    RingTransfers* of = nullptr;
  };
  struct Incoming {
    std::byte* to = nullptr;
    std::size_t most = 0;
    RingTransfers* of = nullptr;
  };
  struct Peer {
    Memory* memory = nullptr;  // of that participant
    std::deque<Outgoing> sends;
    std::map<std::uint64_t, std::deque<Incoming>> receives;  // by slot
    Message message;                                         // that is being received
    std::uint64_t done = 0;
    bool is_begun = false;
  };

  SharedRings(int rank, int size) : rank_(rank), size_(size), peers_(static_cast<std::size_t>(size)) {}
  bool move();  // has anything moved?
  bool take(int from);
  bool give(int to);
  bool is_over() const { return is_broken_ || is_interrupted_.load(); }

  const int rank_, size_;
  int file_ = -1;
  Memory* own_ = nullptr;
  std::string token_;
  std::vector<Peer> peers_;  // by rank
  std::atomic<bool> is_interrupted_{false};
  bool is_broken_ = false;
};

}  // namespace lockstep::internal
