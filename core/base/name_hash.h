// core/base/name_hash.h - a hash for names from untrusted files.
//
//   NameMap<int> lines;                        // std::unordered_map<std::string, int> that no file can slow down
//   lines["x"] = 1;
//   lines.find(std::string_view("x"));         // without a copy of the name
//
// std::hash is the same in every process: a file can hold thousands of names that all hash to one number, and
// each look-up walks past all of them. This one is keyed with random numbers that a process draws once, so
// nobody outside knows which names collide. Hashes differ from run to run: never write one to a file, and
// never let results depend on the order of such a map.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "lockstep/core/base/export.h"

namespace lockstep {

// All 64 bits are equally well mixed.
LOCKSTEP_API std::size_t hash_name(std::string_view name) noexcept;

struct NameHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view name) const noexcept { return hash_name(name); }
};

template <class T>
using NameMap = std::unordered_map<std::string, T, NameHash, std::equal_to<>>;

}  // namespace lockstep
