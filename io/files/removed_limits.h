// io/files/removed_limits.h - types of limits that ReadLimits replaced: using one is a compile error that
// names ReadLimits.
//
// docs/migration.md lists all of them. None of them can be instantiated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

namespace internal {

template <class>
inline constexpr bool kStillLimits = false;

}  // namespace internal

template <class Unused = void>
struct NpzLimits {
  static_assert(internal::kStillLimits<Unused>,
                "NpzLimits is ReadLimits now: include lockstep/core/read_limits.h");
  std::uint64_t max_bytes = 0;
  std::size_t max_entries = 0;
};

template <class Unused = void>
struct CheckpointLimits {
  static_assert(internal::kStillLimits<Unused>,
                "CheckpointLimits is ReadLimits now: include lockstep/core/read_limits.h");
  std::uint64_t max_index_bytes = 0;
  std::uint64_t max_bytes = 0;
};

template <class Unused = void>
struct GraphFileLimits {
  static_assert(internal::kStillLimits<Unused>,
                "GraphFileLimits is ReadLimits now: include lockstep/core/read_limits.h");
  std::uint64_t max_bytes = 0;
  std::uint64_t max_fill_bytes = 0;
};

template <class Unused = void>
struct ParseLimits {
  static_assert(internal::kStillLimits<Unused>,
                "ParseLimits is ReadLimits now: include lockstep/core/read_limits.h");
  std::uint64_t splat_bytes = 0;
};

}  // namespace lockstep
