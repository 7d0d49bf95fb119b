// strategies/proof/internal/key_table.h - numbers for sequences of words: the heart of value numbering.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "lockstep/core/large_pages.h"

namespace lockstep::internal {

inline std::uint64_t mixed(std::uint64_t state, std::uint64_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15U;
  return state ^ (state >> 29U);
}

inline std::uint64_t hash_bytes(const void* data, std::size_t size) {
  const auto* at = static_cast<const char*>(data);
  std::uint64_t state = mixed(0x2545F4914F6CDD1DU, size);
  for (; size >= 8; size -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    state = mixed(state, word);
  }
  std::uint64_t rest = 0;
  if (size > 0) std::memcpy(&rest, at, size);
  return mixed(state, rest);
}

// Equal sequences of words get equal numbers.
class KeyTable {
 public:
  std::uint32_t number(std::span<const std::uint32_t> key) {
    if (entries_.size() * 2 >= slots_.size()) resize(std::max<std::size_t>(slots_.size() * 2, 1024));
    const std::uint64_t hash = hash_bytes(key.data(), key.size_bytes());
    for (std::size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == kFree) {
        slots_[at] = slot_for(hash, entries_.size());
        entries_.push_back({hash, words_.size(), key.size(), next_});
        words_.insert(words_.end(), key.begin(), key.end());
        return next_++;
      }
      if ((slots_[at] ^ hash) >> 32U != 0) continue;
      const Entry& entry = entries_[slots_[at] & 0xFFFFFFFFU];
      if (entry.hash == hash && entry.size == key.size() &&
          std::equal(key.begin(), key.end(), words_.begin() + static_cast<std::ptrdiff_t>(entry.offset)))
        return entry.number;
    }
  }
  std::uint32_t fresh() { return next_++; }
  std::size_t size() const { return next_; }
  void reserve(std::size_t keys) {
    const auto make_room = [](auto& list, std::size_t count) {
      list.reserve(count);
      prefer_large_pages(list.data(), count * sizeof(list[0]));
    };
    make_room(entries_, keys);
    make_room(words_, keys * 7);
    std::size_t slots = 1024;
    while (slots < keys * 2) slots *= 2;
    make_room(slots_, slots);
    resize(slots);
  }

 private:
  struct Entry {
    std::uint64_t hash;
    std::size_t offset, size;
    std::uint32_t number;
  };
  void resize(std::size_t slots) {
    slots_.assign(slots, kFree);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      std::size_t at = entries_[i].hash & (slots_.size() - 1);
      while (slots_[at] != kFree) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = slot_for(entries_[i].hash, i);
    }
  }
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  // The entry's place, and bits of its hash above, so that a probe that misses touches no entry.
  static std::uint64_t slot_for(std::uint64_t hash, std::size_t entry) {
    return (hash & 0xFFFFFFFF00000000U) | entry;
  }
  std::vector<std::uint64_t> slots_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> words_;
  std::uint32_t next_ = 0;
};

}  // namespace lockstep::internal
