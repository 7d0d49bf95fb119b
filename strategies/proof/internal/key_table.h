// strategies/proof/internal/key_table.h - numbers for sequences of words: the heart of value numbering.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/base/large_pages.h"
#include "lockstep/core/base/number_table.h"
#include "lockstep/core/hasher.h"

namespace lockstep::internal {

// Equal sequences of words get equal numbers.
class KeyTable {
 public:
  std::uint32_t number(std::span<const std::uint32_t> key) {
    const std::uint64_t hash = Hasher().add_bytes(key.data(), key.size_bytes()).result();
    const std::uint32_t found = table_.find(hash, [&](std::uint32_t i) {
      const Entry& entry = entries_[i];
      return entry.hash == hash && entry.size == key.size() &&
             std::equal(key.begin(), key.end(), words_.begin() + static_cast<std::ptrdiff_t>(entry.offset));
    });
    if (found != NumberTable::kNone) return entries_[found].number;
    if (!table_.has_room()) grow(std::max<std::size_t>(entries_.size() * 2, 1024));
    table_.insert(hash, entries_.size());
    entries_.push_back({hash, words_.size(), key.size(), next_});
    words_.insert(words_.end(), key.begin(), key.end());
    return next_++;
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
    grow(keys);
  }

 private:
  struct Entry {
    std::uint64_t hash;
    std::size_t offset, size;
    std::uint32_t number;
  };
  void grow(std::size_t keys) {
    table_.reset(keys);
    for (std::size_t i = 0; i < entries_.size(); ++i) table_.insert(entries_[i].hash, i);
  }
  NumberTable table_;  // of places in entries_
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> words_;
  std::uint32_t next_ = 0;
};

}  // namespace lockstep::internal
