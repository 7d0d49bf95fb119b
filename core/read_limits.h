// core/read_limits.h - limits on the memory and work that reading a file may cost.
//
//   Graph graph = load_graph("step.lkg", {.file_bytes = 1 << 20});       // for untrusted files
//   auto feeds = load_npz("feeds.npz", ReadLimits::unlimited());         // for trusted files
//
// A file can ask for far more than it holds: "a billion zeros" is ten bytes of text. The memory that a reader
// takes for a file is therefore bounded by the file's own size: base_bytes + bytes_per_byte x its bytes. A
// file that asks for more is refused before the memory is taken (InvalidArgument, which names the limit). The
// readers of graphs, tensors, checkpoints and snapshots all take these limits. docs/security.md says what
// else holds.
//
// Thread safety: a ReadBudget belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/core/base/export.h"

namespace lockstep {

struct ReadLimits {
  // A larger file is refused before it is read. A source of unknown size (a pipe, a device) is read up to
  // base_bytes only.
  std::uint64_t file_bytes = std::uint64_t{1} << 34U;
  std::uint64_t base_bytes = std::uint64_t{64} << 20U;
  std::uint64_t bytes_per_byte = 4;

  // For files that are trusted: whatever they ask for.
  static constexpr ReadLimits unlimited() {
    constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
    return {.file_bytes = all, .base_bytes = all, .bytes_per_byte = 1};
  }
  // The memory that reading a file of `size` bytes may take, in bytes.
  constexpr std::uint64_t memory_for(std::uint64_t size) const {
    constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
    if (bytes_per_byte != 0 && size > (all - base_bytes) / bytes_per_byte) return all;
    return base_bytes + bytes_per_byte * size;
  }
};

// What is left of the limit while one file is read. A reader takes from it before it allocates.
class LOCKSTEP_API ReadBudget {
 public:
  ReadBudget(const ReadLimits& limits, std::uint64_t file_bytes)
      : limit_(limits.memory_for(file_bytes)), left_(limit_), file_bytes_(file_bytes) {}
  // Throws InvalidArgument if fewer than `bytes` are left; the error says what would take them and how to
  // raise the limit.
  void take(std::uint64_t bytes, const char* what) {
    if (bytes > left_) [[unlikely]]
      refuse(bytes, what);
    left_ -= bytes;
  }
  std::uint64_t left() const { return left_; }

 private:
  [[noreturn]] void refuse(std::uint64_t bytes, const char* what) const;
  std::uint64_t limit_;
  std::uint64_t left_;
  std::uint64_t file_bytes_;
};

}  // namespace lockstep
