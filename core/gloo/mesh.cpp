// core/gloo/mesh.cpp - the connections of one participant to all others, and memory that travels over them.
#include "lockstep/core/gloo/internal/mesh.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <system_error>
#include <thread>
#include <utility>

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/base/thread_guards.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kKnock{2};  // between two looks for a participant
constexpr int kMostShared = 32;  // participants that share memory: it grows with the square of their number
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);  // others end what waits

bool has_passed(Deadline deadline) { return deadline && Clock::now() >= *deadline; }

// The host as a number, by which this machine is reached: Gloo takes a name that it cannot look up for granted.
std::string number_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failure != 0 || found == nullptr)
    throw InvalidArgument(str("connect_gloo: the host '", printable(host), "' is not found: ",
                              failure != 0 ? ::gai_strerror(failure) : "it has no address"));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  int why = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    const int probe = ::socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    const bool is_here = probe >= 0 && ::bind(probe, address->ai_addr, address->ai_addrlen) == 0;
    if (!is_here) why = errno;
    if (probe >= 0) ::close(probe);
    std::array<char, NI_MAXHOST> number{};
    if (is_here && ::getnameinfo(address->ai_addr, address->ai_addrlen, number.data(), number.size(), nullptr,
                                 0, NI_NUMERICHOST) == 0)
      return number.data();
  }
  throw InvalidArgument(str("connect_gloo: the host '", printable(host),
                            "' is not one of this machine: ", std::generic_category().message(why)));
}

// Whatever Gloo throws is about the connection.
template <class F>
void over_gloo(const F& call) {
  try {
    call();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    std::string_view text = error.what();
    const std::size_t end = text.find("] ");  // of the place in Gloo's sources
    if (text.starts_with('[') && end != std::string_view::npos) text.remove_prefix(end + 2);
    throw GlooLost(printable(text));
  }
}

}  // namespace

// --- connecting

GlooMesh::GlooMesh(const GlooGroupSpec& spec, Rendezvous& rendezvous, Deadline deadline,
                   const std::stop_token& stop)
    : spec_(spec) {
  try {
    connect(rendezvous, deadline, stop);
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kUnavailable,
                str("group '", spec_.name, "' cannot be built: Gloo says: ", printable(error.what())));
  }
}

GlooMesh::~GlooMesh() { close(); }

std::string GlooMesh::key(std::string_view what) const {
  return str(spec_.name, ".", spec_.generation, "/", what);
}

void GlooMesh::connect(Rendezvous& rendezvous, Deadline deadline, const std::stop_token& stop) {
  ::gloo::transport::tcp::attr attributes;
  attributes.hostname = number_of(spec_.host);
  {
    const SignalsBlocked quiet;  // for Gloo's thread, which writes to connections that may have ended
    device_ = ::gloo::transport::tcp::CreateDevice(attributes);
  }
  context_ = device_->createContext(spec_.rank, spec_.size);
  context_->setTimeout(kForever);
  std::string own;
  for (int other = 0; other < spec_.size; ++other) {
    if (other == spec_.rank) continue;
    const std::vector<char> address = context_->createPair(other)->address().bytes();
    own.append(address.begin(), address.end());
  }
  std::unique_ptr<SharedRings> rings;
  if (spec_.size > 1) {
    if (spec_.shared_memory && spec_.size <= kMostShared) rings = SharedRings::make(spec_.rank, spec_.size);
    rendezvous.set(key(str("memory-", spec_.rank)), rings == nullptr ? "none" : rings->description());
  }
  rendezvous.set(key(str("member-", spec_.rank)), own);
  connect_pairs(addresses_of_others(rendezvous, deadline, stop), deadline, stop);
  if (spec_.size > 1) share_memory(std::move(rings), rendezvous, deadline, stop);
}

// What another participant has left at the rendezvous.
std::string GlooMesh::said_by(int other, std::string_view what, Rendezvous& rendezvous, Deadline deadline,
                              const std::stop_token& stop) const {
  const std::string wanted = key(str(what, other));
  while (!rendezvous.has(wanted)) {
    if (stop.stop_requested())
      throw Error(ErrorCode::kCancelled, str("group '", spec_.name, "': joining it was given up"));
    if (has_passed(deadline)) {
      std::string missing;
      for (int rank = 0; rank < spec_.size; ++rank) {
        if (!rendezvous.has(key(str(what, rank)))) missing += str(missing.empty() ? "" : ", ", rank);
      }
      throw Error(
          ErrorCode::kDeadlineExceeded,
          str("group '", spec_.name, "' did not come together in time: missing are members ", missing));
    }
    std::this_thread::sleep_for(kKnock);
  }
  return rendezvous.get(wanted, deadline);
}

// What each participant listens at for this one, by rank.
std::vector<std::string> GlooMesh::addresses_of_others(Rendezvous& rendezvous, Deadline deadline,
                                                       const std::stop_token& stop) {
  std::vector<std::string> addresses(static_cast<std::size_t>(spec_.size));
  for (int other = 0; other < spec_.size; ++other) {
    if (other == spec_.rank) continue;
    const std::string all = said_by(other, "member-", rendezvous, deadline, stop);
    const auto others = static_cast<std::size_t>(spec_.size - 1);
    if (all.empty() || all.size() % others != 0)
      throw Error(ErrorCode::kUnavailable, str("group '", spec_.name, "': what member ", other,
                                               " has left at the rendezvous are no addresses of ", others,
                                               " others: do all have the same size?"));
    const auto place = static_cast<std::size_t>(spec_.rank > other ? spec_.rank - 1 : spec_.rank);
    addresses[static_cast<std::size_t>(other)] =
        all.substr(place * (all.size() / others), all.size() / others);
  }
  return addresses;
}

// Either all participants use memory that they share, or nobody does: whether all are on one machine follows from what all read, and
// whether all have found the memory of the others is told.
void GlooMesh::share_memory(std::unique_ptr<SharedRings> own, Rendezvous& rendezvous, Deadline deadline,
                            const std::stop_token& stop) {
  std::vector<std::string> descriptions(static_cast<std::size_t>(spec_.size));
  for (int rank = 0; rank < spec_.size; ++rank)
    descriptions[static_cast<std::size_t>(rank)] = said_by(rank, "memory-", rendezvous, deadline, stop);
  for (const std::string& one : descriptions) {
    if (!SharedRings::are_near(descriptions[0], one)) return;
  }
  bool has_all = own != nullptr;
  for (int other = 0; has_all && other < spec_.size; ++other)
    has_all = other == spec_.rank || own->join(other, descriptions[static_cast<std::size_t>(other)]);
  rendezvous.set(key(str("shares-", spec_.rank)), has_all ? "yes" : "no");
  for (int rank = 0; rank < spec_.size; ++rank)
    has_all = said_by(rank, "shares-", rendezvous, deadline, stop) == "yes" && has_all;
  if (!has_all) return;
  own->close_door();
  rings_ = std::move(own);
}

// Gloo waits for each connection, on a thread of its own here, so that a deadline can end it. All participants connect in the order
// of the ranks: two that waited for each other would each have to be before the other.
void GlooMesh::connect_pairs(const std::vector<std::string>& addresses, Deadline deadline,
                             const std::stop_token& stop) {
  struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    int at = 0;
    bool is_given_up = false, is_over = false;
    std::exception_ptr failure;
  } progress;
  const auto connect_all = [&] {
    std::exception_ptr failure;
    int other = 0;
    try {
      for (; other < spec_.size; ++other) {
        {
          const std::lock_guard<std::mutex> lock(progress.mutex);
          if (progress.is_given_up) break;
          progress.at = other;
        }
        const std::string& address = addresses[static_cast<std::size_t>(other)];
        if (other != spec_.rank) context_->getPair(other)->connect({address.begin(), address.end()});
      }
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(progress.mutex);
    progress.is_over = true;
    progress.failure = failure;
    progress.changed.notify_all();
  };
  std::thread thread;
  {
    const SignalsBlocked quiet;
    thread = std::thread(connect_all);
  }
  {
    std::unique_lock<std::mutex> lock(progress.mutex);
    while (!progress.is_over) {
      progress.is_given_up = progress.is_given_up || stop.stop_requested() || has_passed(deadline);
      if (progress.is_given_up) {  // again and again: it may have begun to connect only now
        lock.unlock();
        close();
        lock.lock();
      }
      progress.changed.wait_for(lock, kKnock, [&] { return progress.is_over; });
    }
  }
  thread.join();
  const std::string who = str("group '", spec_.name, "': connecting to member ", progress.at);
  if (progress.is_given_up) {
    if (stop.stop_requested()) throw Error(ErrorCode::kCancelled, str(who, " was given up"));
    throw Error(ErrorCode::kDeadlineExceeded, str(who, " took too long"));
  }
  if (progress.failure == nullptr) return;
  try {
    std::rethrow_exception(progress.failure);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kUnavailable, str(who, " failed: ", printable(error.what())));
  }
}

void GlooMesh::interrupt(Use use) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  interrupted_[static_cast<std::size_t>(use)] = true;
  if (use == Use::kCollectives && rings_ != nullptr) rings_->interrupt();
  for (GlooBuffer* const buffer : buffers_[static_cast<std::size_t>(use)]) {
    buffer->buffer_->abortWaitSend();
    buffer->buffer_->abortWaitRecv();
  }
}

void GlooMesh::close() noexcept {
  interrupt(Use::kCollectives);
  interrupt(Use::kWork);
  interrupt(Use::kControl);
  if (context_ == nullptr) return;
  for (int other = 0; other < spec_.size; ++other) {
    if (other == spec_.rank) continue;
    try {
      const auto& pair = context_->getPair(other);
      if (pair != nullptr) pair->close();
    } catch (const std::exception&) {  // it was closed already
    }
  }
}

// --- memory

GlooBuffer::GlooBuffer(GlooMesh& mesh, GlooMesh::Use use, const void* memory, std::size_t bytes)
    : mesh_(mesh),
      use_(use),
      rings_(use == GlooMesh::Use::kCollectives ? mesh.rings_.get() : nullptr),
      // What is sent from is not written to.
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
      memory_(static_cast<std::byte*>(const_cast<void*>(memory))) {
  if (rings_ != nullptr) return;
  buffer_ = mesh.context_->createUnboundBuffer(memory_, bytes);
  const std::lock_guard<std::mutex> lock(mesh_.mutex_);
  mesh_.buffers_[static_cast<std::size_t>(use_)].insert(this);
}

GlooBuffer::~GlooBuffer() {
  if (rings_ != nullptr) {
    rings_->forget(sends_);
    rings_->forget(receives_);
    return;
  }
  const std::lock_guard<std::mutex> lock(mesh_.mutex_);
  mesh_.buffers_[static_cast<std::size_t>(use_)].erase(this);
}

void GlooBuffer::check() const {
  const std::lock_guard<std::mutex> lock(mesh_.mutex_);
  if (mesh_.interrupted_[static_cast<std::size_t>(use_)]) throw GlooInterrupted();
}

void GlooBuffer::send(int to, std::uint64_t slot, std::size_t at, std::size_t bytes) {
  if (rings_ != nullptr) return rings_->send(to, slot, memory_ + at, bytes, sends_);
  check();
  over_gloo([&] { buffer_->send(to, slot, at, bytes); });
}

void GlooBuffer::receive(int from, std::uint64_t slot, std::size_t at, std::size_t bytes) {
  if (rings_ != nullptr) return rings_->receive(from, slot, memory_ + at, bytes, receives_);
  check();
  over_gloo([&] { buffer_->recv(from, slot, at, bytes); });
}

void GlooBuffer::await_sent() {
  if (rings_ != nullptr) return rings_->await(sends_);
  check();
  bool is_done = false;
  over_gloo([&] { is_done = buffer_->waitSend(nullptr, kForever); });
  if (!is_done) throw GlooInterrupted();
}

void GlooBuffer::await_received() {
  if (rings_ != nullptr) return rings_->await(receives_);
  check();
  bool is_done = false;
  over_gloo([&] { is_done = buffer_->waitRecv(nullptr, kForever); });
  if (!is_done) throw GlooInterrupted();
}

}  // namespace lockstep::internal
