// graph/run/phase_plan.cpp - the calls of a plan and their order, while the plan is made.
#include "lockstep/graph/run/internal/phase_plan.h"

#include <algorithm>
#include <utility>

#include "lockstep/graph/ir/internal/plain_call.h"
#include "lockstep/graph/run/internal/transfer.h"

namespace lockstep::internal {

namespace {

constexpr double kFlops = 16e9;               // of one core, roughly: costs only decide what runs together
constexpr double kBandwidth = 8e9;            // bytes a second
constexpr double kCallSeconds = 20e-9;        // of any kernel call that states no cost
constexpr std::int64_t kCopyGrain = 1 << 20;  // bytes a shard of a copy

}  // namespace

double PhasePlan::seconds_of(const Cost& cost) {
  const double seconds =
      cost.seconds > 0 ? cost.seconds : std::max(cost.flops / kFlops, cost.bytes / kBandwidth);
  return std::clamp(seconds, 0.0, 1e6);
}

bool PhasePlan::any_commits(std::span<const std::uint32_t> phases) const {
  return std::ranges::any_of(phases, [&](std::uint32_t phase) { return phases_[phase].commit; });
}

std::uint32_t PhasePlan::add_kernel(KernelFn kernel) {
  std::int32_t plain = -1;
  if (const auto* call = kernel.target<internal::PlainCall>()) {
    plain = static_cast<std::int32_t>(plan_.plain_calls.size());
    plan_.plain_calls.push_back(call->function);
  }
  plan_.plain_of.push_back(plain);
  plan_.kernels.push_back(std::move(kernel));
  return static_cast<std::uint32_t>(plan_.kernels.size() - 1);
}

std::uint32_t PhasePlan::add(Work work) {
  const auto shards = static_cast<std::uint32_t>(work.split.shards);
  const std::uint32_t phase = next();
  PlannedPhase call;
  call.node = work.node->id();
  call.source = work.node;
  call.kernel = work.kernel;
  call.arena = storages_.arena_of(work.node->device());
  call.replica = replica_ >= 0 ? replica_ : work.node->provenance().replica;
  call.first_arg = static_cast<std::uint32_t>(plan_.args.size());
  call.inputs = static_cast<std::uint32_t>(work.inputs.size());
  call.outputs = static_cast<std::uint32_t>(work.outputs.size() + work.rooms.size());
  call.shards = work.split.shards;
  call.stream = work.stream;
  call.copies = work.copies;
  call.bytes_moved = work.bytes_moved;
  call.multiply_adds = work.multiply_adds;
  for (const StorageUse& input : work.inputs) call.bytes_read += num_bytes(*input.spec);
  for (const StorageUse& output : work.outputs) call.bytes_written += num_bytes(*output.spec);
  for (const std::vector<StorageUse>* list : {&work.inputs, &work.outputs, &work.rooms}) {
    for (const StorageUse& use : *list) storages_.add_argument(use);
  }
  const bool has_second = work.split.finish || work.deferred;  // a phase that finishes it, or awaits its end
  const std::uint32_t last = has_second ? phase + 1 : phase;
  for (const StorageUse& input : work.inputs) {
    storages_.add_reader(input.storage, phase);
    if (has_second) storages_.add_reader(input.storage, last);
  }
  if (has_second) {  // the outputs are written until then
    for (const StorageUse& output : work.outputs) storages_.add_reader(output.storage, last);
  }
  if (work.split.scratch_bytes > 0) {
    call.scratch =
        storages_.add_scratch(static_cast<std::int64_t>(work.split.scratch_bytes), call.arena, phase, last);
  }
  std::ranges::sort(work.after);
  work.after.erase(std::unique(work.after.begin(), work.after.end()), work.after.end());

  Phase clustered;
  clustered.predecessors = SmallVector<std::uint32_t, 2>(std::span<const std::uint32_t>(work.after));
  clustered.shards = shards;
  clustered.seconds = std::max(work.seconds / shards, work.hinted ? 0 : kCallSeconds);
  clustered.commit = work.commit;
  if (work.deferred) clustered.seconds = kCallSeconds;
  clustered.starts = call.starts = work.deferred;
  if (work.stream < 0) plan_.seconds += clustered.seconds * shards;
  plan_.phases.push_back(call);
  phases_.push_back(clustered);
  if (has_second) {
    call.finish = work.split.finish;
    call.starts = false;
    call.awaits = work.deferred;
    call.started_by = phase;
    plan_.phases.push_back(call);
    Phase second;
    second.predecessors.push_back(phase);
    second.seconds = work.deferred ? work.seconds : kCallSeconds;
    second.commit = work.commit;
    second.awaits = work.deferred;
    phases_.push_back(second);
  }
  return last;
}

std::uint32_t PhasePlan::add_copy(const Node& node, std::uint32_t from, std::uint32_t to,
                                  const TensorSpec* spec, std::vector<std::uint32_t> after, bool commit) {
  Work work;
  work.node = &node;
  work.inputs = {{from, spec}};
  work.outputs = {{to, spec}};
  work.commit = commit || any_commits(after);
  work.after = std::move(after);
  const std::int64_t bytes = num_bytes(*spec);
  work.copies = true;
  work.bytes_moved = 2 * static_cast<double>(bytes);
  const MemoryId source = storages_[from].memory, target = storages_[to].memory;
  work.stream = copy_stream(source, target);
  if (work.stream >= 0) {
    const bool to_variable = storages_[to].location.kind == Location::Kind::kVariable;
    work.kernel = add_kernel([bytes, source, target, to_variable](KernelContext& c) {
      const auto count = static_cast<std::size_t>(bytes);
      const void* const decision = to_variable ? c.blocks().decision : nullptr;
      if (decision != nullptr) {
        c.stream()->copy_unless(decision, c.output(0), c.input(0), count);
      } else {
        c.stream()->copy(c.output(0), target, c.input(0), source, count);
      }
    });
    return add(std::move(work));
  }
  const Transfer transfer(runtime_, source, target);
  if (transfer.stays_on_host())
    work.split.shards = std::max<std::int64_t>(1, (bytes + kCopyGrain - 1) / kCopyGrain);
  work.seconds = 2 * static_cast<double>(bytes) / kBandwidth;
  work.kernel = add_kernel([bytes, transfer](KernelContext& c) {
    const auto [begin, end] = c.range(bytes);
    transfer(static_cast<char*>(c.output(0)) + begin, static_cast<const char*>(c.input(0)) + begin,
             static_cast<std::size_t>(end - begin));
  });
  return add(std::move(work));
}

// -1: no device with streams takes part.
std::int32_t PhasePlan::copy_stream(MemoryId from, MemoryId to) {
  const bool within = from == to;
  const std::int32_t at_target = stream_in(to, within ? StreamRole::kCompute : StreamRole::kCopyIn);
  if (at_target >= 0 || within) return at_target;
  return stream_in(from, StreamRole::kCopyOut);
}

std::int32_t PhasePlan::stream_in(MemoryId memory, StreamRole role) {
  if (memory == kHostMemory) return -1;
  return stream_of(storages_.facts(storages_.arena_in(memory)).device, role);
}

std::int32_t PhasePlan::stream_of(const Device& device, StreamRole role) {
  ComputeDevice* const found = runtime_.backend_device(device);
  if (found == nullptr || found->stream(role) == nullptr) return -1;
  for (std::size_t i = 0; i < plan_.streams.size(); ++i) {
    const PlannedStream& known = plan_.streams[i];
    if (runtime_.backend_device(known.device)->stream(known.role) == found->stream(role))
      return static_cast<std::int32_t>(i);
  }
  plan_.streams.push_back({device, role});
  return static_cast<std::int32_t>(plan_.streams.size() - 1);
}

void PhasePlan::make_clusters(const CompileOptions& options) {
  HostPhases seen;
  const bool on_devices =
      std::ranges::any_of(plan_.phases, [](const PlannedPhase& phase) { return phase.stream >= 0; });
  if (on_devices) seen = make_segments(phases_, plan_, device_order_);
  const std::span<const Phase> phases = on_devices ? std::span<const Phase>(seen.phases) : phases_;
  const bool by_cost = options.clustering == Clustering::kByCost;
  std::size_t lanes = std::max<std::size_t>(runtime_.scheduler().num_workers(), 1);
  if (by_cost && plan_.seconds < options.inline_seconds) lanes = 1;
  plan_.clusters = internal::make_clusters(phases, {lanes, by_cost});
  const std::size_t too_few = by_cost ? 2 : 1;
  if (plan_.clusters.clusters.size() <= too_few && lanes > 1) {
    plan_.clusters = internal::make_clusters(phases, {1, true});  // nothing can run in parallel
  }
  if (on_devices) {
    for (Segment& segment : plan_.segments) {
      if (!options.record) segment.records = Decision::no("CompileOptions::record is false");
      for (const std::uint32_t stream : segment.streams) {
        const Decision can = runtime_.backend_device(plan_.streams[stream].device)->can_record();
        if (segment.records && !can) segment.records = can;
      }
    }
    for (Call& call : plan_.clusters.calls) call.phase = seen.origin[call.phase];
    std::vector<std::uint32_t> joins(plan_.phases.size(), Clusters::kNoJoin);
    for (std::size_t i = 0; i < plan_.clusters.join_of.size(); ++i)
      joins[seen.origin[i]] = plan_.clusters.join_of[i];
    plan_.clusters.join_of = std::move(joins);
  }
  plan_.lanes = plan_.clusters.sequential ? 1 : lanes;
  sort_plain_calls();
}

// In the order in which they are called: neighbours in time become neighbours in memory.
void PhasePlan::sort_plain_calls() {
  std::vector<std::function<void()>> ordered;
  ordered.reserve(plan_.plain_calls.size());
  for (const Call& call : plan_.clusters.calls) {
    const PlannedPhase& phase = plan_.phases[call.phase];
    if (phase.segment >= 0 || phase.awaits) continue;  // these have no kernel
    std::int32_t& plain = plan_.plain_of[phase.kernel];
    if (plain < 0 || call.shard > 0) continue;  // shards share one function
    ordered.push_back(std::move(plan_.plain_calls[static_cast<std::size_t>(plain)]));
    plain = static_cast<std::int32_t>(ordered.size() - 1);
  }
  plan_.plain_calls = std::move(ordered);
}

}  // namespace lockstep::internal
