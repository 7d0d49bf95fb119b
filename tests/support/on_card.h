// tests/support/on_card.h - the same graph on a card of this machine, and what it gives there.
#pragma once

#include <span>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep::testing {

// A gpu with the kernel set "cuda"?
bool has_card();
// The results of as many runs as there are feeds, with everything that has no device on gpu:0; what has no kernel there
// runs on the host. From the third run on its work is replayed. None: there is no card.
std::vector<std::vector<Tensor>> run_on_card(Graph graph, std::span<const std::vector<Tensor>> feeds);
// The graph gives there what the interpreter gives, in three runs: equal, where it moves, casts, compares, adds, multiplies,
// divides and takes roots; else but for what functions of a card and another order of sums make of floating values: 2e-6 for f32
// (1e-12 for f64, 2e-3 for f16, 1.6e-2 for bf16), times 1, the element's size, or that of the result's largest element where
// elements are summed, whichever is larger. Where its results do not change from run to run, what is put on
// streams, what is recorded and what is replayed are the same bits.
void expect_same_on_card(const Graph& graph, const std::vector<Tensor>& feeds);
// Two graphs there: to the bit, but for what a NaN holds.
void expect_same_bits_on_card(const Graph& graph, const Graph& other, const std::vector<Tensor>& feeds);

}  // namespace lockstep::testing
