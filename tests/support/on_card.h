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
// Equal, but for what functions of a card and another order of sums make of floating values.
void expect_near_tensors(std::span<const Tensor> actual, std::span<const Tensor> expected);

}  // namespace lockstep::testing
