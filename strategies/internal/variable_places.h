// strategies/internal/variable_places.h - where variables stand in their graph's list, for those who ask very often.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/strategies/internal/key_table.h"

namespace lockstep::internal {

// Answers as Graph::find_variable does, out of one flat table: with a hundred thousand variables an answer is a wait for memory, and
// this one waits for the table and for the name. The list must outlive it, unchanged.
class VariablePlaces {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};

  explicit VariablePlaces(const std::vector<VariableDecl>& variables)
      : variables_(variables), slots_(std::bit_ceil(variables.size() * 2 + 1)) {
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const std::uint64_t hash = hash_of(variables[i].name);
      std::size_t at = hash & (slots_.size() - 1);
      while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = (hash & kHashBits) | (i + 1);
    }
  }

  // The place of the variable of that name; kNone where there is none.
  std::size_t find(std::string_view name) const {
    const std::uint64_t hash = hash_of(name);
    for (std::size_t at = hash & (slots_.size() - 1); slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
      if (((slots_[at] ^ hash) & kHashBits) != 0) continue;
      const std::size_t place = (slots_[at] & ~kHashBits) - 1;
      if (variables_[place].name == name) return place;
    }
    return kNone;
  }

 private:
  static constexpr std::uint64_t kHashBits = 0xFFFFFFFF00000000U;
  static std::uint64_t hash_of(std::string_view name) { return hash_bytes(name.data(), name.size()); }

  const std::vector<VariableDecl>& variables_;
  std::vector<std::uint64_t> slots_;  // 0: free; place + 1, and bits of the hash above
};

}  // namespace lockstep::internal
