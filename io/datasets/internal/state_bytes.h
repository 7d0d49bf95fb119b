// io/datasets/internal/state_bytes.h - positions of iterators as bytes: numbers of variable length, and byte strings.
//
// What is read counts as hostile: each number has a bound, each string must be there. Error(kDataLoss) otherwise.
// Thread safety: one thread at a time each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep::internal {

// A state above this is not read, nor written.
inline constexpr std::size_t kMostStateBytes = std::size_t{64} << 20U;

class LOCKSTEP_API StateWriter {
 public:
  void number(std::uint64_t value);
  void bytes(std::string_view value);  // with its length
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class LOCKSTEP_API StateReader {
 public:
  explicit StateReader(std::string_view text) : rest_(text) {}
  // `what` names it in the error.
  std::uint64_t number(std::uint64_t most, std::string_view what);
  std::string_view bytes(std::string_view what);
  bool is_done() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

[[noreturn]] LOCKSTEP_API void damaged_state(std::string_view what);

}  // namespace lockstep::internal
