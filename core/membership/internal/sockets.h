// core/membership/internal/sockets.h - connections over TCP, and one from a process to itself.
//
// Nothing is told from within a call: what has happened waits for wait(), which hands it out in order.
//
// Thread safety: one thread at a time, under the mutex whose lock wait() gets; wake() from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/steady_time.h"
#include "lockstep/core/membership/internal/messages.h"

namespace lockstep::internal {

struct ConnectionEvent {
  enum class Kind : std::uint8_t {
    kCame,      // somebody has connected to this process
    kLinked,    // a connection that this process began is there
    kReceived,  // `bytes`
    kEnded,     // `bytes` says how
  };
  Kind kind = Kind::kCame;
  int link = -1;
  std::string bytes = {};
};

class Sockets final : public Wire {
 public:
  // Throws Error (kUnavailable) if the system gives no descriptors.
  Sockets();
  ~Sockets() override;
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  // Accepts connections at "host:port" of this machine; port 0: any. Returns where. Throws InvalidArgument if the host is none of
  // this machine, and Unavailable if the port is taken.
  std::string listen(const std::string& address);
  // Where connect() goes; empty: to this process itself.
  void set_hub(std::string address) { hub_ = std::move(address); }

  void send(int link, std::string bytes) override;
  void close(int link) override;
  int connect() override;

  // Waits until something has happened, wake() was called or `until` has passed, with the lock released meanwhile.
  std::vector<ConnectionEvent> wait(std::unique_lock<std::mutex>& lock, SteadyTime until);
  void wake() noexcept;
  // For what was sent to be on its way; false if some of it is not.
  bool is_flushed() const;

 private:
  struct Connection;
  struct Resolver;
  void begin(int link, Connection& connection);
  void read(int link, Connection& connection);
  void write(int link, Connection& connection);
  void end(int link, Connection& connection, std::string_view how);
  void accept_all();

  int wake_ = -1, listener_ = -1;
  SteadyTime accepts_again_ = {};
  std::string hub_;
  int made_ = 0;
  std::map<int, std::unique_ptr<Connection>> connections_;
  std::vector<ConnectionEvent> events_;
};

}  // namespace lockstep::internal
