// graph/run/plan.cpp - everything that is decided about a run before it starts, for one set of feed shapes.
#include "lockstep/graph/run/internal/plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_map>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/graph/ir/internal/evaluate_node.h"
#include "lockstep/graph/ir/internal/plain_call.h"
#include "lockstep/graph/ir/internal/shape_values.h"
#include "lockstep/graph/ir/placement.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/run/internal/region_kernels.h"
#include "lockstep/graph/run/internal/resolved_graph.h"
#include "lockstep/graph/run/internal/variable_stages.h"

namespace lockstep::internal {

namespace {

constexpr double kFlops = 16e9;               // of one core, roughly: costs only decide what runs together
constexpr double kBandwidth = 8e9;            // bytes a second
constexpr double kCallSeconds = 20e-9;        // of any kernel call that states no cost
constexpr std::int64_t kCopyGrain = 1 << 20;  // bytes a shard of a copy

// One memory of a value; several values may share it (aliases).
struct Storage {
  Location location;
  std::int64_t bytes = 0;
  std::int64_t interval = -1;  // the number of its Interval, if it lies in the arena; else -1
  bool deferred = false;       // a call that may outlive the run writes it
};

class PlanMaker {
 public:
  PlanMaker(const Graph& graph, const Runtime& runtime, std::span<const TensorSpec> feeds,
            const CompileOptions& options, NodeView::VariableSpecs variables, int replica)
      : graph_(graph),
        runtime_(runtime),
        options_(options),
        variable_specs_(std::move(variables)),
        replica_(replica),
        plan_(std::make_unique<Plan>()),
        resolved_(graph, feeds, variable_specs_, plan_->specs) {
    plan_->feeds.assign(feeds.begin(), feeds.end());
  }

  std::unique_ptr<const Plan> run() {
    list_variables();
    for (std::uint32_t i = 0; i < graph_.parameters().size(); ++i)
      parameters_.emplace(graph_.parameters()[i], i);
    values_.resize(graph_.id_bound());
    done_.resize(graph_.id_bound());
    for (const NodeId id : resolved_.order()) {
      if (resolved_.is_live(id)) add_node(graph_.node(id));
    }
    commit_shadows();
    add_results();
    lay_out();
    return std::move(plan_);
  }

 private:
  // --- variables

  struct VariableState {
    std::uint32_t index = 0;    // in the plan
    std::uint32_t storage = 0;  // of its current value at this point of the program
    std::uint32_t live_storage = 0;
    NodeId in_commit;  // the update that writes it in place, in the commit stage
    bool shadowed = false;
    std::vector<std::uint32_t> writers;  // phases of the shadow's last write
  };

  void list_variables() {
    const VariableStages stages = find_variable_stages(resolved_);
    plan_->draws_random = stages.draws_random;
    plan_->commits = stages.commits;
    for (const auto& [name, stage] : stages.variables) {
      VariableState& state = variables_[name];
      state.index = static_cast<std::uint32_t>(plan_->variables.size());
      state.in_commit = stage.in_commit;
      plan_->variables.push_back({name, stage.written});
      const std::int64_t bytes = num_bytes(*variable_specs_(name));
      state.live_storage = add_storage({{Location::Kind::kVariable, state.index, 0}, bytes, -1});
      state.storage = state.live_storage;
    }
  }

  // --- storage and phases

  std::uint32_t add_storage(Storage storage) {
    storages_.push_back(storage);
    return static_cast<std::uint32_t>(storages_.size() - 1);
  }

  // Memory of its own, written by the phase that is added next.
  std::uint32_t add_arena_storage(std::int64_t bytes, std::uint32_t arena) {
    Interval interval;
    interval.bytes = bytes;
    interval.arena = arena;
    interval.writer = static_cast<std::uint32_t>(plan_->phases.size());
    intervals_.push_back(std::move(interval));
    return add_storage(
        {{Location::Kind::kArena, arena, 0}, bytes, static_cast<std::int64_t>(intervals_.size() - 1)});
  }

  Device device_named(const std::string& name) const {
    return name.empty() ? runtime_.devices().front() : runtime_.topology().own(Device::parse(name));
  }

  std::uint32_t arena_of(const std::string& name) {
    const auto [found, fresh] = arenas_.try_emplace(name, 0);
    if (fresh) {
      const Device device = device_named(name);
      const auto known = std::ranges::find(plan_->arenas, device);
      found->second = static_cast<std::uint32_t>(known - plan_->arenas.begin());
      if (known == plan_->arenas.end()) plan_->arenas.push_back(device);
    }
    return found->second;
  }

  struct Argument {
    std::uint32_t storage;
    const TensorSpec* spec;
  };

  struct Work {
    const Node* node = nullptr;
    std::uint32_t kernel = 0;
    std::vector<Argument> inputs, outputs;
    std::vector<std::uint32_t> after;  // phases
    Split split;
    double seconds = 0;   // of the whole
    bool hinted = false;  // given by the op, not estimated
    bool commit = false;
    bool deferred = false;  // its call may go on after it has returned
  };

  // Adds the phases of one piece of work; returns the last one, after which the work is done.
  std::uint32_t add_work(Work work) {
    const auto shards = static_cast<std::uint32_t>(work.split.shards);
    const auto phase = static_cast<std::uint32_t>(plan_->phases.size());
    PlannedPhase call;
    call.node = work.node->id();
    call.source = work.node;
    call.kernel = work.kernel;
    call.arena = arena_of(work.node->device());
    call.replica = replica_ >= 0 ? replica_ : work.node->provenance().replica;
    call.first_arg = static_cast<std::uint32_t>(plan_->args.size());
    call.inputs = static_cast<std::uint32_t>(work.inputs.size());
    call.outputs = static_cast<std::uint32_t>(work.outputs.size());
    call.shards = work.split.shards;
    for (const Argument& input : work.inputs) call.bytes_read += num_bytes(*input.spec);
    for (const Argument& output : work.outputs) call.bytes_written += num_bytes(*output.spec);
    for (const std::vector<Argument>* list : {&work.inputs, &work.outputs}) {
      for (const Argument& argument : *list) {
        plan_->args.push_back({storages_[argument.storage].location, argument.spec});
        arg_storage_.push_back(argument.storage);
      }
    }
    const bool has_second =
        work.split.finish || work.deferred;  // a phase that finishes it, or awaits its end
    const std::uint32_t last = has_second ? phase + 1 : phase;
    for (const Argument& input : work.inputs) {
      const std::int64_t interval = storages_[input.storage].interval;
      if (interval < 0) continue;
      auto& readers = intervals_[static_cast<std::size_t>(interval)].readers;
      if (readers.empty() || readers.back() != phase) readers.push_back(phase);
      if (last != phase) readers.push_back(last);
    }
    if (has_second) {  // the outputs are written until then
      for (const Argument& output : work.outputs) {
        const std::int64_t interval = storages_[output.storage].interval;
        if (interval >= 0) intervals_[static_cast<std::size_t>(interval)].readers.push_back(last);
      }
    }
    if (work.split.scratch_bytes > 0) {
      Interval scratch;
      scratch.bytes = static_cast<std::int64_t>(work.split.scratch_bytes);
      scratch.arena = call.arena;
      scratch.writer = phase;
      scratch.readers.push_back(last);
      intervals_.push_back(std::move(scratch));
      call.scratch = static_cast<std::int64_t>(intervals_.size() - 1);
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
    plan_->seconds += clustered.seconds * shards;
    plan_->phases.push_back(call);
    phases_.push_back(clustered);
    if (has_second) {
      call.finish = work.split.finish;
      call.starts = false;
      call.awaits = work.deferred;
      plan_->phases.push_back(call);
      Phase second;
      second.predecessors.push_back(phase);
      second.seconds = work.deferred ? work.seconds : kCallSeconds;
      second.commit = work.commit;
      second.awaits = work.deferred;
      phases_.push_back(second);
    }
    return last;
  }

  static double seconds_of(const Cost& cost) {
    const double seconds =
        cost.seconds > 0 ? cost.seconds : std::max(cost.flops / kFlops, cost.bytes / kBandwidth);
    return std::clamp(seconds, 0.0, 1e6);
  }

  std::uint32_t add_kernel(KernelFn kernel) {
    std::int32_t plain = -1;
    if (const auto* call = kernel.target<internal::PlainCall>()) {
      plain = static_cast<std::int32_t>(plan_->plain_calls.size());
      plan_->plain_calls.push_back(call->function);
    }
    plan_->plain_of.push_back(plain);
    plan_->kernels.push_back(std::move(kernel));
    return static_cast<std::uint32_t>(plan_->kernels.size() - 1);
  }

  std::vector<std::uint32_t> predecessors(const Node& node) const {
    std::vector<std::uint32_t> after;
    const auto add = [&](NodeId before) {
      const auto& done = done_[before.index()];
      after.insert(after.end(), done.begin(), done.end());
    };
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (ResolvedGraph::reads_contents(node, i)) add(node.inputs()[i].node);
    }
    for (const NodeId control : node.controls()) add(control);
    // Each phase once: a node without a call of its own passes its list on.
    std::ranges::sort(after);
    after.erase(std::unique(after.begin(), after.end()), after.end());
    return after;
  }

  void add_node(const Node& node) {
    const OpDef& op = node.op();
    std::vector<std::uint32_t>& values = values_[node.id().index()];
    if (!resolved_.runs(node.id())) return;  // and no running node waits for it
    if (const std::vector<Tensor>* known = resolved_.host_values().find(node.id())) {
      for (const Tensor& value : *known) values.push_back(add_constant(value));
      done_[node.id().index()] = predecessors(node);
      return;
    }
    if (const auto parameter = parameters_.find(node.id()); parameter != parameters_.end()) {
      const std::uint32_t index = parameter->second;
      values = {
          add_storage({{Location::Kind::kFeed, index, 0}, num_bytes(resolved_.outputs_of(node)[0]), -1})};
      done_[node.id().index()] = predecessors(node);
      return;
    }
    if (const Tensor* constant = constant_of(node)) {
      values = {add_constant(*constant)};
      done_[node.id().index()] = predecessors(node);
      return;
    }
    if (op.traits.gives_shape) {
      values = {add_constant(shape_tensor(resolved_.spec_of(node.inputs()[0]).shape))};
      done_[node.id().index()] = {};
      return;
    }
    if (resolved_.is_alias(node)) {
      values = {storage_of(node.inputs()[0])};
      done_[node.id().index()] = predecessors(node);
      return;
    }
    if (op.traits.reads_variable) {
      VariableState& state = variables_.at(node.find<VariableRef>(*op.traits.reads_variable)->name);
      values = {state.storage};
      std::vector<std::uint32_t> after = predecessors(node);
      after.insert(after.end(), state.writers.begin(), state.writers.end());
      done_[node.id().index()] = std::move(after);
      return;
    }
    add_running_node(node);
  }

  std::uint32_t add_constant(const Tensor& value) {
    plan_->constants.push_back(value);
    const auto index = static_cast<std::uint32_t>(plan_->constants.size() - 1);
    return add_storage({{Location::Kind::kConstant, index, 0}, num_bytes(value.spec()), -1});
  }

  // Constants need no kernel call.
  static const Tensor* constant_of(const Node& node) {
    const auto& attribute = node.op().traits.gives_attribute;
    return attribute ? node.find<Tensor>(*attribute) : nullptr;
  }

  std::uint32_t storage_of(ValueId value) const { return values_[value.node.index()][value.output]; }

  void add_running_node(const Node& node) {
    const OpDef& op = node.op();
    Work work;
    work.node = &node;
    work.after = predecessors(node);
    const bool has_regions = op.region_kind != RegionKind::kNone;
    std::vector<TensorSpec> specs;
    for (const ValueId input : node.inputs()) specs.push_back(resolved_.spec_of(input));
    const NodeView::ShapeValues shape_values = resolved_.host_values().for_node(node);
    const NodeView view = view_of(node, specs, variable_specs_, &shape_values);
    const std::span<const TensorSpec> outputs = resolved_.outputs_of(node);

    // Variables: an update takes the current value as its first input. A node with regions takes the
    // variables that they use after its other inputs, and returns them after its other outputs.
    const SmallVector<std::string, 1> updated = updated_variables(node);
    std::vector<VariableUse> uses;
    if (has_regions) uses = variable_uses(node);
    for (const std::string& name : updated) take_variable(work, variables_.at(name));
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const ValueId input = node.inputs()[i];
      const std::uint32_t storage = ResolvedGraph::is_shape_operand(node, i)
                                        ? add_constant(resolved_.host_values().of(input))
                                        : storage_of(input);
      work.inputs.push_back({storage, &resolved_.spec_of(input)});
    }
    if (has_regions) {
      for (const VariableUse& use : uses) take_variable(work, variables_.at(use.name));
    }

    bool defers = false;
    if (has_regions) {
      RegionKernel region =
          make_region_kernel(node, specs, outputs, uses, runtime_, options_, variable_specs_, replica_);
      work.kernel = add_kernel(std::move(region.kernel));
      work.seconds = region.seconds;
      work.split.scratch_bytes = region.scratch_bytes;
      plan_->region_planned_bytes += region.planned_bytes;
      plan_->region_live_bytes += region.live_bytes;
      defers = region.defers;
    } else {
      const bool nothing = internal::gives_nothing(node, outputs);
      const Device device = device_named(node.device());
      const NodeView placed = view.placed(device, runtime_);
      static const KernelDef kNothing(
          [](const NodeView&, std::span<const TensorSpec>) -> KernelFn { return [](KernelContext&) {}; });
      const KernelDef& def = nothing ? kNothing : find_kernel(node, device);
      work.kernel = add_kernel(make_kernel(node, def, placed, outputs));
      if (def.split) work.split = def.split(placed, outputs);
      if (work.split.shards < 1 || work.split.shards >= (1 << 24)) {
        std::string gives;
        for (const TensorSpec& output : outputs)
          gives += str(gives.empty() ? " gives " : ", ", output, " (", num_bytes(output), " bytes)");
        throw InvalidArgument(
            str("'", node.name(), "'", gives, " in ", work.split.shards,
                " shards, and there must be between 1 and 2^24: work on smaller values, or, "
                "for an op of your own, let OpDef::split say another number"),
            place_of(node));
      }
      const Cost cost = def.cost ? def.cost(placed, outputs) : Cost{0, bytes_of(view, outputs), 0};
      work.seconds = seconds_of(cost);
      work.hinted = cost.seconds > 0;
      work.deferred = defers = def.deferred;
      if (work.deferred) prepare_deferred(work, !updated.empty());
    }

    // Outputs.
    std::vector<std::uint32_t>& values = values_[node.id().index()];
    bool in_place_update = false;
    if (!updated.empty()) {
      LOCKSTEP_CHECK(outputs.size() == updated.size(), op.name, " gives ", outputs.size(), " outputs");
      in_place_update = variables_.at(updated[0]).in_commit == node.id();
      work.commit = in_place_update;
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const ValueId value{node.id(), static_cast<std::uint32_t>(i)};
      values.push_back(in_place_update
                           ? variables_.at(updated[i]).live_storage
                           : add_arena_storage(num_bytes(outputs[i]), arena_of(device_of(graph_, value))));
      storages_[values.back()].deferred = work.deferred;
      work.outputs.push_back({values.back(), &outputs[i]});
    }
    const bool has_slots = updated.size() > 1 || (!updated.empty() && op.traits.updates_variable->indices);
    const bool may_replace = op.traits.in_place && !in_place_update && !has_slots && !work.deferred;
    if (may_replace && !work.outputs.empty()) offer_in_place(work);
    std::vector<std::pair<VariableState*, std::uint32_t>> shadows;
    if (has_regions) {
      for (const VariableUse& use : uses) {
        if (!use.writes) continue;
        VariableState& state = variables_.at(use.name);
        const TensorSpec* spec = variable_specs_(use.name);
        const std::uint32_t shadow = add_arena_storage(num_bytes(*spec), arena_of(node.device()));
        work.outputs.push_back({shadow, keep_spec(*spec)});
        shadows.emplace_back(&state, shadow);
      }
    } else if (!in_place_update) {
      for (std::size_t i = 0; i < updated.size(); ++i)
        shadows.emplace_back(&variables_.at(updated[i]), values[i]);
    }
    plan_->defers = plan_->defers || defers;
    // Members of a group must all make their calls in one order: that of the nodes. The calls may overlap.
    const bool in_order = defers && has(effects_of(node), Effect::kCollective);
    if (in_order && last_collective_) work.after.push_back(*last_collective_);
    if (in_order) last_collective_ = static_cast<std::uint32_t>(plan_->phases.size());
    const std::uint32_t last = add_work(std::move(work));
    done_[node.id().index()] = {last};
    for (const auto& [state, shadow] : shadows) {
      state->storage = shadow;
      state->shadowed = true;
      state->writers = {last};
    }
  }

  // A deferred call may go on when the run has ended for its caller, who then has the feeds again: it reads
  // copies of them.
  void prepare_deferred(Work& work, bool updates) {
    if (updates || work.split.shards != 1 || work.split.finish) {
      throw InvalidArgument(
          str("the kernel of op '", work.node->op().name, "' defers its calls (KernelDef::deferred), ",
              updates ? "and such a kernel cannot update a variable: give the new value as an output, and "
                        "assign it"
                      : "and such a kernel has one shard and no finishing call"),
          place_of(*work.node));
    }
    for (Argument& input : work.inputs) {
      if (storages_[input.storage].location.kind != Location::Kind::kFeed) continue;
      const std::uint32_t copy = add_arena_storage(num_bytes(*input.spec), arena_of(work.node->device()));
      // The feed is there from the start.
      work.after.push_back(add_copy(*work.node, input.storage, copy, input.spec, {}, false));
      input.storage = copy;
    }
  }

  const TensorSpec* keep_spec(const TensorSpec& spec) {
    plan_->specs.push_back(std::make_unique<TensorSpec[]>(1));
    plan_->specs.back()[0] = spec;
    return plan_->specs.back().get();
  }

  void take_variable(Work& work, const VariableState& state) {
    const std::string& name = plan_->variables[state.index].name;
    work.inputs.push_back({state.storage, keep_spec(*variable_specs_(name))});
    work.after.insert(work.after.end(), state.writers.begin(), state.writers.end());
  }

  // The kernel for the node's device. Throws InvalidArgument if there is none.
  const KernelDef& find_kernel(const Node& node, const Device& device) const {
    const std::string& set = runtime_.topology().facts(device).kernels;
    if (const KernelDef* found = OpRegistry::global().kernel(node.op(), set)) return *found;
    const char* remedy = combines_replicas(node.op())
                             ? "; let a strategy distribute the graph (Strategy::distribute, or lockstep run "
                               "--strategy)"
                             : "; place the node elsewhere, or register one (OpRegistry::add_kernel)";
    throw InvalidArgument(str("op '", node.op().name, "' has no kernel for ", device,
                              ", which runs the kernels '", set, "'", remedy),
                          place_of(node));
  }

  static KernelFn make_kernel(const Node& node, const KernelDef& def, const NodeView& view,
                              std::span<const TensorSpec> outputs) {
    KernelFn kernel;
    try {
      kernel = def.make(view, outputs);
    } catch (const Error& error) {
      if (!error.place().node.empty()) throw;
      throw Error(error.code(), error.message(), place_of(node));
    }
    if (!kernel) {
      throw InvalidArgument(str("the kernel maker of op '", node.op().name, "' gave an empty function"),
                            place_of(node));
    }
    return kernel;
  }

  static double bytes_of(const NodeView& view, std::span<const TensorSpec> outputs) {
    double bytes = 0;
    for (const TensorSpec& input : view.inputs()) bytes += static_cast<double>(num_bytes(input));
    for (const TensorSpec& output : outputs) bytes += static_cast<double>(num_bytes(output));
    return bytes;
  }

  // Which inputs may be written over: see OpTraits::in_place. Kernels of nodes with regions allow output 0
  // over any input.
  void offer_in_place(const Work& work) {
    if (work.outputs.size() > 1 && work.node->regions().empty()) return offer_pairs(work);
    // An update by rows reads its rows in another order than it writes them: it may only write over the
    // variable.
    const auto& update = work.node->op().traits.updates_variable;
    const std::size_t count = update && update->indices ? 1 : work.inputs.size();
    for (std::size_t i = 0; i < count; ++i) {
      if (offer(work.inputs[i], work.outputs[0])) return;
    }
  }

  // Output i over input i, if no other input has the same memory: that input might be read after output i is
  // written.
  void offer_pairs(const Work& work) {
    std::unordered_map<std::uint32_t, std::size_t> uses;
    for (const Argument& input : work.inputs) ++uses[input.storage];
    for (std::size_t i = 0; i < std::min(work.inputs.size(), work.outputs.size()); ++i) {
      if (uses[work.inputs[i].storage] == 1) offer(work.inputs[i], work.outputs[i]);
    }
  }

  // Only memory in the arena can be taken over.
  bool offer(const Argument& input, const Argument& output) {
    const std::int64_t interval = storages_[input.storage].interval;
    if (interval < 0 || !(*input.spec == *output.spec)) return false;
    intervals_[static_cast<std::size_t>(storages_[output.storage].interval)].in_place_of = interval;
    return true;
  }

  // --- the end of a step

  std::uint32_t add_copy(const Node& node, std::uint32_t from, std::uint32_t to, const TensorSpec* spec,
                         std::vector<std::uint32_t> after, bool commit) {
    Work work;
    work.node = &node;
    work.inputs = {{from, spec}};
    work.outputs = {{to, spec}};
    work.after = std::move(after);
    work.commit = commit;
    const std::int64_t bytes = num_bytes(*spec);
    work.split.shards = std::max<std::int64_t>(1, (bytes + kCopyGrain - 1) / kCopyGrain);
    work.seconds = 2 * static_cast<double>(bytes) / kBandwidth;
    work.kernel = add_kernel([bytes](KernelContext& c) {
      const auto [begin, end] = c.range(bytes);
      if (end > begin) {
        std::memcpy(static_cast<char*>(c.output(0)) + begin, static_cast<const char*>(c.input(0)) + begin,
                    static_cast<std::size_t>(end - begin));
      }
    });
    return add_work(std::move(work));
  }

  void commit_shadows() {
    for (auto& [name, state] : variables_) {
      if (!state.shadowed) continue;
      const Node& node = graph_.node(plan_->phases[state.writers[0]].node);
      add_copy(node, state.storage, state.live_storage, keep_spec(*variable_specs_(name)), state.writers,
               true);
    }
  }

  void add_results() {
    std::vector<bool> given(storages_.size(), false);
    for (std::uint32_t i = 0; i < graph_.results().size(); ++i) {
      const ValueId value = graph_.results()[i];
      const TensorSpec& spec = resolved_.spec_of(value);
      plan_->results.push_back(spec);
      const std::uint32_t from = storage_of(value);
      const Location result{Location::Kind::kResult, i, 0};
      Storage& storage = storages_[from];
      // Computed directly into the result, unless the call may still be writing when the caller has it again.
      if (storage.interval >= 0 && !given[from] && !storage.deferred) {
        storage.location = result;
        given[from] = true;
        continue;
      }
      const std::uint32_t to = add_storage({result, storage.bytes, -1});
      given.resize(storages_.size(), true);
      const std::vector<std::uint32_t>& after = done_[value.node.index()];
      const bool behind_commit =
          std::ranges::any_of(after, [&](std::uint32_t phase) { return phases_[phase].commit; });
      add_copy(graph_.node(value.node), from, to, &spec, after, behind_commit);
    }
  }

  void lay_out() {
    if (plan_->arenas.empty()) plan_->arenas.push_back(runtime_.devices().front());
    std::size_t lanes = std::max<std::size_t>(runtime_.scheduler().num_workers(), 1);
    if (options_.clustering == Clustering::kByCost && plan_->seconds < options_.inline_seconds) lanes = 1;
    plan_->clusters = make_clusters(phases_, {lanes, options_.clustering == Clustering::kByCost});
    const std::size_t too_few = options_.clustering == Clustering::kByCost ? 2 : 1;
    if (plan_->clusters.clusters.size() <= too_few && lanes > 1) {
      plan_->clusters = make_clusters(phases_, {1, true});  // nothing can run in parallel
    }
    plan_->lanes = plan_->clusters.sequential ? 1 : lanes;
    sort_plain_calls();

    // Values that lie in results need no memory of the plan.
    std::vector<std::int64_t> used(intervals_.size(), -1);
    std::vector<Interval> needed;
    const auto need = [&](std::int64_t interval) {
      std::int64_t& number = used[static_cast<std::size_t>(interval)];
      if (number >= 0) return;
      number = static_cast<std::int64_t>(needed.size());
      needed.push_back(intervals_[static_cast<std::size_t>(interval)]);
    };
    for (const Storage& storage : storages_) {
      if (storage.interval >= 0 && storage.location.kind == Location::Kind::kArena) need(storage.interval);
    }
    for (const PlannedPhase& call : plan_->phases) {
      if (call.scratch >= 0) need(call.scratch);
    }
    for (Interval& interval : needed) {
      if (interval.in_place_of >= 0)
        interval.in_place_of = used[static_cast<std::size_t>(interval.in_place_of)];
    }
    plan_->memory = plan_memory(needed, plan_->phases.size(), plan_->clusters, plan_->arenas.size());
    for (std::size_t i = 0; i < plan_->args.size(); ++i) {
      const Storage& storage = storages_[arg_storage_[i]];
      plan_->args[i].location = storage.location;
      if (storage.location.kind == Location::Kind::kArena) {
        plan_->args[i].location.offset =
            needed[static_cast<std::size_t>(used[static_cast<std::size_t>(storage.interval)])].offset;
      }
    }
    plan_->scratch_offsets.assign(plan_->phases.size(), -1);
    for (std::size_t i = 0; i < plan_->phases.size(); ++i) {
      const std::int64_t scratch = plan_->phases[i].scratch;
      if (scratch >= 0) {
        plan_->scratch_offsets[i] =
            needed[static_cast<std::size_t>(used[static_cast<std::size_t>(scratch)])].offset;
      }
    }
  }

  // In the order in which they are called: neighbours in time become neighbours in memory.
  void sort_plain_calls() {
    std::vector<std::function<void()>> ordered;
    ordered.reserve(plan_->plain_calls.size());
    for (const Call& call : plan_->clusters.calls) {
      std::int32_t& plain = plan_->plain_of[plan_->phases[call.phase].kernel];
      if (plain < 0 || call.shard > 0) continue;  // shards share one function
      ordered.push_back(std::move(plan_->plain_calls[static_cast<std::size_t>(plain)]));
      plain = static_cast<std::int32_t>(ordered.size() - 1);
    }
    plan_->plain_calls = std::move(ordered);
  }

  const Graph& graph_;
  const Runtime& runtime_;
  const CompileOptions& options_;
  NodeView::VariableSpecs variable_specs_;
  int replica_;  // the replica that a region runs for; -1: each node states its own
  std::unique_ptr<Plan> plan_;
  ResolvedGraph resolved_;
  std::unordered_map<NodeId, std::uint32_t> parameters_;
  std::vector<std::vector<std::uint32_t>> values_;  // by node and output: storage
  std::vector<std::vector<std::uint32_t>> done_;    // by node: the phases after which it is done
  std::map<std::string, VariableState> variables_;
  std::vector<Storage> storages_;
  std::vector<Interval> intervals_;
  std::vector<std::uint32_t> arg_storage_;  // by argument
  std::vector<Phase> phases_;               // by phase: what clustering sees
  NameMap<std::uint32_t> arenas_;
  std::optional<std::uint32_t> last_collective_;  // the phase that starts the last call to a group
};

}  // namespace

std::unique_ptr<const Plan> make_plan(const Graph& graph, const Runtime& runtime,
                                      std::span<const TensorSpec> feeds, const CompileOptions& options) {
  return PlanMaker(graph, runtime, feeds, options, variable_specs(graph), -1).run();
}

std::unique_ptr<const Plan> make_region_plan(const Graph& region, const Runtime& runtime,
                                             std::span<const TensorSpec> arguments,
                                             const CompileOptions& options,
                                             const NodeView::VariableSpecs& variables, int replica) {
  return PlanMaker(region, runtime, arguments, options, variables, replica).run();
}

}  // namespace lockstep::internal
