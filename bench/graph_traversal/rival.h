// bench/graph_traversal/rival.h - one way to run a graph many times: built once, then run.
//
// Every rival, Lockstep included, is one source file that implements this. The constructor makes the threads,
// build() the graph; run(n) runs it n times, each run complete before the next begins.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "body.h"
#include "shape.h"

namespace lockstep::bench {

struct BuildTimes {
  double build = 0;    // seconds: from the shape to a graph
  double compile = 0;  // seconds: from there to something that runs; 0 where there is no such step
};

class Rival {
 public:
  virtual ~Rival() = default;
  // One slot per node, which must outlive the rival's last run.
  virtual BuildTimes build(const Shape& shape, const Body& body, std::span<Slot> slots) = 0;
  virtual void run(std::size_t times) = 0;
  // What it made of the graph, where there is something to say.
  virtual std::string remark() const { return {}; }
};

// A loop over std::function in topological order: no scheduler at all.
std::unique_ptr<Rival> make_sequential();
// `workers` threads work on a run, the calling one included where it takes part.
std::unique_ptr<Rival> make_taskflow(std::size_t workers);
std::unique_ptr<Rival> make_tbb_flow(std::size_t workers);
std::unique_ptr<Rival> make_tbb_flow_lightweight(std::size_t workers);
std::unique_ptr<Rival> make_lockstep(std::size_t workers);

}  // namespace lockstep::bench
