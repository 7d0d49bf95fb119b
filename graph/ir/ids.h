// graph/ir/ids.h - distinct types for the small numbers that travel instead of pointers.
//
// Thread safety: plain values.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

namespace lockstep {

template <class Tag>
struct Id {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t value = kNone;

  constexpr Id() = default;
  constexpr explicit Id(std::uint32_t v) : value(v) {}
  constexpr explicit Id(std::size_t v) : value(static_cast<std::uint32_t>(v)) {}
  constexpr bool valid() const { return value != kNone; }
  constexpr std::size_t index() const { return value; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

using NodeId = Id<struct NodeTag>;      // a node of one graph
using StringId = Id<struct StringTag>;  // a string interned in one graph

// One output of one node.
struct ValueId {
  NodeId node;
  std::uint32_t output = 0;
  constexpr bool valid() const { return node.valid(); }
  friend constexpr auto operator<=>(const ValueId&, const ValueId&) = default;
};

}  // namespace lockstep

template <class Tag>
struct std::hash<lockstep::Id<Tag>> {
  std::size_t operator()(lockstep::Id<Tag> id) const noexcept { return id.value; }
};
template <>
struct std::hash<lockstep::ValueId> {
  std::size_t operator()(lockstep::ValueId v) const noexcept {
    return (std::size_t{v.node.value} << 8U) ^ v.output;
  }
};
