// core/base/number_table.h - a hash table of numbers whose keys are stored elsewhere.
//
//   NumberTable table;                                   // numbers of names in a list
//   const std::uint32_t found = table.find(hash, [&](std::uint32_t i) { return names[i] == name; });
//
// The table holds a number and half of its hash in one word, so that a look-up that misses touches no key. It
// grows only when it is told to: insert() needs room and never allocates.
//
// Thread safety: any number of readers, or one writer.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/core/base/large_pages.h"

namespace lockstep::internal {

class NumberTable {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;
  static constexpr std::uint32_t kMaxNumber = 0xFFFFFFFDU;

  NumberTable() noexcept = default;
  NumberTable(const NumberTable&) = default;
  NumberTable(NumberTable&& other) noexcept
      : words_(std::move(other.words_)), used_(std::exchange(other.used_, 0)) {}
  NumberTable& operator=(const NumberTable&) = default;
  NumberTable& operator=(NumberTable&& other) noexcept {
    words_ = std::move(other.words_);
    other.words_.clear();
    used_ = std::exchange(other.used_, 0);
    return *this;
  }
  ~NumberTable() = default;

  // The number with that hash for which is_key(number) holds; kNone: there is none.
  template <class IsKey>
  std::uint32_t find(std::uint64_t hash, IsKey&& is_key) const {
    if (words_.empty()) return kNone;
    const std::size_t mask = words_.size() - 1;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      const std::uint64_t word = words_[at];
      if (word == kFree) return kNone;
      if (((word ^ hash) >> 32U) != 0 || low_half(word) == kErased) continue;
      const std::uint32_t number = low_half(word) - 1;
      if (is_key(number)) return number;
    }
  }
  // May one number more be inserted?
  bool has_room() const { return (used_ + 1) * 4 <= words_.size() * 3; }
  // Empties the table and makes room for this many numbers.
  void reset(std::size_t numbers) {
    const std::size_t size = std::bit_ceil(numbers < 11 ? std::size_t{16} : numbers * 3 / 2);
    std::vector<std::uint64_t> words;
    words.reserve(size);
    prefer_large_pages(words.data(), size * sizeof(words[0]));  // before they are touched
    words.assign(size, kFree);
    words_ = std::move(words);
    used_ = 0;
  }
  // There must be room, and no number with the same key.
  void insert(std::uint64_t hash, std::size_t number) noexcept {
    const std::size_t mask = words_.size() - 1;
    std::size_t at = hash & mask;
    while (words_[at] != kFree && low_half(words_[at]) != kErased) at = (at + 1) & mask;
    if (words_[at] == kFree) ++used_;
    words_[at] = word_for(hash, number);
  }
  // The number must be in the table, with this hash.
  void erase(std::uint64_t hash, std::size_t number) noexcept {
    const std::size_t mask = words_.size() - 1;
    std::size_t at = hash & mask;
    while (low_half(words_[at]) != number + 1) at = (at + 1) & mask;
    words_[at] = kErased;
  }
  // Gives every number a new one; the keys keep their hashes.
  template <class NewNumber>
  void renumber(NewNumber&& new_number) {
    for (std::uint64_t& word : words_) {
      if (word != kFree && low_half(word) != kErased) word = word_for(word, new_number(low_half(word) - 1));
    }
  }
  std::size_t capacity() const { return words_.size(); }

 private:
  // High half: the high half of the hash; low half: the number + 1.
  static constexpr std::uint64_t kFree = 0;
  static constexpr std::uint32_t kErased = 0xFFFFFFFFU;
  static std::uint32_t low_half(std::uint64_t word) { return static_cast<std::uint32_t>(word); }
  static std::uint64_t word_for(std::uint64_t hash, std::size_t number) {
    return (hash >> 32U << 32U) | (number + 1);
  }

  std::vector<std::uint64_t> words_;
  std::size_t used_ = 0;  // words that are not free
};

}  // namespace lockstep::internal
