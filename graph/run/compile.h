// graph/run/compile.h - from a graph and a runtime to a Program.
//
// compile() verifies the graph against the runtime, binds its variables to a store (creating those that are
// missing, with their initial values) and returns a Program that owns the graph. Plans are made when feeds
// arrive, since shapes are known only then. A graph whose parameters all have known shapes is planned here,
// so that its errors are reported here.
//
// A plan decides: which nodes run (aliases and constants do not), how large nodes are cut into shards (by
// shape alone), which cheap neighbours form one cluster and run one after another on one thread, where each
// value lies in memory, and which variable updates wait for the commit. See docs/architecture.md.
// Thread safety: compile() may be called from any thread, also for one runtime and one store at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/run/program.h"

namespace lockstep {

enum class Clustering : std::uint8_t {
  kByCost,  // chains and cheap neighbourhoods become one cluster
  kOff,     // every kernel call is a cluster of its own: slow, for tests
};

struct CompileOptions {
  // Where variables live; null: the runtime's store.
  std::shared_ptr<VariableStore> variables = nullptr;
  Clustering clustering = Clustering::kByCost;
  // A run estimated to take less time stays on the calling thread: waking a worker costs about as much as it
  // gains.
  double inline_seconds = 250e-6;
  // Applies if the store already has a variable of the graph. Its value is kept, so that several programs
  // work on one state: a graph with another initial value does not change it. kRequired refuses such a graph.
  SameStart same_start = SameStart::kAny;
  // A region of several replicas runs replica after replica, as in the interpreter: variables without copies
  // change several times a step, and collectives see one replica alone. A region with either is refused
  // unless this is true.
  bool replicas_in_turn = false;
  // The most plans kept, one per combination of feed shapes; at least 1.
  std::size_t max_plans = 16;
  // The most runs of a plan that are under way on devices at one time. What is not used by one stream alone has memory
  // there for each of them, and so has everything if runs change no variable. With 1 a run returns when it is over.
  std::size_t runs_ahead = 2;
  // Work of devices that is the same in each run is recorded when it runs for the second time, and replayed from
  // then on: that costs the host little. The bits are the same.
  bool record = true;
  // On NVIDIA cards: products of f32 matrices, and convolutions, may round what they multiply to TF32 (10 bits instead of 23),
  // which is several times as fast. Sums are f32 still.
  bool allow_tf32 = false;
  // Groups of the runtime whose members commit their runs of the program together, beside those that its nodes name.
  std::vector<std::string> groups = {};
  // false: the caller vouches for the graph.
  bool verify = true;
};

// Throws VerifyError, InvalidArgument (a variable of the store has another spec or, if same_start is
// kRequired, another initial value; an op has no kernel for its device), FailedPrecondition (replicas whose
// variables no strategy gave copies).
LOCKSTEP_API Program compile(Graph graph, const Runtime& runtime, const CompileOptions& options = {},
                             SourceSite site = SourceSite::current());

}  // namespace lockstep
