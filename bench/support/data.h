// bench/support/data.h - the numbers every participant trains on and starts from; training_step/worker.py has
// the Python side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::bench {

inline std::uint32_t bits(std::uint32_t seed, std::uint32_t index) {
  std::uint32_t h = index * 0x9E3779B1U + seed * 0x85EBCA6BU;
  h = (h ^ (h >> 16U)) * 0x7FEB352DU;
  h = (h ^ (h >> 15U)) * 0x846CA68BU;
  return h ^ (h >> 16U);
}

// Numbers in [-half, half).
inline void fill_uniform(std::span<float> out, std::uint32_t seed, float half) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint32_t h = bits(seed, static_cast<std::uint32_t>(i)) >> 8U;
    out[i] = (static_cast<float>(h) * 0x1p-23F - 1.0F) * half;
  }
}

// Classes 0 to 9.
inline void fill_labels(std::span<std::int64_t> out, std::uint32_t seed) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::int64_t>(bits(seed, static_cast<std::uint32_t>(i)) % 10U);
  }
}

}  // namespace lockstep::bench
