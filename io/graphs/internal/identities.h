// io/graphs/internal/identities.h - node identities that survive files.
//
// Inside a process an identity is a number from one counter (docs/decisions/0003-identities.md), which means
// nothing in another process. In a file an identity is a pair: the origin, 128 random bits that a process
// draws once, and the number that the node had there. Loading gives each pair that is new to this process a
// number of its own, and remembers it: two files of one origin share identities once they are loaded here,
// numbers of different processes never collide, and a node that was loaded is written again under the pair it
// came with.
//
// The memory is bounded: the latest 262,144 blocks of 64 numbers each, some 40 MB, so that a program that
// reads files of strangers for months does not grow. A node of a forgotten block is written under this
// process's own origin, and no longer shares its identity with nodes that are loaded after that.
//
// Thread safety: any thread.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::internal {

using OriginId = std::array<std::uint64_t, 2>;

// 32 hexadecimal digits, and back; throws InvalidArgument for anything else.
std::string to_string(const OriginId& origin);
OriginId parse_origin(std::string_view text);

struct LastingIdentity {
  OriginId origin{};
  std::uint64_t number = 0;
  friend auto operator<=>(const LastingIdentity&, const LastingIdentity&) = default;
};

// The pair of a number of this process. 0 means no identity and stays 0.
LastingIdentity lasting_identity(std::uint64_t local);
// The number of a pair in this process.
std::uint64_t local_identity(const LastingIdentity& identity);

}  // namespace lockstep::internal
