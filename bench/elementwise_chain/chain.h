// bench/elementwise_chain/chain.h - twelve element-wise ops, as Lockstep's nodes and as one loop by hand.
//
//   cheap    arithmetic, comparisons and signs only: memory decides
//   curved   the same with tanh and sigmoid in it: arithmetic decides
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/graph/build/value.h"

namespace lockstep::bench {

enum class Chain : unsigned char { kCheap, kCurved };
inline constexpr std::size_t kChainOps = 12;

inline const char* name_of(Chain chain) { return chain == Chain::kCheap ? "cheap" : "curved"; }

Value chain_of_nodes(Chain chain, const Value& x);
// The same numbers in one pass over memory, written as one would who needs just this.
void chain_by_hand(Chain chain, std::span<const float> x, std::span<float> y);

}  // namespace lockstep::bench
