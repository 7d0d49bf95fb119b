// core/gloo/internal/mesh.h - the connections of one participant to all others, and memory that travels over them.
//
// Messages between two participants are matched in order, slot by slot. One that is shorter than the memory it is received into is
// fine; a longer one ends the process that receives it, inside Gloo: its length is known beforehand, or bounded.
//
// If all participants are on one machine, messages of collectives go through memory that they share (shared_rings.h). All others, and
// word of how the group ends, go over the connections.
//
// Thread safety: any thread; a buffer, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/communicators/rendezvous.h"
#include "lockstep/core/gloo/gloo_group.h"
#include "lockstep/core/gloo/internal/shared_rings.h"

namespace gloo::transport {
class Context;
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace lockstep::internal {

// Thrown to whoever waits on a buffer: somebody has called interrupt().
class GlooInterrupted : public std::exception {};

// Thrown to whoever sends, receives or waits: the connection has ended.
class GlooLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class GlooBuffer;

class GlooMesh {
 public:
  // kCollectives: one thread at a time sends, receives and waits.
  enum class Use : std::uint8_t { kCollectives, kWork, kControl };

  // Waits for the other participants. Throws as connect_gloo().
  GlooMesh(const GlooGroupSpec& spec, Rendezvous& rendezvous, Deadline deadline, const std::stop_token& stop);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // Do messages of collectives go through memory?
  bool shares_memory() const { return rings_ != nullptr; }
  // Whoever waits on a buffer of this use, now or later, gets GlooInterrupted.
  void interrupt(Use use) noexcept;
  // Ends all connections.
  void close() noexcept;

 private:
  friend class GlooBuffer;

  void connect(Rendezvous& rendezvous, Deadline deadline, const std::stop_token& stop);
  std::vector<std::string> addresses_of_others(Rendezvous& rendezvous, Deadline deadline,
                                               const std::stop_token& stop);
  void connect_pairs(const std::vector<std::string>& addresses, Deadline deadline,
                     const std::stop_token& stop);
  std::string said_by(int other, std::string_view what, Rendezvous& rendezvous, Deadline deadline,
                      const std::stop_token& stop) const;
  void share_memory(std::unique_ptr<SharedRings> own, Rendezvous& rendezvous, Deadline deadline,
                    const std::stop_token& stop);
  std::string key(std::string_view what) const;

  const GlooGroupSpec spec_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::mutex mutex_;                  // of what follows
  std::set<GlooBuffer*> buffers_[3];  // by use
  bool interrupted_[3] = {false, false, false};
  std::unique_ptr<SharedRings>
      rings_;  // of one machine; null: messages of collectives go over the connections
};

// Memory that is sent or received into. Once it is destroyed, nothing touches the memory.
class GlooBuffer {
 public:
  GlooBuffer(GlooMesh& mesh, GlooMesh::Use use, const void* memory, std::size_t bytes);
  ~GlooBuffer();
  GlooBuffer(const GlooBuffer&) = delete;
  GlooBuffer& operator=(const GlooBuffer&) = delete;

  void send(int to, std::uint64_t slot, std::size_t at, std::size_t bytes);
  void receive(int from, std::uint64_t slot, std::size_t at, std::size_t bytes);
  // Wait for one of the sends, or of the receives.
  void await_sent();
  void await_received();

 private:
  friend class GlooMesh;

  void check() const;

  GlooMesh& mesh_;
  const GlooMesh::Use use_;
  SharedRings* const rings_;  // of this use; null: over the connections
  std::byte* const memory_;
  RingTransfers sends_, receives_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;  // over the connections
};

}  // namespace lockstep::internal
