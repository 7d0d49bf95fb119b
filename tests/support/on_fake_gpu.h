// tests/support/on_fake_gpu.h - the same graph on a fake GPU, and what it gives there.
#pragma once

#include <span>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep::testing {

// The results of as many runs as there are feeds, with everything that has no device on gpu:0; what has no kernel
// there runs on the host. From the third run on its work is replayed.
std::vector<std::vector<Tensor>> run_on_fake_gpu(Graph graph, std::span<const std::vector<Tensor>> feeds);

}  // namespace lockstep::testing
