// core/membership/sockets.cpp - connections over TCP, and one from a process to itself.
#include "lockstep/core/membership/internal/sockets.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/base/thread_guards.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

struct Endpoint {
  sockaddr_storage address = {};
  socklen_t size = 0;
};

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostUnsent = 64 << 20;
constexpr std::chrono::milliseconds kResolving{5};  // between two looks whether a name is found
constexpr std::chrono::milliseconds kClosing{500};  // for the other side to read what was sent last
constexpr std::chrono::milliseconds kCrowded{20};   // without accepting, where there are no descriptors

struct HostAndPort {
  std::string host, port;
};
HostAndPort parts_of(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return {host, colon == std::string::npos ? "" : address.substr(colon + 1)};
}

std::string system_error_text(int code) { return std::generic_category().message(code); }

// Of a name, which may take long, unless `only_numbers`. Empty: `why` says why.
std::vector<Endpoint> endpoints_of(const std::string& address, bool only_numbers, std::string& why) {
  const HostAndPort parts = parts_of(address);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (only_numbers ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(parts.host.c_str(), parts.port.c_str(), &hints, &found);
  if (failure != 0) {
    why = str("the host '", printable(parts.host), "' is not found: ", ::gai_strerror(failure));
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<Endpoint> endpoints;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Endpoint endpoint{.size = one->ai_addrlen};
    std::memcpy(&endpoint.address, one->ai_addr, one->ai_addrlen);
    endpoints.push_back(endpoint);
  }
  if (endpoints.empty()) why = str("the host '", printable(parts.host), "' has no address");
  return endpoints;
}

const sockaddr* plain(const Endpoint& endpoint) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): how addresses are given
  return reinterpret_cast<const sockaddr*>(&endpoint.address);
}

int open_socket(const Endpoint& endpoint) {
  return ::socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void set_option(int socket, int level, int option) {
  const int on = 1;
  ::setsockopt(socket, level, option, &on, sizeof on);
}

}  // namespace

// Finds a name on a thread of its own, which may outlive everything else: nothing can end getaddrinfo().
struct Sockets::Resolver {
  std::mutex mutex;
  bool is_done = false;
  std::vector<Endpoint> endpoints;
  std::string why;
};

struct Sockets::Connection {
  enum class State : std::uint8_t { kResolving, kConnecting, kOpen, kClosing };
  State state = State::kOpen;
  int socket = -1;
  int other = -1;  // the other end, if that is in this process
  std::string out = {};
  std::size_t sent = 0;
  bool is_shut = false;    // for writing
  SteadyTime closes = {};  // at the latest
  std::shared_ptr<Resolver> resolver = {};
  std::vector<Endpoint> endpoints = {};  // that are left to try
  std::string why = {};                  // the last one failed

  ~Connection() {
    if (socket >= 0) ::close(socket);
  }
};

Sockets::Sockets() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_ < 0)
    throw Error(ErrorCode::kUnavailable, str("no descriptor for a connection: ", system_error_text(errno)));
}

Sockets::~Sockets() {
  if (listener_ >= 0) ::close(listener_);
  ::close(wake_);
}

void Sockets::wake() noexcept {
  const std::uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) < 0) return;  // it is awake already
}

std::string Sockets::listen(const std::string& address) {
  std::string why;
  for (const Endpoint& endpoint : endpoints_of(address, false, why)) {
    const int made = open_socket(endpoint);
    if (made < 0) continue;
    set_option(made, SOL_SOCKET, SO_REUSEADDR);
    if (::bind(made, plain(endpoint), endpoint.size) == 0 && ::listen(made, 1024) == 0) {
      Endpoint own{.size = sizeof(sockaddr_storage)};
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): how addresses are given
      ::getsockname(made, reinterpret_cast<sockaddr*>(&own.address), &own.size);
      std::array<char, NI_MAXSERV> port{};
      ::getnameinfo(plain(own), own.size, nullptr, 0, port.data(), port.size(), NI_NUMERICSERV);
      listener_ = made;
      return address.substr(0, address.rfind(':') + 1) + port.data();
    }
    const int code = errno;
    ::close(made);
    if (code == EADDRINUSE)
      throw Error(ErrorCode::kUnavailable, str("the port of ", printable(address),
                                               " is taken: another job, or an earlier one that still runs, ",
                                               "listens there; give this job another port"));
    why = system_error_text(code);
  }
  throw InvalidArgument(str("cannot listen at ", printable(address), ": ", why,
                            "; is this machine the one of the worker of rank 0?"));
}

// --- what the owner asks for

void Sockets::send(int link, std::string bytes) {
  const auto found = connections_.find(link);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  if (connection.state == Connection::State::kClosing) return;
  if (connection.other >= 0) {
    events_.push_back({ConnectionEvent::Kind::kReceived, connection.other, std::move(bytes)});
    wake();
    return;
  }
  connection.out += bytes;
  if (connection.out.size() - connection.sent > kMostUnsent)
    return end(link, connection, "it does not read what is sent");
  if (connection.state == Connection::State::kOpen) write(link, connection);
  wake();  // what is left is sent when there is room
}

void Sockets::close(int link) {
  const auto found = connections_.find(link);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  if (connection.other >= 0) {
    const int other = connection.other;
    connections_.erase(found);
    if (connections_.erase(other) > 0)
      events_.push_back({ConnectionEvent::Kind::kEnded, other, "it was closed"});
    wake();
  } else if (connection.state == Connection::State::kOpen) {
    connection.state = Connection::State::kClosing;
    connection.closes = Clock::now() + kClosing;
    wake();
  } else if (connection.state != Connection::State::kClosing) {
    connections_.erase(found);
  }
}

int Sockets::connect() {
  const int link = made_++;
  auto& connection = connections_[link] = std::make_unique<Connection>();
  if (hub_.empty()) {
    const int other = made_++;
    auto& theirs = connections_[other] = std::make_unique<Connection>();
    connection->other = other;
    theirs->other = link;
    events_.push_back({.kind = ConnectionEvent::Kind::kCame, .link = other});
    events_.push_back({.kind = ConnectionEvent::Kind::kLinked, .link = link});
    wake();
    return link;
  }
  connection->endpoints = endpoints_of(hub_, true, connection->why);
  if (!connection->endpoints.empty()) {
    begin(link, *connection);
    return link;
  }
  connection->state = Connection::State::kResolving;
  connection->resolver = std::make_shared<Resolver>();
  try {
    const SignalsBlocked quiet;
    std::thread([resolver = connection->resolver, hub = hub_] {
      std::string why;
      std::vector<Endpoint> endpoints = endpoints_of(hub, false, why);
      const std::lock_guard<std::mutex> lock(resolver->mutex);
      resolver->endpoints = std::move(endpoints);
      resolver->why = std::move(why);
      resolver->is_done = true;
    }).detach();
  } catch (const std::system_error& error) {
    end(link, *connection, error.what());
  }
  wake();
  return link;
}

bool Sockets::is_flushed() const {
  return std::ranges::all_of(connections_, [](const auto& connection) {
    return connection.second->sent == connection.second->out.size() &&
           connection.second->state != Connection::State::kClosing;
  });
}

// --- connections

// With the next of its endpoints.
void Sockets::begin(int link, Connection& connection) {
  while (!connection.endpoints.empty()) {
    const Endpoint endpoint = connection.endpoints.front();
    connection.endpoints.erase(connection.endpoints.begin());
    if (connection.socket >= 0) ::close(std::exchange(connection.socket, -1));
    connection.socket = open_socket(endpoint);
    connection.state = Connection::State::kConnecting;
    if (connection.socket >= 0 &&
        (::connect(connection.socket, plain(endpoint), endpoint.size) == 0 || errno == EINPROGRESS))
      return;  // writable, when it is there
    connection.why = system_error_text(errno);
  }
  end(link, connection, connection.why);
}

void Sockets::end(int link, Connection& connection, std::string_view how) {
  if (connection.state != Connection::State::kClosing)
    events_.push_back({ConnectionEvent::Kind::kEnded, link, std::string(how)});
  connections_.erase(link);
}

void Sockets::write(int link, Connection& connection) {
  while (connection.sent < connection.out.size()) {
    const ssize_t some = ::send(connection.socket, connection.out.data() + connection.sent,
                                connection.out.size() - connection.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) return end(link, connection, system_error_text(errno));
    connection.sent += static_cast<std::size_t>(some);
  }
  connection.out.clear();
  connection.sent = 0;
}

void Sockets::read(int link, Connection& connection) {
  std::array<char, 1 << 16> bytes;
  const ssize_t some = ::recv(connection.socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (some < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (some < 0) return end(link, connection, system_error_text(errno));
  if (some == 0) return end(link, connection, "it was closed");
  if (connection.state == Connection::State::kOpen)
    events_.push_back(
        {ConnectionEvent::Kind::kReceived, link, std::string(bytes.data(), static_cast<std::size_t>(some))});
}

void Sockets::accept_all() {
  for (int i = 0; i < 64; ++i) {
    const int made = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (made < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        accepts_again_ = Clock::now() + kCrowded;
      return;
    }
    set_option(made, IPPROTO_TCP, TCP_NODELAY);
    auto connection = std::make_unique<Connection>();
    connection->socket = made;
    const int link = made_++;
    connections_[link] = std::move(connection);
    events_.push_back({.kind = ConnectionEvent::Kind::kCame, .link = link});
  }
}

std::vector<ConnectionEvent> Sockets::wait(std::unique_lock<std::mutex>& lock, SteadyTime until) {
  if (!events_.empty()) return std::exchange(events_, {});
  const SteadyTime now = Clock::now();
  std::vector<pollfd> polled = {{wake_, POLLIN, 0}};
  std::vector<int> links = {-1};
  if (listener_ >= 0) {
    if (now >= accepts_again_) {
      polled.push_back({listener_, POLLIN, 0});
      links.push_back(-2);
    } else {
      until = std::min(until, accepts_again_);
    }
  }
  for (const auto& [link, connection] : connections_) {
    switch (connection->state) {
      case Connection::State::kResolving: until = std::min(until, now + kResolving); continue;
      case Connection::State::kClosing: until = std::min(until, connection->closes); break;
      case Connection::State::kConnecting:
      case Connection::State::kOpen: break;
    }
    if (connection->socket < 0) continue;
    const bool writes =
        connection->state == Connection::State::kConnecting || connection->sent < connection->out.size();
    const bool reads = connection->state != Connection::State::kConnecting;
    polled.push_back(
        {connection->socket, static_cast<short>((writes ? POLLOUT : 0) | (reads ? POLLIN : 0)), 0});
    links.push_back(link);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  lock.unlock();
  const int ready =
      ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000)));
  lock.lock();
  for (std::size_t i = 0; i < polled.size() && ready > 0; ++i) {
    if (polled[i].revents == 0) continue;
    if (links[i] == -1) {
      std::uint64_t count = 0;
      if (::read(wake_, &count, sizeof count) < 0) continue;  // nothing to take
      continue;
    }
    if (links[i] == -2) {
      accept_all();
      continue;
    }
    const auto found = connections_.find(links[i]);
    // It may have been closed meanwhile, or be another socket by now.
    if (found == connections_.end() || found->second->socket != polled[i].fd) continue;
    Connection& connection = *found->second;
    if (connection.state == Connection::State::kConnecting) {
      int code = 0;
      socklen_t size = sizeof code;
      ::getsockopt(connection.socket, SOL_SOCKET, SO_ERROR, &code, &size);
      if (code != 0) {
        connection.why = system_error_text(code);
        begin(links[i], connection);
        continue;
      }
      set_option(connection.socket, IPPROTO_TCP, TCP_NODELAY);
      connection.state = Connection::State::kOpen;
      connection.endpoints.clear();
      events_.push_back({.kind = ConnectionEvent::Kind::kLinked, .link = links[i]});
      continue;
    }
    if ((polled[i].revents & POLLOUT) != 0) write(links[i], connection);
    if ((polled[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && connections_.contains(links[i]))
      read(links[i], connection);
  }
  std::vector<int> others;
  for (const auto& [link, connection] : connections_) {
    if (connection->state == Connection::State::kResolving ||
        connection->state == Connection::State::kClosing)
      others.push_back(link);
  }
  for (const int link : others) {
    Connection& connection = *connections_.at(link);
    if (connection.state == Connection::State::kResolving) {
      const std::lock_guard<std::mutex> resolving(connection.resolver->mutex);
      if (!connection.resolver->is_done) continue;
      connection.endpoints = std::move(connection.resolver->endpoints);
      connection.why = connection.resolver->why;
    } else {
      if (connection.sent == connection.out.size() && !connection.is_shut) {
        ::shutdown(connection.socket, SHUT_WR);
        connection.is_shut = true;
      }
      if (Clock::now() >= connection.closes) connections_.erase(link);
      continue;
    }
    begin(link, connection);
  }
  return std::exchange(events_, {});
}

}  // namespace lockstep::internal
