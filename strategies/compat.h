// strategies/compat.h - names of TensorFlow 1.x that do nothing of their own here, for code that is ported.
//
//   #include "lockstep/strategies/compat.h"      // not part of lockstep/lockstep.h
//   if (compat::should_checkpoint(strategy)) save_checkpoint(strategy.variables(), "model.lkc");
//
// Each comment says what to write in new code. Write the names with their `compat::`: some used to be in
// other namespaces, and the compiler refuses those spellings (strategies/trace/removed_spellings.h). Thread
// safety: any thread; experimental_run as Strategy::run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/run_steps.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep::compat {

// New code: strategy.num_replicas_in_sync() == 1.
inline bool is_single_tower(const Strategy& strategy) { return strategy.num_replicas_in_sync() == 1; }
// One process makes the graph of all replicas.
inline bool between_graph(const Strategy&) { return false; }
// Which process initializes and saves if there are several: here this one.
inline bool should_init(const Strategy&) { return true; }
inline bool should_checkpoint(const Strategy&) { return true; }
inline bool should_save_summary(const Strategy&) { return true; }

// Hooks with nothing to do: variables get their values when they are made.
inline std::vector<NodeId> initialize(const Strategy&) { return {}; }
inline std::vector<NodeId> finalize(const Strategy&) { return {}; }
// The variable that a handle stands for: handles have no copies of their own, so it is the handle itself.
template <class T>
const T& value_container(const T& value) {
  return value;
}

// Options for the given number of GPUs, gpu:0 and on; 0: cpu:0. `options` are the remaining ones; throws
// InvalidArgument if they count GPUs too, and the strategy throws if they name devices. New code:
// MirroredOptions::num_gpus, or devices.
LOCKSTEP_API MirroredOptions mirrored_options(std::int64_t num_gpus_per_worker, MirroredOptions options = {});

// One step on the next batch of the source, by run(): fn takes one Value per input, or a span of all. Throws
// RunError if the source has ended. New code: strategy.run(), or a function() that is called for each batch.
template <class F>
auto experimental_run(Strategy& strategy, const F& fn, const BatchSource& source,
                      SourceSite site = SourceSite::current()) {
  const std::optional<std::vector<PerReplica<Tensor>>> batch = source();
  if (!batch) internal::source_is_empty(site);
  return strategy.run_list(fn, *batch, {}, site);
}
// The same with a source of other nests: fn takes the whole batch, one nest of Values.
template <class F, class Source>
requires(!std::is_convertible_v<Source, BatchSource>) auto experimental_run(
    Strategy& strategy, const F& fn, Source&& source, SourceSite site = SourceSite::current()) {
  const auto batch = source();
  if (!batch.has_value()) internal::source_is_empty(site);
  return strategy.run_list(
      [&](std::span<const Value> values) { return fn(nest::refill<Value>(*batch, values)); },
      nest::leaves<PerReplica<Tensor>>(*batch), {}, site);
}
template <class F>
auto experimental_run(Strategy& strategy, const F& fn, SourceSite site = SourceSite::current()) {
  return strategy.run_list(fn, {}, {}, site);
}

}  // namespace lockstep::compat
