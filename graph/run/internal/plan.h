// graph/run/internal/plan.h - everything that is decided about a run before it starts, for one set of feed
// shapes.
//
// A Plan is immutable once made and shared by all runs; what changes during a run lives in a RunContext. See
// docs/architecture.md for how the parts fit together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/internal/clusters.h"
#include "lockstep/graph/run/internal/memory_plan.h"

namespace lockstep::internal {

// Where the data of an argument comes from.
struct Location {
  enum class Kind : std::uint8_t {
    kArena,     // index: arena, offset
    kFeed,      // index: parameter
    kResult,    // index: result
    kVariable,  // index: variable of the plan
    kConstant,  // index: constant of the plan
  };
  Kind kind = Kind::kArena;
  std::uint32_t index = 0;
  std::int64_t offset = 0;
};

struct PlannedArg {
  Location location;
  const TensorSpec* spec = nullptr;  // in Plan::specs
};

// What a phase calls: a node's kernel, or a copy that the plan inserted.
struct PlannedPhase {
  NodeId node;
  const Node* source = nullptr;  // the node itself: what an observer is told of, without looking at it
  std::uint32_t kernel = 0;
  std::uint32_t first_arg = 0;
  std::uint32_t inputs = 0;
  std::uint32_t outputs = 0;
  std::int64_t shards = 1;  // of the node; a finishing phase has one call, with shard == shards
  bool finish = false;
  bool starts = false;        // the call may go on after it has returned ...
  bool awaits = false;        // ... until this phase, the next one, which calls nothing
  std::int64_t scratch = -1;  // interval
  std::uint32_t arena = 0;
  std::int32_t replica = -1;                       // -1: for none in particular
  std::int64_t bytes_read = 0, bytes_written = 0;  // by all shards together
};

struct PlannedVariable {
  std::string name;
  bool written = false;
};

struct Plan {
  std::vector<TensorSpec> feeds;                     // the feed specs it was made for
  std::vector<std::unique_ptr<TensorSpec[]>> specs;  // of every value; addresses are stable
  std::vector<KernelFn> kernels;
  std::vector<std::function<void()>> plain_calls;  // kernels without arguments, called without a context
  std::vector<std::int32_t> plain_of;              // by kernel: which plain call it is, or -1
  std::vector<PlannedPhase> phases;
  std::vector<PlannedArg> args;
  std::vector<Tensor> constants;
  std::vector<PlannedVariable> variables;
  std::vector<TensorSpec> results;
  std::vector<Device> arenas;
  Clusters clusters;
  MemoryPlan memory;
  std::int64_t region_planned_bytes = 0;  // of one context for each region of the plan
  std::int64_t region_live_bytes = 0;
  std::vector<std::int64_t> scratch_offsets;  // by phase
  std::size_t lanes = 1;
  bool defers = false;  // it or one of its regions has deferred calls
  bool draws_random = false;
  bool commits = false;  // writes variables or draws random numbers: the step counter advances
  double seconds = 0;
};

// Throws InvalidArgument if shapes do not fit, stay unknown, or a kernel is missing.
LOCKSTEP_API std::unique_ptr<const Plan> make_plan(const Graph& graph, const Runtime& runtime,
                                                   std::span<const TensorSpec> feeds,
                                                   const CompileOptions& options);
// The plan of a region: variables are declared in an outer graph, and `replica`, unless -1, is the one that
// runs.
std::unique_ptr<const Plan> make_region_plan(const Graph& region, const Runtime& runtime,
                                             std::span<const TensorSpec> arguments,
                                             const CompileOptions& options,
                                             const NodeView::VariableSpecs& variables, int replica);

}  // namespace lockstep::internal
