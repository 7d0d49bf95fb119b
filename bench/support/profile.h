// bench/support/profile.h - where the time of a program's runs goes: by op and shape, and outside of kernels.
//
//   Profile profile(program.graph());
//   program.run_into(feeds, results, {.observer = &profile});   // many times
//   std::string table = profile.table(seconds, cpu_seconds, steps);
//
// Times are CPU time of the thread that makes a call, so that a busy machine does not matter. Reading that
// clock twice a call costs half a microsecond, which the last row holds. Of calls on streams of devices they are
// the times that the device took.
// Thread safety: as an Observer's; table() when no run is under way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/run/observer.h"

namespace lockstep::bench {

class Profile final : public Observer {
 public:
  explicit Profile(const Graph& graph) : entries_(graph.id_bound()), graph_(graph) {}
  void on_node_begin(const NodeEvent& event) noexcept override;
  void on_node_end(const NodeEvent& event) noexcept override;
  void on_span(const SpanEvent& event) noexcept override;
  // Of `steps` runs that took `seconds` in all, and that much CPU time on all threads.
  std::string table(double seconds, double cpu_seconds, std::size_t steps) const;

 private:
  struct Entry {
    std::atomic<std::int64_t> nanoseconds = 0;
    std::atomic<std::int64_t> calls = 0;
  };
  std::string describe(const Node& node) const;

  std::vector<Entry> entries_;  // by node
  const Graph& graph_;
};

}  // namespace lockstep::bench
