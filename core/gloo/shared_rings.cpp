// core/gloo/shared_rings.cpp - rings in memory that processes share, and how they wait for each other.
#include "lockstep/core/gloo/internal/shared_rings.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <fstream>
#include <new>
#include <random>
#include <string_view>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockstep/core/base/pause.h"
#include "lockstep/core/error.h"
#include "lockstep/core/gloo/internal/mesh.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kAlign = 64;      // of messages in a ring
constexpr std::size_t kRing = 1 << 20;  // bytes of a ring: what fits into a second-level cache
constexpr std::size_t kAtOnce =
    64 << 10;  // bytes that are shown to the receiver at once, while they are in a cache
constexpr std::chrono::microseconds kSpin{20};  // about as long as it takes to wake a thread
constexpr timespec kLook{0, 100'000'000};       // a thread that sleeps looks by itself, whatever wakes it
constexpr const char* kName = "lockstep-rings";

std::size_t rounded(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// This machine, until it is started again, and the network that this process sees.
std::string place_of_process() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::string network(64, '\0');
  const ssize_t length = ::readlink("/proc/self/ns/net", network.data(), network.size());
  if (boot.empty() || length <= 0) return {};
  network.resize(static_cast<std::size_t>(length));
  return boot + network;
}

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 16; ++i) token += "0123456789abcdef"[random() % 16];
  return token;
}

}  // namespace

struct SharedRings::Bell {
  std::atomic<std::uint32_t> rung{0}, sleeps{0};

  // After a change that the owner may wait for, which is stored in sequence with `sleeps`.
  void ring_if_it_sleeps() {
    if (sleeps.load() != 0) ring();
  }
  void ring() {
    rung.fetch_add(1);
    ::syscall(SYS_futex, &rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  void sleep_unless_rung_since(std::uint32_t seen) {
    ::syscall(SYS_futex, &rung, FUTEX_WAIT, seen, &kLook, nullptr, 0);
  }
};

struct SharedRings::Ring {
  alignas(kAlign) std::atomic<std::uint64_t> written{0};
  alignas(kAlign) std::atomic<std::uint64_t> read{0};
  alignas(kAlign) std::byte bytes[kRing];
};

struct SharedRings::Memory {
  char token[16];
  alignas(kAlign) Bell bell;

  // They lie behind, by the rank of the sender.
  Ring& ring_of(int sender) {
    return *std::launder(reinterpret_cast<Ring*>(reinterpret_cast<std::byte*>(this) + sizeof(Memory) +
                                                 static_cast<std::size_t>(sender) * sizeof(Ring)));
  }
  static std::size_t bytes_for(int size) {
    return sizeof(Memory) + static_cast<std::size_t>(size) * sizeof(Ring);
  }
  static Memory* map(int file, int size) {
    void* const at = ::mmap(nullptr, bytes_for(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return nullptr;
    ::madvise(at, bytes_for(size), MADV_DONTFORK);  // a child has no part in the group
    return static_cast<Memory*>(at);
  }
};

std::unique_ptr<SharedRings> SharedRings::make(int rank, int size) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  std::unique_ptr<SharedRings> made(new SharedRings(rank, size));
  const int file = ::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return nullptr;
  made->file_ = file;
  if (::ftruncate(file, static_cast<off_t>(Memory::bytes_for(size))) != 0 ||
      ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return nullptr;
  made->own_ = Memory::map(file, size);
  if (made->own_ == nullptr) return nullptr;
  made->token_ = random_token();
  new (made->own_) Memory;
  for (int sender = 0; sender < size; ++sender) new (&made->own_->ring_of(sender)) Ring;
  std::memcpy(made->own_->token, made->token_.data(), sizeof(Memory::token));
  return made;
}

SharedRings::~SharedRings() {
  close_door();
  if (own_ != nullptr) ::munmap(own_, Memory::bytes_for(size_));
  for (const Peer& peer : peers_) {
    if (peer.memory != nullptr) ::munmap(peer.memory, Memory::bytes_for(size_));
  }
}

// --- finding each other

// "<place> <process> <file> <token>"
std::string SharedRings::description() const {
  return str(place_of_process(), " ", ::getpid(), " ", file_, " ", token_);
}

bool SharedRings::are_near(const std::string& one, const std::string& other) {
  const auto place = [](const std::string& text) { return std::string_view(text).substr(0, text.find(' ')); };
  return !place(one).empty() && place(one) == place(other);
}

bool SharedRings::join(int other, const std::string& description) {
  // Another process of this machine tells the path of a file that it has open. Nothing is opened that is not called as ours are.
  const std::size_t process = description.find(' '), file = description.find(' ', process + 1),
                    token = description.find(' ', file + 1);
  if (token == std::string::npos || description.size() - token - 1 != sizeof(Memory::token)) return false;
  int numbers[2] = {};
  const std::size_t begins[2] = {process + 1, file + 1}, ends[2] = {file, token};
  for (std::size_t i = 0; i < 2; ++i) {
    const char* const end = description.data() + ends[i];
    const auto [at, failure] = std::from_chars(description.data() + begins[i], end, numbers[i]);
    if (failure != std::errc() || at != end) return false;
  }
  const std::string path = str("/proc/", numbers[0], "/fd/", numbers[1]);
  std::string name(256, '\0');
  const ssize_t length = ::readlink(path.c_str(), name.data(), name.size());
  if (length <= 0 || !std::string_view(name).starts_with(str("/memfd:", kName))) return false;
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return false;
  struct stat found {};
  Memory* memory = nullptr;
  if (::fstat(opened, &found) == 0 && static_cast<std::size_t>(found.st_size) == Memory::bytes_for(size_))
    memory = Memory::map(opened, size_);
  ::close(opened);
  if (memory == nullptr) return false;
  if (std::memcmp(memory->token, description.data() + token + 1, sizeof(Memory::token)) != 0) {
    ::munmap(memory, Memory::bytes_for(size_));
    return false;
  }
  peers_[static_cast<std::size_t>(other)].memory = memory;
  return true;
}

void SharedRings::close_door() noexcept {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

// --- messages

void SharedRings::send(int to, std::uint64_t slot, const void* from, std::size_t bytes, RingTransfers& of) {
  if (is_over()) throw GlooInterrupted();
  ++of.under_way;
  peers_[static_cast<std::size_t>(to)].sends.push_back(
      {.message = {slot, bytes}, .from = static_cast<const std::byte*>(from), .of = &of});
  give(to);
}

void SharedRings::receive(int from, std::uint64_t slot, void* to, std::size_t bytes, RingTransfers& of) {
  if (is_over()) throw GlooInterrupted();
  ++of.under_way;
  peers_[static_cast<std::size_t>(from)].receives[slot].push_back({static_cast<std::byte*>(to), bytes, &of});
}

void SharedRings::await(RingTransfers& of) {
  static const bool spins = std::thread::hardware_concurrency() > 1;
  auto spins_until = std::chrono::steady_clock::time_point::min();
  Bell& bell = own_->bell;
  while (of.ended == 0) {
    const std::uint32_t seen = bell.rung.load();
    if (is_over()) throw GlooInterrupted();
    if (move()) {
      spins_until = std::chrono::steady_clock::time_point::min();
      continue;
    }
    if (spins && spins_until == std::chrono::steady_clock::time_point::min())
      spins_until = std::chrono::steady_clock::now() + kSpin;
    if (spins && std::chrono::steady_clock::now() < spins_until) {
      for (int i = 0; i < 8; ++i) pause_briefly();
      continue;
    }
    bell.sleeps.store(1);
    if (!move()) bell.sleep_unless_rung_since(seen);
    bell.sleeps.store(0);
  }
  --of.ended;
}

// What has come first, since it makes room for what is to go.
bool SharedRings::move() {
  bool moved = false;
  for (int other = 0; other < size_; ++other) {
    if (other != rank_ && take(other)) moved = true;
  }
  for (int other = 0; other < size_; ++other) {
    if (other != rank_ && give(other)) moved = true;
  }
  return moved;
}

bool SharedRings::take(int from) {
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  Ring& ring = own_->ring_of(from);
  std::uint64_t read = ring.read.load(std::memory_order_relaxed);
  bool moved = false;
  while (true) {
    const std::uint64_t there = ring.written.load() - read;
    if (!peer.is_begun) {
      if (there == 0) return moved;
      std::memcpy(&peer.message, ring.bytes + read % kRing, sizeof(Message));
      peer.is_begun = true;
      peer.done = 0;
      read += kAlign;
      ring.read.store(read);
      continue;
    }
    std::deque<Incoming>& expected = peer.receives[peer.message.slot];
    if (expected.empty()) return moved;  // nobody waits for it yet
    const Incoming into = expected.front();
    if (peer.message.bytes > into.most) {
      is_broken_ = true;
      throw GlooLost(
          str("a message of ", peer.message.bytes, " bytes came where ", into.most, " were expected"));
    }
    const std::uint64_t left = peer.message.bytes - peer.done;
    if (left > 0 && there == 0) return moved;
    const std::uint64_t some = std::min({left, there, std::uint64_t{kAtOnce}, kRing - read % kRing});
    if (some > 0) std::memcpy(into.to + peer.done, ring.bytes + read % kRing, some);
    peer.done += some;
    read += rounded(some);
    ring.read.store(read);
    moved = true;
    if (peer.done == peer.message.bytes) {
      expected.pop_front();
      --into.of->under_way;
      ++into.of->ended;
      peer.is_begun = false;
    }
    peer.memory->bell.ring_if_it_sleeps();
  }
}

bool SharedRings::give(int to) {
  Peer& peer = peers_[static_cast<std::size_t>(to)];
  if (peer.sends.empty()) return false;
  Ring& ring = peer.memory->ring_of(rank_);
  std::uint64_t written = ring.written.load(std::memory_order_relaxed);
  bool moved = false;
  while (!peer.sends.empty()) {
    Outgoing& next = peer.sends.front();
    std::uint64_t room = kRing - (written - ring.read.load());
    if (!next.is_begun) {
      if (room < 2 * kAlign) return moved;
      std::memcpy(ring.bytes + written % kRing, &next.message, sizeof(Message));
      next.is_begun = true;
      written += kAlign;  // it is shown with the first of its bytes
      room -= kAlign;
    }
    const std::uint64_t left = next.message.bytes - next.done;
    if (left > 0 && room == 0) return moved;
    const std::uint64_t some = std::min({left, room, std::uint64_t{kAtOnce}, kRing - written % kRing});
    if (some > 0) std::memcpy(ring.bytes + written % kRing, next.from + next.done, some);
    next.done += some;
    written += rounded(some);
    ring.written.store(written);
    moved = true;
    if (next.done == next.message.bytes) {
      --next.of->under_way;
      ++next.of->ended;
      peer.sends.pop_front();
    }
    peer.memory->bell.ring_if_it_sleeps();
  }
  return moved;
}

void SharedRings::forget(const RingTransfers& of) noexcept {
  if (of.under_way == 0) return;
  is_broken_ = true;
  for (Peer& peer : peers_) {
    std::erase_if(peer.sends, [&of](const Outgoing& one) { return one.of == &of; });
    for (auto& [slot, expected] : peer.receives)
      std::erase_if(expected, [&of](const Incoming& one) { return one.of == &of; });
  }
}

void SharedRings::interrupt() noexcept {
  is_interrupted_.store(true);
  own_->bell.ring();
}

}  // namespace lockstep::internal
