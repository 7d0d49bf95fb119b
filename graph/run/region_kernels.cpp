// graph/run/region_kernels.cpp - nodes with regions as one kernel call of a compiled program.
#include "lockstep/graph/run/internal/region_kernels.h"

#include <algorithm>
#include <memory>
#include <mutex>

#include "lockstep/graph/ir/internal/region_shapes.h"
#include "lockstep/graph/ir/internal/shape_values.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/run/internal/plan.h"
#include "lockstep/graph/run/internal/run_context.h"
#include "lockstep/graph/run/internal/transfer.h"

namespace lockstep::internal {

namespace {

constexpr double kTripsGuess = 8;

// A region with its plan, and as many contexts as the region ever had concurrent runs.
class RegionProgram {
 public:
  RegionProgram(const Graph& region, std::unique_ptr<const Plan> plan, const Runtime& runtime,
                std::span<const VariableUse> uses, int replica)
      : region_(region), runtime_(runtime), plan_(std::move(plan)), replica_(replica) {
    for (const PlannedVariable& variable : plan_->variables) {
      const auto use = std::ranges::find(uses, variable.name, &VariableUse::name);
      LOCKSTEP_CHECK(use != uses.end());
      uses_.push_back(static_cast<std::size_t>(use - uses.begin()));
    }
  }

  const Plan& plan() const { return *plan_; }

  // `variables` are the addresses of all variables that the node uses. Throws what a node threw, with the
  // node's place around it.
  void run(std::span<void* const> feeds, std::span<void* const> results, std::span<void* const> variables,
           const RunInfo& info) {
    run_on(take(), feeds, results, variables, info);
  }
  // The same for a region of which the result is a condition. It lies in the context: what a run that failed has left
  // behind may still write it.
  bool is_true(std::span<void* const> feeds, std::span<void* const> variables, const RunInfo& info) {
    RunContext* const context = take();
    void* const result = &context->condition();
    return run_on(context, feeds, {&result, 1}, variables, info);
  }

 private:
  bool run_on(RunContext* context, std::span<void* const> feeds, std::span<void* const> results,
              std::span<void* const> variables, const RunInfo& info) {
    std::ranges::copy(feeds, context->feeds().begin());
    std::ranges::copy(results, context->results().begin());
    for (std::size_t i = 0; i < uses_.size(); ++i) context->variables()[i] = variables[uses_[i]];
    const RunContext::Outcome outcome = context->run({}, info, nullptr);
    const bool condition = !outcome.left && context->condition();
    if (outcome.left) {
      leave_behind(context);
    } else {
      give_back(context);
    }
    if (!outcome.error && outcome.committed) return condition;
    if (!outcome.error) {
      info.check_stop();
      throw Error(outcome.stopped, "the run was stopped inside a region");
    }
    rethrow(outcome);
  }

  RunContext* take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        RunContext* context = free_.back();
        free_.pop_back();
        return context;
      }
    }
    auto fresh = std::make_unique<RunContext>(*plan_, runtime_);
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.reserve(contexts_.size() + 1);
    contexts_.push_back(std::move(fresh));
    return contexts_.back().get();
  }
  void give_back(RunContext* context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(context);
  }
  // Deferred calls of it are in flight: it stays until they are over, and so does the run around it.
  void leave_behind(RunContext* context) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Those that earlier runs left behind.
    std::erase_if(contexts_, [](const auto& other) { return other->flights().over(); });
    context->flights().pass_on();
  }

  [[noreturn]] void rethrow(const RunContext::Outcome& outcome) const {
    ErrorPlace place;
    if (outcome.failed_phase) place = place_of(region_.node(plan_->phases[*outcome.failed_phase].node));
    if (replica_ >= 0) place.replica = replica_;
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      if (!error.place().node.empty()) throw;  // from an inner region
      std::throw_with_nested(Error(error.code(), error.message(), std::move(place)));
    } catch (const std::exception& error) {
      std::throw_with_nested(Error(code_of(error, ErrorCode::kFailedPrecondition),
                                   str("the kernel failed: ", message_of(error)), std::move(place)));
    } catch (...) {
      std::throw_with_nested(Error(ErrorCode::kFailedPrecondition,
                                   "the kernel failed with an exception that is not a std::exception",
                                   std::move(place)));
    }
  }

  const Graph& region_;
  const Runtime& runtime_;
  std::unique_ptr<const Plan> plan_;
  int replica_;                    // the replica it runs for; -1: each node states its own
  std::vector<std::size_t> uses_;  // by variable of the plan: its index among the node's
  std::mutex mutex_;
  std::vector<RunContext*> free_;
  std::vector<std::unique_ptr<RunContext>> contexts_;
};

using Pointers = SmallVector<void*, 16>;

// What all kinds of region nodes share: the programs of the regions, and where variables lie.
struct RegionNode {
  const Node* node;
  std::size_t outputs;  // of the node; the new values of variables follow
  std::vector<VariableUse> uses;
  std::vector<Transfer> refresh;  // by use: within the memory of the variable
  std::vector<std::unique_ptr<RegionProgram>> programs;

  // A written variable starts as a copy of the current value, so that the regions work on the new value.
  Pointers variables(KernelContext& c) const {
    Pointers pointers;
    std::size_t next = outputs;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const std::size_t input = node->inputs().size() + i;
      auto* current = const_cast<void*>(c.input(input));
      if (uses[i].writes) {
        void* fresh = c.output(next++);
        refresh[i](fresh, current, static_cast<std::size_t>(num_bytes(c.input_spec(input))));
        current = fresh;
      }
      pointers.push_back(current);
    }
    return pointers;
  }
  static Pointers inputs(KernelContext& c, std::size_t begin, std::size_t end) {
    Pointers pointers;
    for (std::size_t i = begin; i < end; ++i) pointers.push_back(const_cast<void*>(c.input(i)));
    return pointers;
  }
};

void run_cond(const RegionNode& self, KernelContext& c) {
  const bool holds = *static_cast<const bool*>(c.input(0));
  const Pointers variables = self.variables(c);
  Pointers results;
  for (std::size_t i = 0; i < self.outputs; ++i) results.push_back(c.output(i));
  self.programs[holds ? 0 : 1]->run(RegionNode::inputs(c, 1, self.node->inputs().size()), results, variables,
                                    c.run());
}

// How a loop moves what it carries.
struct LoopMoves {
  std::vector<Transfer> within;    // by carried value: in its memory
  std::vector<Transfer> to_stash;  // by carried value
  std::vector<Transfer> to_trips;  // one, if there is a stash: the number of trips, from the host
};

void run_while(const RegionNode& self, const LoopShape& loop, const LoopMoves& moves, KernelContext& c) {
  const Pointers variables = self.variables(c);
  Pointers values = RegionNode::inputs(c, 0, self.node->inputs().size());
  // The carried values alternate between the outputs and the room behind all outputs.
  const auto written = static_cast<std::size_t>(std::ranges::count_if(self.uses, &VariableUse::writes));
  Pointers here, there;
  for (std::size_t i = 0; i < loop.carried; ++i) {
    here.push_back(c.output(i));
    there.push_back(c.output(self.outputs + written + i));
  }
  const auto bytes = [&](std::size_t i) { return static_cast<std::size_t>(num_bytes(c.input_spec(i))); };
  std::int64_t trip = 0;
  for (; loop.max_trips < 0 || trip < loop.max_trips; ++trip) {
    if (!self.programs[0]->is_true(values, variables, c.run())) break;
    for (std::size_t i = 0; loop.stash && i < loop.carried; ++i) {
      moves.to_stash[i](
          static_cast<char*>(c.output(loop.carried + i)) + static_cast<std::size_t>(trip) * bytes(i),
          values[i], bytes(i));
    }
    self.programs[1]->run(values, here, variables, c.run());
    std::ranges::copy(here, values.begin());
    std::swap(here, there);
  }
  for (std::size_t i = 0; i < loop.carried; ++i) {
    if (values[i] != c.output(i)) moves.within[i](c.output(i), values[i], bytes(i));
  }
  if (!loop.stash) return;
  for (std::size_t i = 0; i < loop.carried; ++i) {  // rows that no trip reached
    const auto done = static_cast<std::size_t>(trip) * bytes(i);
    const auto all = static_cast<std::size_t>(loop.max_trips) * bytes(i);
    moves.to_stash[i].clear(static_cast<char*>(c.output(loop.carried + i)) + done, all - done);
  }
  moves.to_trips[0](c.output(2 * loop.carried), &trip, sizeof(trip));
}

void run_replicated(const RegionNode& self, const ReplicatedNode& replicated, KernelContext& c) {
  const Pointers variables = self.variables(c);
  for (std::size_t r = 0; r < replicated.replicas(); ++r) {
    Pointers arguments;
    for (std::size_t i = 0; i < replicated.region().parameters().size(); ++i)
      arguments.push_back(const_cast<void*>(c.input(replicated.input(i, r))));
    Pointers results;
    for (std::size_t i = 0; i < replicated.region().results().size(); ++i)
      results.push_back(c.output(replicated.output(i, r)));
    self.programs[r]->run(arguments, results, variables, c.run());
  }
}

}  // namespace

RegionKernel make_region_kernel(const Node& node, std::span<const TensorSpec> inputs,
                                std::span<const TensorSpec> outputs, const NodeMemories& memories,
                                std::vector<VariableUse> uses, const Runtime& runtime,
                                const CompileOptions& options, const PlanRequest& request) {
  auto self = std::make_shared<RegionNode>();
  self->node = &node;
  self->outputs = outputs.size();
  self->uses = std::move(uses);
  for (const VariableUse& use : self->uses) {
    const MemoryId memory = request.variable_memory(use.name);
    self->refresh.emplace_back(runtime, memory, memory);
  }
  const int replica = request.replica < 0 ? node.provenance().replica : request.replica;
  std::vector<PlacedSpec> placed;
  for (std::size_t i = 0; i < inputs.size(); ++i) placed.push_back({inputs[i], memories.inputs[i]});
  const std::span<const PlacedSpec> all = placed;
  RegionKernel result;
  const auto add = [&](const Graph& region, std::span<const PlacedSpec> arguments,
                       std::span<const MemoryId> results, int which) {
    PlanRequest inner = request;
    inner.feeds = arguments;
    inner.results = results;
    inner.replica = which;
    auto plan = make_plan(region, runtime, inner, options);
    result.planned_bytes += plan->memory.planned_bytes + plan->region_planned_bytes;
    result.live_bytes += plan->memory.live_set_bytes + plan->region_live_bytes;
    result.defers = result.defers || plan->defers;
    result.on_streams = result.on_streams || !plan->streams.empty() || plan->regions_on_streams;
    self->programs.push_back(
        std::make_unique<RegionProgram>(region, std::move(plan), runtime, self->uses, which));
    return self->programs.back()->plan().seconds;
  };
  // The regions' results must have the shapes that the outputs were planned with.
  const auto check_results = [&](std::size_t program, std::size_t first, std::size_t step) {
    const std::vector<PlacedSpec>& results = self->programs[program]->plan().results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const TensorSpec& planned = outputs[first + i * step];
      if (results[i].spec != planned) {
        throw InvalidArgument(str("output ", first + i * step, " was planned as ", planned,
                                  " and comes out as ", results[i].spec),
                              place_of(node));
      }
    }
  };
  switch (node.op().region_kind) {
    case RegionKind::kCond: {
      const double yes = add(node.regions()[0], all.subspan(1), memories.outputs, replica);
      const double no = add(node.regions()[1], all.subspan(1), memories.outputs, replica);
      check_results(0, 0, 1);
      check_results(1, 0, 1);
      result.seconds = std::max(yes, no);
      result.kernel = [self](KernelContext& c) { run_cond(*self, c); };
      break;
    }
    case RegionKind::kWhile: {
      const MemoryId predicate[] = {kHostMemory};
      const double condition = add(node.regions()[0], all, predicate, replica);
      const LoopShape loop = loop_shape(node);
      const auto carried = std::span(memories.inputs).first(loop.carried);
      const double trip = condition + add(node.regions()[1], all, carried, replica);
      check_results(1, 0, 1);
      result.seconds = kTripsGuess * trip;
      LoopMoves moves;
      for (std::size_t i = 0; i < loop.carried; ++i) {
        moves.within.emplace_back(runtime, memories.inputs[i], memories.inputs[i]);
        moves.to_stash.emplace_back(runtime, memories.inputs[i], memories.own);
      }
      if (loop.stash) moves.to_trips.emplace_back(runtime, kHostMemory, memories.own);
      result.kernel = [self, loop, moves](KernelContext& c) { run_while(*self, loop, moves, c); };
      break;
    }
    case RegionKind::kReplicated: {
      const ReplicatedNode replicated(node);
      for (std::size_t r = 0; r < replicated.replicas(); ++r) {
        std::vector<MemoryId> results;
        for (std::size_t i = 0; i < node.regions()[0].results().size(); ++i)
          results.push_back(memories.outputs[replicated.output(i, r)]);
        result.seconds += add(node.regions()[0], replicated.arguments(all, r), results, static_cast<int>(r));
        check_results(r, r, replicated.replicas());
      }
      result.kernel = [self, replicated](KernelContext& c) { run_replicated(*self, replicated, c); };
      break;
    }
    case RegionKind::kNone: LOCKSTEP_CHECK(false, "node '", node.name(), "' has no regions that run");
  }
  return result;
}

}  // namespace lockstep::internal
