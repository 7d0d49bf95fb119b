// io/graphs/identities.cpp - node identities that survive files.
#include "lockstep/io/graphs/internal/identities.h"

#include <charconv>
#include <map>
#include <mutex>
#include <random>

#include "lockstep/core/error.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kDigits = 16;  // of one of the two halves

// Numbers are remembered in blocks of 64, since those of one file lie close together.
constexpr std::uint64_t kBlock = 64;
constexpr std::size_t kMaxBlocks = std::size_t{1} << 18U;  // some 40 MB

class IdentityBook {
 public:
  IdentityBook() {
    std::random_device random;
    for (std::uint64_t& half : own_) half = (std::uint64_t{random()} << 32U) | random();
  }

  LastingIdentity lasting(std::uint64_t local) {
    const std::lock_guard lock(mutex_);
    const auto block = block_of(local);
    if (block == loaded_.end()) return {own_, local};
    return {block->second.origin, block->second.number * kBlock + (local - block->first)};
  }

  std::uint64_t local(const LastingIdentity& identity) {
    const std::lock_guard lock(mutex_);
    // A number that the counter has not reached is not an identity of this process, whatever the file says.
    // Nor is a number that was given to a loaded node: it was never written under this process's origin.
    const bool own = identity.origin == own_ && identity.number <= newest_seen(identity.number) &&
                     block_of(identity.number) == loaded_.end();
    if (own) return identity.number;
    const LastingIdentity block{identity.origin, identity.number / kBlock};
    auto found = known_.find(block);
    if (found == known_.end()) {
      const std::uint64_t first = Graph::new_identity(kBlock);
      loaded_.emplace(first, block);
      found = known_.emplace(block, first).first;
      if (loaded_.size() > kMaxBlocks) forget_oldest();
    }
    return found->second + identity.number % kBlock;
  }

 private:
  // The pair of a block: its number counts blocks, not nodes.
  using Blocks = std::map<std::uint64_t, LastingIdentity>;  // by the block's first number in this process

  Blocks::const_iterator block_of(std::uint64_t local) const {
    auto next = loaded_.upper_bound(local);
    if (next == loaded_.begin()) return loaded_.end();
    --next;
    return local - next->first < kBlock ? next : loaded_.end();
  }

  void forget_oldest() {
    known_.erase(loaded_.begin()->second);
    loaded_.erase(loaded_.begin());
  }

  // The counter's value at the last look; looks again only if `wanted` is above it.
  std::uint64_t newest_seen(std::uint64_t wanted) {
    if (wanted > newest_) newest_ = Graph::new_identity();
    return newest_;
  }

  std::mutex mutex_;
  OriginId own_{};
  std::uint64_t newest_ = 0;
  std::map<LastingIdentity, std::uint64_t> known_;
  Blocks loaded_;
};

IdentityBook& book() {
  static IdentityBook instance;
  return instance;
}

}  // namespace

std::string to_string(const OriginId& origin) {
  std::string text;
  for (const std::uint64_t half : origin) {
    std::array<char, kDigits> digits{};
    const char* end = std::to_chars(digits.data(), digits.data() + digits.size(), half, 16).ptr;
    const auto count = static_cast<std::size_t>(end - digits.data());
    text.append(kDigits - count, '0').append(digits.data(), count);
  }
  return text;
}

OriginId parse_origin(std::string_view text) {
  OriginId origin{};
  bool good = text.size() == 2 * kDigits;
  for (std::size_t i = 0; good && i < origin.size(); ++i) {
    const char* begin = text.data() + i * kDigits;
    const auto [stop, error] = std::from_chars(begin, begin + kDigits, origin[i], 16);
    good = error == std::errc() && stop == begin + kDigits;
  }
  if (!good || to_string(origin) != text) {
    throw InvalidArgument(
        str("an origin is 32 hexadecimal digits in lower case, got '", text.substr(0, 40), "'"));
  }
  return origin;
}

LastingIdentity lasting_identity(std::uint64_t local) { return book().lasting(local); }

std::uint64_t local_identity(const LastingIdentity& identity) {
  return identity.number == 0 ? 0 : book().local(identity);
}

}  // namespace lockstep::internal
