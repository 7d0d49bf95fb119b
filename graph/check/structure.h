// graph/check/structure.h - when are two graphs the same?
//
// Two graphs have the same structure when they agree in everything that decides what they compute and how it
// reads: names, ops, inputs, controls (as sets), attributes (bit by bit), output specs, devices, regions,
// parameters, results, variables, and the replica of a node; ids, creation sites and the rest of provenance do
// not count. The code of lambda nodes cannot be compared: lambdas are matched by position and name, so two
// graphs with lambdas agree if everything else does. All linear in the number of nodes.
// Thread safety: any thread; the graphs are only read.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

LOCKSTEP_API bool same_structure(const Graph& a, const Graph& b);
// Empty if they agree; else the first difference in words.
LOCKSTEP_API std::string structural_difference(const Graph& a, const Graph& b);
// Equal for graphs of the same structure; the same in every process and on every platform of equal
// endianness.
LOCKSTEP_API std::uint64_t structural_hash(const Graph& graph);

}  // namespace lockstep
