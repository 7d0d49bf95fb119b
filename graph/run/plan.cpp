// graph/run/plan.cpp - everything that is decided about a run before it starts: the walk over the nodes.
#include "lockstep/graph/run/internal/plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "lockstep/graph/ir/internal/evaluate_node.h"
#include "lockstep/graph/ir/internal/region_shapes.h"
#include "lockstep/graph/ir/internal/shape_values.h"
#include "lockstep/graph/ir/placement.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/run/internal/exchange.h"
#include "lockstep/graph/run/internal/phase_plan.h"
#include "lockstep/graph/run/internal/region_kernels.h"
#include "lockstep/graph/run/internal/resolved_graph.h"
#include "lockstep/graph/run/internal/storage_plan.h"
#include "lockstep/graph/run/internal/variable_plan.h"

namespace lockstep::internal {

namespace {

std::vector<TensorSpec> specs_of(std::span<const PlacedSpec> values) {
  std::vector<TensorSpec> specs;
  for (const PlacedSpec& value : values) specs.push_back(value.spec);
  return specs;
}

class PlanMaker {
 public:
  PlanMaker(const Graph& graph, const Runtime& runtime, const PlanRequest& request,
            const CompileOptions& options)
      : graph_(graph),
        runtime_(runtime),
        request_(request),
        options_(options),
        plan_(std::make_unique<Plan>()),
        resolved_(graph, specs_of(request.feeds), request.variable_specs, plan_->specs),
        storages_(runtime, *plan_),
        phases_(runtime, *plan_, storages_, request.replica),
        variables_(resolved_, request, *plan_, storages_) {
    plan_->feeds.assign(request.feeds.begin(), request.feeds.end());
  }

  std::unique_ptr<const Plan> run() {
    for (std::uint32_t i = 0; i < graph_.parameters().size(); ++i)
      parameters_.emplace(graph_.parameters()[i], i);
    values_.resize(graph_.id_bound());
    done_.resize(graph_.id_bound());
    storages_.reserve(graph_.id_bound());
    for (const NodeId id : resolved_.order()) {
      if (resolved_.is_live(id)) add_node(graph_.node(id));
    }
    variables_.commit(graph_, phases_);
    add_results();
    storages_.place_arguments();
    phases_.make_clusters(options_);
    storages_.lay_out(phases_.device_order());
    return std::move(plan_);
  }

 private:
  using Phases = std::vector<std::uint32_t>;

  // --- nodes without a call

  // `of_calls`: gets those that are only there because calls of groups have an order.
  Phases predecessors(const Node& node, Phases* of_calls = nullptr) const {
    Phases after;
    const auto add = [&](NodeId before, Phases& to) {
      const Phases& done = done_[before.index()];
      to.insert(to.end(), done.begin(), done.end());
    };
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (ResolvedGraph::reads_contents(node, i)) add(node.inputs()[i].node, after);
    }
    for (const NodeId control : node.controls()) {
      const bool is_call = of_calls != nullptr && std::ranges::binary_search(calls_in_order_, control);
      add(control, is_call ? *of_calls : after);
    }
    // Each phase once: a node without a call of its own passes its list on.
    std::ranges::sort(after);
    after.erase(std::unique(after.begin(), after.end()), after.end());
    return after;
  }

  void add_node(const Node& node) {
    const OpDef& op = node.op();
    Phases& values = values_[node.id().index()];
    Phases& done = done_[node.id().index()];
    if (!resolved_.runs(node.id())) return;  // and no running node waits for it
    if (const std::vector<Tensor>* known = resolved_.host_values().find(node.id())) {
      for (const Tensor& value : *known) values.push_back(storages_.add_constant(value));
      done = predecessors(node);
    } else if (const auto parameter = parameters_.find(node.id()); parameter != parameters_.end()) {
      const std::uint32_t index = parameter->second;
      values = {storages_.add({.location = {Location::Kind::kFeed, index, 0},
                               .bytes = num_bytes(resolved_.outputs_of(node)[0]),
                               .memory = plan_->feeds[index].memory})};
      done = predecessors(node);
      const MemoryId memory = plan_->feeds[index].memory;
      // Its address may be another one in each run.
      if (phases_.stream_in(memory, StreamRole::kCompute) >= 0) {
        values = {move({node.id(), 0}, storages_.arena_in(memory), node, done)};
        storages_.set_copy_of(values[0], index);
      }
    } else if (const Tensor* constant = constant_of(node)) {
      values = {storages_.add_constant(*constant)};
      done = predecessors(node);
    } else if (op.traits.gives_shape) {
      values = {storages_.add_constant(shape_tensor(resolved_.spec_of(node.inputs()[0]).shape))};
    } else if (resolved_.is_alias(node)) {
      values = {storage_of(node.inputs()[0])};
      done = predecessors(node);
    } else if (op.traits.reads_variable) {
      const PlannedState& state = variables_.at(node.find<VariableRef>(*op.traits.reads_variable)->name);
      values = {state.current};
      done = predecessors(node);
      done.insert(done.end(), state.writers.begin(), state.writers.end());
    } else if (op.traits.transfers && is_elsewhere(node)) {
      values = {move(node.inputs()[0], storages_.arena_of(node.device()), node, done)};
      const Phases before = predecessors(node);
      done.insert(done.end(), before.begin(), before.end());
    } else {
      add_running_node(node);
    }
  }

  // Constants need no kernel call.
  static const Tensor* constant_of(const Node& node) {
    const auto& attribute = node.op().traits.gives_attribute;
    return attribute ? node.find<Tensor>(*attribute) : nullptr;
  }

  // --- where values are

  std::uint32_t storage_of(ValueId value) const { return values_[value.node.index()][value.output]; }

  // Is a transfer between memories, or within one that is not the host's, the plan's to make?
  bool is_elsewhere(const Node& node) {
    return storages_[storage_of(node.inputs()[0])].memory != kHostMemory ||
           storages_.memory_of(node.device()) != kHostMemory;
  }

  // A copy of the value in another arena; `done` gets the phase after which it is there.
  std::uint32_t move(ValueId value, std::uint32_t arena, const Node& reader, Phases& done) {
    const TensorSpec* spec = &resolved_.spec_of(value);
    const std::uint32_t to = storages_.add_room(num_bytes(*spec), arena, phases_.next());
    done.push_back(phases_.add_copy(reader, storage_of(value), to, spec, done_[value.node.index()]));
    return to;
  }

  // The storage of the value in a memory, which the value is moved to at most once.
  std::uint32_t storage_in(ValueId value, MemoryId memory, const Node& reader, Phases& after) {
    const std::uint32_t here = storage_of(value);
    if (storages_[here].memory == memory) return here;
    if (storages_[here].location.kind == Location::Kind::kConstant)
      return storages_.constant_in(here, memory);
    const auto [found, fresh] = moved_.try_emplace({value, memory});
    Moved& moved = found->second;
    if (fresh) moved.storage = move(value, storages_.arena_in(memory), reader, moved.done);
    after.insert(after.end(), moved.done.begin(), moved.done.end());
    return moved.storage;
  }

  // --- nodes with a call

  void add_running_node(const Node& node) {
    const bool has_regions = node.op().region_kind != RegionKind::kNone;
    Work work;
    work.node = &node;
    Phases earlier_calls;
    work.after = predecessors(node, &earlier_calls);
    const SmallVector<std::string, 1> updated = updated_variables(node);
    const std::vector<VariableUse> uses = has_regions ? variable_uses(node) : std::vector<VariableUse>();
    const std::shared_ptr<DeviceGroup> exchange =
        several_memories_ ? find_exchange(graph_, node, runtime_) : nullptr;
    const NodeMemories memories = has_regions           ? region_memories(node)
                                  : exchange != nullptr ? exchange_memories(node)
                                                        : NodeMemories();
    add_inputs(work, updated, uses, memories);
    const bool defers = has_regions           ? add_region_kernel(work, uses, memories)
                        : exchange != nullptr ? add_exchange(work, exchange)
                                              : add_op_kernel(work, !updated.empty());
    const bool in_place = add_outputs(work, updated, memories);
    std::vector<std::pair<std::string, std::uint32_t>> shadows;
    if (has_regions) {
      shadows = add_region_state(work, uses, memories);
    } else if (!in_place) {
      for (std::size_t i = 0; i < updated.size(); ++i)
        shadows.emplace_back(updated[i], values_[node.id().index()][i]);
    }
    plan_->defers = plan_->defers || defers;
    // Members of a group must all make their calls in one order: that of the nodes. The calls may overlap, so that one need not
    // wait for the end of another; but the calls of a region are all made when it has ended, and not before.
    const bool in_order = defers && has(effects_of(node), Effect::kCollective);
    if (!in_order) work.after.insert(work.after.end(), earlier_calls.begin(), earlier_calls.end());
    if (in_order && last_collective_) work.after.push_back(*last_collective_);
    const std::uint32_t first = phases_.next();
    const std::uint32_t last = phases_.add(std::move(work));
    if (in_order) last_collective_ = has_regions ? last : first;
    if (in_order && !has_regions)
      calls_in_order_.insert(std::ranges::upper_bound(calls_in_order_, node.id()), node.id());
    done_[node.id().index()] = {last};
    for (const auto& [name, shadow] : shadows) variables_.set_shadow(name, shadow, last);
    bring_home(node, in_place);
  }

  // An update takes the current value of its variables before its other inputs. A node with regions takes the
  // variables that they use after its other inputs, and returns them after its other outputs.
  void add_inputs(Work& work, std::span<const std::string> updated, std::span<const VariableUse> uses,
                  const NodeMemories& memories) {
    const Node& node = *work.node;
    const MemoryId own = storages_.memory_of(node.device());
    for (const std::string& name : updated) take_variable(work, variables_.at(name), own);
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const ValueId input = node.inputs()[i];
      const bool by_shape = ResolvedGraph::is_shape_operand(node, i);  // read when the plan is made
      const MemoryId wanted = memories.inputs.empty() ? own : memories.inputs[i];
      const std::uint32_t storage = by_shape ? storages_.add_constant(resolved_.host_values().of(input))
                                             : storage_in(input, wanted, node, work.after);
      work.inputs.push_back({storage, &resolved_.spec_of(input)});
    }
    for (const VariableUse& use : uses) {
      const PlannedState& state = variables_.at(use.name);
      take_variable(work, state, storages_[state.current].memory);
    }
  }

  void take_variable(Work& work, const PlannedState& state, MemoryId wanted) {
    std::uint32_t storage = state.current;
    work.after.insert(work.after.end(), state.writers.begin(), state.writers.end());
    if (storages_[storage].memory != wanted) {
      const std::uint32_t to =
          storages_.add_room(num_bytes(*state.spec), storages_.arena_in(wanted), phases_.next());
      work.after.push_back(phases_.add_copy(*work.node, storage, to, state.spec, state.writers));
      storage = to;
    }
    work.inputs.push_back({storage, state.spec});
  }

  // The kernel of the node's op for its device. Returns whether it may defer its calls.
  bool add_op_kernel(Work& work, bool updates) {
    const Node& node = *work.node;
    const std::span<const TensorSpec> outputs = resolved_.outputs_of(node);
    std::vector<TensorSpec> specs;
    for (const ValueId input : node.inputs()) specs.push_back(resolved_.spec_of(input));
    const NodeView::ShapeValues shape_values = resolved_.host_values().for_node(node);
    const NodeView view = view_of(node, specs, request_.variable_specs, &shape_values);
    const DeviceFacts& facts = storages_.facts(storages_.arena_of(node.device()));
    const NodeView placed = view.placed(facts.device, runtime_, options_.allow_tf32);
    static const KernelDef kNothing(
        [](const NodeView&, std::span<const TensorSpec>) -> KernelFn { return [](KernelContext&) {}; });
    const KernelDef& def = internal::gives_nothing(node, outputs) ? kNothing : find_kernel(node, facts);
    work.kernel = phases_.add_kernel(make_kernel(node, def, placed, outputs));
    if (def.split) work.split = def.split(placed, outputs);
    check_shards(node, work.split, outputs);
    const Cost cost = def.cost ? def.cost(placed, outputs) : Cost{0, bytes_of(view, outputs), 0};
    work.seconds = PhasePlan::seconds_of(cost);
    work.hinted = cost.seconds > 0;
    if (&def != &kNothing) add_figures(work, def, cost, placed, outputs);
    work.deferred = def.deferred;
    if (work.deferred) {
      prepare_deferred(work, updates);
    } else {
      work.stream = phases_.stream_of(facts.device, StreamRole::kCompute);
    }
    return work.deferred;
  }

  // What the node moves and multiplies wherever it runs: as its op says, if the device's kernel says nothing. An input that is given
  // twice is read once.
  static void add_figures(Work& work, const KernelDef& def, Cost cost, const NodeView& view,
                          std::span<const TensorSpec> outputs) {
    const Node& node = *work.node;
    if (!def.cost && node.op().cost) {
      try {
        cost = node.op().cost(view, outputs);
      } catch (const Error&) {  // said for the CPU's kernel, which need not take all that the device's takes
        return;
      }
    }
    double repeated = 0;
    const auto first = node.inputs().begin();
    for (std::size_t i = 1; i < node.inputs().size(); ++i) {
      const auto here = first + static_cast<std::ptrdiff_t>(i);
      if (std::find(first, here, *here) != here) repeated += static_cast<double>(num_bytes(view.input(i)));
    }
    const bool counts_all = cost.bytes >= bytes_of(view, outputs);
    work.bytes_moved = cost.bytes - (counts_all ? repeated : 0);
    work.multiply_adds = cost.multiply_adds;
  }

  // The values of a replica stay in its memory.
  NodeMemories exchange_memories(const Node& node) {
    NodeMemories memories;
    memories.own = storages_.memory_of(node.device());
    for (const ValueId input : node.inputs())
      memories.inputs.push_back(storages_.memory_of(device_of(graph_, input)));
    memories.outputs = memories.inputs;
    return memories;
  }

  bool add_exchange(Work& work, const std::shared_ptr<DeviceGroup>& group) {
    work.kernel = phases_.add_kernel(make_exchange(*work.node, group));
    for (const StorageUse& input : work.inputs)
      work.bytes_moved += static_cast<double>(num_bytes(*input.spec));
    for (const TensorSpec& output : resolved_.outputs_of(*work.node))
      work.bytes_moved += static_cast<double>(num_bytes(output));
    work.deferred = true;
    prepare_deferred(work, false);
    return true;
  }

  static void check_shards(const Node& node, const Split& split, std::span<const TensorSpec> outputs) {
    if (split.shards >= 1 && split.shards < (1 << 24)) return;
    std::string gives;
    for (const TensorSpec& output : outputs)
      gives += str(gives.empty() ? " gives " : ", ", output, " (", num_bytes(output), " bytes)");
    throw InvalidArgument(str("'", node.name(), "'", gives, " in ", split.shards,
                              " shards, and there must be between 1 and 2^24: work on smaller values, or, "
                              "for an op of your own, let OpDef::split say another number"),
                          place_of(node));
  }

  bool add_region_kernel(Work& work, std::span<const VariableUse> uses, const NodeMemories& memories) {
    const Node& node = *work.node;
    std::vector<TensorSpec> specs;
    for (const ValueId input : node.inputs()) specs.push_back(resolved_.spec_of(input));
    PlanRequest request;
    request.variable_specs = request_.variable_specs;
    request.variable_memory = [&](const std::string& name) {
      return storages_[variables_.at(name).current].memory;
    };
    request.replica = request_.replica;
    RegionKernel region = make_region_kernel(node, specs, resolved_.outputs_of(node), memories,
                                             {uses.begin(), uses.end()}, runtime_, options_, request);
    work.kernel = phases_.add_kernel(std::move(region.kernel));
    work.seconds = region.seconds;
    plan_->region_planned_bytes += region.planned_bytes;
    plan_->region_live_bytes += region.live_bytes;
    plan_->regions_on_streams = plan_->regions_on_streams || region.on_streams;
    return region.defers;
  }

  // In which memory a node with regions takes its inputs and leaves its outputs. A loop leaves a carried value
  // where it takes it.
  NodeMemories region_memories(const Node& node) {
    NodeMemories memories;
    const RegionKind kind = node.op().region_kind;
    const std::size_t carried = kind == RegionKind::kWhile ? loop_shape(node).carried : 0;
    memories.own = storages_.memory_of(node.device());
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const bool predicate = kind == RegionKind::kCond && i == 0;
      memories.inputs.push_back(predicate ? kHostMemory : storages_.memory_of(wanted_device(node, i)));
    }
    for (std::size_t i = 0; i < node.outputs().size(); ++i) {
      const ValueId value{node.id(), static_cast<std::uint32_t>(i)};
      memories.outputs.push_back(i < carried ? memories.inputs[i]
                                             : storages_.memory_of(device_of(graph_, value)));
    }
    return memories;
  }

  // Returns whether the outputs are the variables themselves, in the commit stage.
  bool add_outputs(Work& work, std::span<const std::string> updated, const NodeMemories& memories) {
    const Node& node = *work.node;
    const OpDef& op = node.op();
    const std::span<const TensorSpec> outputs = resolved_.outputs_of(node);
    const std::uint32_t arena = storages_.arena_of(node.device());
    Phases& values = values_[node.id().index()];
    bool in_place = false;
    if (!updated.empty()) {
      LOCKSTEP_CHECK(outputs.size() == updated.size(), op.name, " gives ", outputs.size(), " outputs");
      in_place = std::ranges::all_of(updated, [&](const std::string& name) {
        const PlannedState& state = variables_.at(name);
        return state.in_commit == node.id() && storages_[state.live].memory == storages_.memory_of(arena);
      });
      work.commit = in_place;
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const MemoryId memory = memories.outputs.empty() ? storages_.memory_of(arena) : memories.outputs[i];
      const std::uint32_t home =
          storages_.arena_of(device_of(graph_, {node.id(), static_cast<std::uint32_t>(i)}));
      const std::uint32_t in = storages_.memory_of(home) == memory ? home : storages_.arena_in(memory);
      values.push_back(in_place ? variables_.at(updated[i]).live
                                : storages_.add_room(num_bytes(outputs[i]), in, phases_.next()));
      if (work.deferred) storages_.set_deferred(values.back());
      work.outputs.push_back({values.back(), &outputs[i]});
    }
    const auto& update = op.traits.updates_variable;
    const bool has_slots = updated.size() > 1 || (update && update->indices);
    const bool may_replace = op.traits.in_place && !in_place && !has_slots && !work.deferred;
    if (may_replace && !work.outputs.empty()) storages_.offer_in_place(node, work.inputs, work.outputs);
    return in_place;
  }

  // The new values of variables that the regions write, and room for the values that a loop carries; returns
  // the variables' shadows.
  std::vector<std::pair<std::string, std::uint32_t>> add_region_state(Work& work,
                                                                      std::span<const VariableUse> uses,
                                                                      const NodeMemories& memories) {
    std::vector<std::pair<std::string, std::uint32_t>> shadows;
    const auto room = [&](const TensorSpec& spec, MemoryId memory) {
      const std::uint32_t own = storages_.arena_of(work.node->device());
      const std::uint32_t arena = storages_.memory_of(own) == memory ? own : storages_.arena_in(memory);
      return storages_.add_room(num_bytes(spec), arena, phases_.next());
    };
    for (const VariableUse& use : uses) {
      if (!use.writes) continue;
      const PlannedState& state = variables_.at(use.name);
      shadows.emplace_back(use.name, room(*state.spec, storages_[state.current].memory));
      work.outputs.push_back({shadows.back().second, state.spec});
    }
    if (work.node->op().region_kind == RegionKind::kWhile) {
      for (std::size_t i = 0; i < loop_shape(*work.node).carried; ++i) {
        const TensorSpec& spec = resolved_.spec_of(work.node->inputs()[i]);
        work.rooms.push_back({room(spec, memories.inputs[i]), &spec});
      }
    }
    return shadows;
  }

  // Values that a call leaves elsewhere than device_of() says are moved there: those of a collective, whose
  // kernel runs in one memory, and what a loop carries.
  void bring_home(const Node& node, bool in_place) {
    if (in_place || !several_memories_) return;
    Phases moves;
    for (std::uint32_t i = 0; i < node.outputs().size(); ++i) {
      const ValueId value{node.id(), i};
      const std::string& home = device_of(graph_, value);
      if (storages_[storage_of(value)].memory == storages_.memory_of(home)) continue;
      values_[node.id().index()][i] = move(value, storages_.arena_of(home), node, moves);
    }
    Phases& done = done_[node.id().index()];
    done.insert(done.end(), moves.begin(), moves.end());
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
    for (StorageUse& input : work.inputs) {
      if (storages_[input.storage].location.kind != Location::Kind::kFeed) continue;
      const std::uint32_t own = storages_.arena_of(work.node->device());
      const MemoryId memory = storages_[input.storage].memory;
      const std::uint32_t arena = storages_.memory_of(own) == memory ? own : storages_.arena_in(memory);
      const std::uint32_t copy = storages_.add_room(num_bytes(*input.spec), arena, phases_.next());
      // The feed is there from the start.
      work.after.push_back(phases_.add_copy(*work.node, input.storage, copy, input.spec, {}));
      input.storage = copy;
    }
  }

  // The kernel for the node's device. Throws InvalidArgument if there is none.
  static const KernelDef& find_kernel(const Node& node, const DeviceFacts& facts) {
    if (const KernelDef* found = OpRegistry::global().kernel(node.op(), facts.kernels)) return *found;
    const char* remedy = combines_replicas(node.op())
                             ? "; let a strategy distribute the graph (Strategy::distribute, or lockstep run "
                               "--strategy)"
                             : "; place the node elsewhere, or register one (OpRegistry::add_kernel)";
    throw InvalidArgument(str("op '", node.op().name, "' has no kernel for ", facts.device,
                              ", which runs the kernels '", facts.kernels, "'", remedy),
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

  // --- the end of a step

  void add_results() {
    std::vector<bool> given(storages_.size(), false);
    for (std::uint32_t i = 0; i < graph_.results().size(); ++i) {
      const ValueId value = graph_.results()[i];
      const TensorSpec& spec = resolved_.spec_of(value);
      const std::uint32_t from = storage_of(value);
      const Storage storage = storages_[from];
      const MemoryId wanted = request_.results.empty() ? storage.memory : request_.results[i];
      plan_->results.push_back({spec, wanted});
      plan_->results_where_made = plan_->results_where_made && wanted == storage.memory;
      const Location result{Location::Kind::kResult, i, 0};
      // Computed directly into the result, unless the call may still be writing when the caller has it again.
      const bool on_stream = phases_.stream_in(storage.memory, StreamRole::kCompute) >= 0;
      // A stream writes a result last: nothing else of the plan may read it there. Nor does a stream read what is written there: the
      // result of the next run lies elsewhere, and a recording reads where it once lay.
      const auto is_on_stream = [&](std::uint32_t phase) { return plan_->phases[phase].stream >= 0; };
      const std::span<const std::uint32_t> readers = storages_.readers_of(from);
      const bool read_there =
          std::ranges::any_of(readers, is_on_stream) ||
          (!readers.empty() && std::ranges::any_of(done_[value.node.index()], is_on_stream));
      const bool directly =
          storage.interval >= 0 && storage.memory == wanted && !storage.deferred && !on_stream && !read_there;
      if (directly && !given[from]) {
        storages_.turn_into(from, result);
        given[from] = true;
        continue;
      }
      const std::uint32_t to = storages_.add({.location = result, .bytes = storage.bytes, .memory = wanted});
      given.resize(storages_.size(), true);
      phases_.add_copy(graph_.node(value.node), from, to, &spec, done_[value.node.index()]);
    }
  }

  const Graph& graph_;
  const Runtime& runtime_;
  const PlanRequest& request_;
  const CompileOptions& options_;
  std::unique_ptr<Plan> plan_;
  ResolvedGraph resolved_;
  StoragePlan storages_;
  PhasePlan phases_;
  VariablePlan variables_;
  std::unordered_map<NodeId, std::uint32_t> parameters_;
  std::vector<std::vector<std::uint32_t>> values_;  // by node and output: storage
  std::vector<Phases> done_;                        // by node: the phases after which it is done
  struct Moved {
    std::uint32_t storage = 0;
    Phases done;
  };
  std::map<std::pair<ValueId, MemoryId>, Moved> moved_;
  const bool several_memories_ = std::ranges::any_of(
      runtime_.topology().devices(), [](const DeviceFacts& facts) { return facts.memory != kHostMemory; });
  std::optional<std::uint32_t> last_collective_;  // the phase that starts the last call to a group
  std::vector<NodeId> calls_in_order_;            // the nodes of such calls, sorted
};

}  // namespace

std::unique_ptr<const Plan> make_plan(const Graph& graph, const Runtime& runtime, const PlanRequest& request,
                                      const CompileOptions& options) {
  return PlanMaker(graph, runtime, request, options).run();
}

std::unique_ptr<const Plan> make_host_plan(const Graph& graph, const Runtime& runtime,
                                           std::span<const TensorSpec> feeds, const CompileOptions& options) {
  std::vector<PlacedSpec> placed;
  for (const TensorSpec& feed : feeds) placed.push_back({feed, kHostMemory});
  const std::vector<MemoryId> results(graph.results().size(), kHostMemory);
  PlanRequest request;
  request.feeds = placed;
  request.results = results;
  request.variable_specs = variable_specs(graph);
  request.variable_memory = [](const std::string&) { return kHostMemory; };
  return make_plan(graph, runtime, request, options);
}

}  // namespace lockstep::internal
