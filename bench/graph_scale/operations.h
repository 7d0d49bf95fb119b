// bench/graph_scale/operations.h - what is done to graphs of growing size: Lockstep's operations, and a
// rival's.
//
// Each function times its operations at one size: the best of `repeats`, in seconds of this process's CPU
// time (all of them use one thread; a neighbour's load is not theirs).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::bench {

struct Timing {
  std::string operation;
  double seconds = 0;
};

struct Measured {
  std::vector<Timing> timings;
  double bytes_a_node = 0;  // live heap after building
};

// About n two-input adds over f32[4] in random layers, a few placeholders and constants. For the passes one
// node in twelve is work: dead, a duplicate, foldable or an identity, in equal parts. Exits with a message
// where an operation gives a wrong result.
Measured measure_lockstep(std::size_t n, int repeats);
// The same layers as a tf::Taskflow of empty tasks: what a graph costs that can only be run.
Measured measure_taskflow(std::size_t n, int repeats);

}  // namespace lockstep::bench
