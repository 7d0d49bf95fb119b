// core/random.h - counter-based random numbers: Philox 4x32-10 (Salmon et al., 2011).
//
// The same (key, counter) always gives the same bits, on any thread and in any order, so that random ops
// split freely and replays are exact. Checked against the published test vectors.
// Thread safety: plain values and pure functions.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

class Philox {
 public:
  using Block = std::array<std::uint32_t, 4>;
  using Key = std::array<std::uint32_t, 2>;

  // Ten rounds over one counter block.
  static constexpr Block generate(Block counter, Key key) {
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter[0];
      const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter[2];
      counter = {static_cast<std::uint32_t>(b >> 32U) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
                 static_cast<std::uint32_t>(a >> 32U) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
      key[0] += 0x9E3779B9U;
      key[1] += 0xBB67AE85U;
    }
    return counter;
  }

  // [0, 1) with 24 random bits, and with 53.
  static constexpr float to_unit_float(std::uint32_t bits) {
    return static_cast<float>(bits >> 8U) * 0x1p-24F;
  }
  static constexpr double to_unit_double(std::uint32_t high, std::uint32_t low) {
    return static_cast<double>(((std::uint64_t{high} << 32U) | low) >> 11U) * 0x1p-53;
  }
};

// The source that a random op draws from; nothing in it depends on node ids, threads or order.
struct RandomStream {
  std::uint64_t seed = 0;     // of the run
  std::uint64_t key = 0;      // of the op, given when the graph is made
  std::uint32_t replica = 0;  // which replica draws
  std::uint64_t step = 0;     // the step counter

  // The block-th group of four 32-bit words.
  constexpr Philox::Block block(std::uint64_t index) const {
    return Philox::generate(counter(index), philox_key());
  }
  // The input of Philox: seed and key are mixed into its key; step, replica and index make the counter, whose
  // first two words are the index.
  constexpr Philox::Key philox_key() const {
    const std::uint64_t mixed = mix(seed ^ mix(key));
    return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32U)};
  }
  constexpr Philox::Block counter(std::uint64_t index) const {
    const std::uint64_t mixed = mix(seed ^ mix(key));
    const std::uint64_t where = mix((step << 1U) ^ (std::uint64_t{replica} << 40U) ^ mix(mixed));
    return {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32U),
            static_cast<std::uint32_t>(where), static_cast<std::uint32_t>(where >> 32U)};
  }

 private:
  static constexpr std::uint64_t mix(std::uint64_t x) {  // SplitMix64's finaliser: a bijection
    x += 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31U);
  }
};

}  // namespace lockstep
