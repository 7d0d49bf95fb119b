// graph/run/internal/plan.h - everything that is decided about a run before it starts, for one set of feeds.
//
// A plan is for feeds of certain shapes in certain memories, and for results in certain memories. Every value
// has one memory: that of the device where it is made (graph/ir/placement.h), of the caller's tensor, of the
// stored variable. Where a node needs it in another, the plan moves it; constants are there from the start.
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

#include "lockstep/core/compute_device.h"
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

// A value that goes into a plan or comes out of it.
struct PlacedSpec {
  TensorSpec spec;
  MemoryId memory = kHostMemory;
  friend bool operator==(const PlacedSpec&, const PlacedSpec&) = default;
};

struct PlannedArg {
  Location location;
  const TensorSpec* spec = nullptr;  // in Plan::specs
  std::int32_t copy_of = -1;         // the feed, in the same memory, whose copy this is; -1: none
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
  bool starts = false;           // the call may go on after it has returned ...
  bool awaits = false;           // ... until this phase, which calls nothing
  bool copies = false;           // a value on behalf of the node, which has a kernel of its own or none
  std::uint32_t started_by = 0;  // of a phase that awaits
  std::int64_t scratch = -1;     // interval
  std::uint32_t arena = 0;
  std::int32_t replica = -1;                       // -1: for none in particular
  std::int64_t bytes_read = 0, bytes_written = 0;  // by all shards together
  double bytes_moved = 0, multiply_adds = 0;       // the same, as in NodeEvent
  // Of plans with streams (graph/run/internal/segments.h):
  std::int32_t stream = -1;   // its calls are put on this one, as part of a segment
  std::int32_t segment = -1;  // it puts this one on streams
  std::int32_t event = -1;    // it awaits this one
};

// A stream that the plan uses, and what it does there.
struct PlannedStream {
  Device device;
  StreamRole role = StreamRole::kCompute;
};
struct DeviceCall {
  std::uint32_t phase = 0;
  std::uint32_t shard = 0;
  std::uint32_t first_wait = 0,
                end_wait = 0;  // in Plan::device_waits: events that its stream waits for first
  std::int32_t event = -1;     // is set after it; -1: none
};
struct PlannedEvent {
  std::uint32_t stream = 0;   // that sets it
  std::int32_t body_of = -1;  // the segment in whose body it is set; -1: outside of bodies
};
// Device calls, in the order in which they are put on streams. Those of the body use the same addresses in
// each run of a context, and so can be recorded. The calls in front of it read feeds; those after it write
// results, or values that the host awaits.
struct Segment {
  std::uint32_t begin = 0, body_begin = 0, body_end = 0, end = 0;
  bool commit = false;
  // The host does nothing between it and the commit, which is the next segment: their bodies can be recorded as one. Its results
  // are written by the back of that segment.
  bool joins = false;
  std::vector<std::uint32_t> streams;  // of the body; it is recorded on the first
  Decision records = Decision::yes();  // a no says why the body is put on streams call by call in each run
};

struct PlannedVariable {
  std::string name;
  bool written = false;
  MemoryId memory = kHostMemory;
};

struct Plan {
  std::vector<PlacedSpec> feeds;                     // the feeds it was made for
  std::vector<std::unique_ptr<TensorSpec[]>> specs;  // of every value; addresses are stable
  std::vector<KernelFn> kernels;
  std::vector<std::function<void()>> plain_calls;  // kernels without arguments, called without a context
  std::vector<std::int32_t> plain_of;              // by kernel: which plain call it is, or -1
  std::vector<PlannedPhase> phases;
  std::vector<PlannedArg> args;
  std::vector<Tensor> constants;
  std::vector<PlannedVariable> variables;
  std::vector<PlacedSpec> results;
  bool results_where_made = true;  // each result is in the memory where it is made
  std::vector<Device> arenas;
  // From this one on each is used by one stream, and runs of the plan are put there one after another: its contexts share them.
  std::size_t first_shared_arena = 0;
  std::vector<PlannedStream> streams;
  std::vector<Segment> segments;
  std::vector<DeviceCall> device_calls;
  std::vector<std::uint32_t> device_waits;
  std::vector<PlannedEvent> events;
  Clusters clusters;  // of the phases that the host runs
  MemoryPlan memory;
  std::int64_t region_planned_bytes = 0;  // of one context for each region of the plan
  std::int64_t region_live_bytes = 0;
  struct Scratch {
    std::uint32_t arena = 0;
    std::int64_t offset = -1;  // -1: none
  };
  std::vector<Scratch> scratch;  // by phase
  std::size_t lanes = 1;
  bool defers = false;  // it or one of its regions has calls that go on after they have returned
  bool draws_random = false;
  bool regions_on_streams = false;
  bool refuses = false;          // a call of a device with streams may refuse its data
  bool gate_on_streams = false;  // the commit follows on streams, without the host waiting for them
  bool runs_ahead = false;       // a run may return while it is on streams
  bool commits = false;          // writes variables or draws random numbers: the step counter advances
  double seconds = 0;
};

// What a plan is made for.
struct PlanRequest {
  std::span<const PlacedSpec> feeds;
  std::span<const MemoryId> results = {};  // where results are wanted; empty: wherever they are made
  // Of variables that the graph uses. For a region they are declared in an outer graph.
  NodeView::VariableSpecs variable_specs;
  std::function<MemoryId(const std::string& name)> variable_memory;
  int replica = -1;  // the replica that a region runs for; -1: each node states its own
};

// Throws InvalidArgument if shapes do not fit, stay unknown, or a kernel is missing.
LOCKSTEP_API std::unique_ptr<const Plan> make_plan(const Graph& graph, const Runtime& runtime,
                                                   const PlanRequest& request, const CompileOptions& options);
// The same for feeds, variables and results on the host.
LOCKSTEP_API std::unique_ptr<const Plan> make_host_plan(const Graph& graph, const Runtime& runtime,
                                                        std::span<const TensorSpec> feeds,
                                                        const CompileOptions& options);

}  // namespace lockstep::internal
