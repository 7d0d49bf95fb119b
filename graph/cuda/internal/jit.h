// graph/cuda/internal/jit.h - kernels that are compiled while a plan is made.
//
// NVRTC compiles the source for the card that is asked for. What was compiled is kept for the process and, where there is
// a cache folder (LOCKSTEP_CACHE, else XDG_CACHE_HOME/lockstep, else HOME/.cache/lockstep), in a file, by source, card and
// version of NVRTC. Contraction is off, so that what is fused gives the bits of what is not.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/compute_device.h"

namespace lockstep::internal::cuda {

// The machine code of the source for cards of a compute capability such as 90. Needs no card. Throws Error with the
// compiler's log. `warnings`: gets the log of what compiles; nothing if it comes from a file.
std::string compile_source(const std::string& source, int capability, std::string* warnings = nullptr);

inline constexpr unsigned kThreads = 256;      // of a block
inline constexpr unsigned kWarp = 32;          // threads that a card runs in step
inline constexpr std::size_t kMostCards = 64;  // of a machine
inline constexpr std::size_t kAccess = 16;     // bytes that a thread reads or writes at a time, at most
// Elements that are counted in 32 bits, with room for a step beyond them.
inline constexpr std::int64_t kMostInWords = (std::int64_t{1} << 31) - 1;

// The arguments of a kernel: a struct of words of 8 bytes each.
class Arguments {
 public:
  static constexpr std::size_t kMost = 512;  // 4 KiB, which every driver takes

  Arguments& add(const void* address) {
    return add(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(address)));
  }
  Arguments& add(std::int64_t number) { return add(static_cast<std::uint64_t>(number)); }
  Arguments& add(std::uint32_t number) { return add(std::uint64_t{number}); }
  Arguments& add(std::uint64_t word) {
    words_.at(size_++) = word;
    return *this;
  }
  Arguments& add(std::span<const std::int64_t> numbers) {
    for (const std::int64_t number : numbers) add(number);
    return *this;
  }
  void* data() { return words_.data(); }

 private:
  std::array<std::uint64_t, kMost>
      words_;  // NOLINT(cppcoreguidelines-pro-type-member-init): as far as it is filled
  std::size_t size_ = 0;
};

// Enough blocks for any card to be busy; each thread takes several items where there are more.
inline unsigned blocks_for(std::int64_t items, unsigned threads) {
  constexpr std::int64_t kMostBlocks = std::int64_t{8} * 132;
  return static_cast<unsigned>(std::clamp<std::int64_t>((items + threads - 1) / threads, 1, kMostBlocks));
}

// For tests: sources of kernels that the calling thread makes go there too; null: no more.
void collect_sources(std::vector<std::string>* sources);

// The function "kernel" of a source, which takes one struct. It is compiled when it is first launched on a card of its
// kind, and never unloaded. Copies are the same kernel. Thread safety: any thread.
class JitKernel {
 public:
  explicit JitKernel(std::string source);
  void launch(Stream& stream, unsigned blocks, unsigned threads, Arguments& arguments) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::internal::cuda
