// tests/support/test_devices.h - the devices that tests of programs and strategies run on.
//
// They are the CPU's. LOCKSTEP_TEST_DEVICES in the environment names others, which every runtime of the process then has
// (set_default_backends): gpu, those of a FakeGpu; connected, those of one that connects them (FakeGpuOptions::connected);
// card, logical devices of this machine's first card. ctest runs the same programs on CPUs and on FakeGpus.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/run/compile.h"

namespace lockstep::testing {

bool on_gpus();  // fake ones, or a card's
bool on_card();
std::string test_device(int index);                // "cpu:1", "gpu:1"
std::vector<std::string> test_devices(int count);  // the first ones
// The graph with what the first of them computes placed there; on CPUs as it is.
Graph on_test_devices(Graph graph);

// compile(), for these devices.
template <class... Options>
Program compile_here(Graph graph, const Runtime& runtime, const Options&... options) {
  return compile(on_test_devices(std::move(graph)), runtime, options...);
}

}  // namespace lockstep::testing
