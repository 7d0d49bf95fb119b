// graph/ops/fused/tile_program_maker.cpp - from a region of element-wise nodes to a tile program.
//
//   select          which nodes the results need, in which order they run
//   choose_chains   which neighbours in that order form a chain, and which of its values others read
//   choose_modes    how each input reaches its readers
//   plan_outputs    which results are written directly to their output
//   add_...         instructions, with a register for each value that has to be kept
//   choose_tile     as many elements as the registers have room for
#include <algorithm>
#include <limits>
#include <numeric>

#include "lockstep/graph/ops/fused/internal/step_tile.h"
#include "lockstep/graph/ops/fused/internal/tile_program.h"

namespace lockstep::internal {

namespace {

constexpr std::int64_t kMaxTile = 1024;             // elements
constexpr std::int64_t kMinTile = 64;               // below this, calls cost more than elements
constexpr std::size_t kRegisterBudget = 24 * 1024;  // bytes: leaves room in the cache for streamed data
constexpr std::int64_t kLongRow = 256;              // elements: rows worth a tile of their own
constexpr std::uint32_t kNoCell = 0xFFFFFFFFU;
constexpr std::uint32_t kMemory = 0x80000000U;  // while registers are counted: not a register
constexpr std::size_t kNoInstruction = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kEnd = std::numeric_limits<std::size_t>::max();

}  // namespace

class TileProgram::Maker {
 public:
  Maker(TileProgram& program, const Graph& region, std::span<const TensorSpec> specs,
        std::span<const std::size_t> results)
      : program_(program), region_(region), specs_(specs), results_(results), values_(region.id_bound()) {
    shape_ = spec_of(region.results()[results[0]].node).shape;
    program_.elements_ = shape_.num_elements();
  }

  void run() {
    select();
    add_sources();
    choose_modes();
    choose_chains();
    place_sources();
    plan_outputs();
    for (std::size_t i = 0; i < nodes_.size(); ++i) place_value(i);
    for (std::size_t i = 0; i < nodes_.size(); ++i) add_instruction(i);
    for (Output& output : program_.outputs_) {
      if (output.copied) output.cell = at(region_.results()[output.output].node).cell;
    }
    number_cells();
    choose_tile();
  }

 private:
  // What is known of a node's value.
  struct Value {
    std::int32_t parameter = -1;
    std::size_t source = kNoInstruction;   // its number among the program's sources
    std::size_t made_by = kNoInstruction;  // the instruction that makes it
    std::size_t last_use = 0;  // the last instruction that reads it; kEnd: it is copied at the end
    std::uint32_t cell = kNoCell;
    std::uint32_t element = kNoCell;  // of an input with one element, or one a row: the cell of that element
    bool is_result = false;
    bool is_kept = false;  // read by others than the next step of its chain
  };
  // How an instruction runs.
  struct Plan {
    TileFn function;
    std::optional<kernels::ChainOp> step;  // it can be a step of a chain
    bool continues = false;                // it takes the value of the instruction before it
  };

  Value& at(NodeId id) { return values_[id.index()]; }
  const Value& at(NodeId id) const { return values_[id.index()]; }
  const TensorSpec& spec_of(NodeId id) const { return specs_[id.index()]; }

  // --- what runs

  // Depth first, so that a node comes right after one that it reads.
  void select() {
    for (std::size_t i = 0; i < region_.parameters().size(); ++i)
      at(region_.parameters()[i]).parameter = static_cast<std::int32_t>(i);
    std::vector<bool> seen(region_.id_bound(), false);
    std::vector<std::pair<NodeId, std::size_t>> path;  // nodes, and which input comes next
    const auto enter = [&](NodeId id) {
      if (seen[id.index()]) return;
      seen[id.index()] = true;
      if (at(id).parameter >= 0 || constant_of(region_.node(id)) != nullptr) {
        sources_.push_back(id);
      } else {
        path.emplace_back(id, 0);
      }
    };
    for (const std::size_t result : results_) {
      at(region_.results()[result].node).is_result = true;
      enter(region_.results()[result].node);
      while (!path.empty()) {
        const NodeId id = path.back().first;
        const std::span<const ValueId> inputs = region_.node(id).inputs();
        if (path.back().second < inputs.size()) {
          enter(inputs[path.back().second++].node);
          continue;
        }
        path.pop_back();
        for (const ValueId input : inputs) at(input.node).last_use = nodes_.size();
        at(id).made_by = nodes_.size();
        nodes_.push_back(id);
      }
    }
  }

  // --- inputs

  void add_sources() {
    for (const NodeId id : sources_) {
      Source source;
      source.input = at(id).parameter;
      source.size = static_cast<std::uint32_t>(size_of(spec_of(id).dtype));
      if (source.input < 0) source.constant = *constant_of(region_.node(id));
      at(id).source = program_.sources_.size();
      program_.sources_.push_back(std::move(source));
    }
  }

  // The axes of the program's shape for one or several inputs, outermost first: neighbouring axes along which
  // all of them step alike are merged, and axes of extent 1 are left out.
  std::vector<std::vector<Axis>> axes_of(std::span<const std::size_t> sources) const {
    std::vector<std::vector<Axis>> axes(sources.size());
    std::vector<std::int64_t> strides(sources.size(), 1);
    std::vector<std::int64_t> steps(sources.size());
    for (std::size_t back = 1; back <= shape_.rank(); ++back) {
      const std::int64_t extent = shape_[shape_.rank() - back];
      bool merges = !axes[0].empty();
      for (std::size_t i = 0; i < sources.size(); ++i) {
        const Shape& shape = spec_of(sources_[sources[i]]).shape;
        const std::int64_t own = back <= shape.rank() ? shape[shape.rank() - back] : 1;
        steps[i] = own == 1 ? 0 : strides[i];
        strides[i] *= own;
        merges = merges && steps[i] == axes[i].back().step * axes[i].back().extent;
      }
      if (extent == 1) continue;
      for (std::size_t i = 0; i < sources.size(); ++i) {
        if (merges) {
          axes[i].back().extent *= extent;
        } else {
          axes[i].push_back({extent, steps[i]});
        }
      }
    }
    for (std::vector<Axis>& list : axes) std::ranges::reverse(list);
    return axes;
  }

  void choose_modes() {
    std::vector<std::size_t> broadcast;
    for (std::size_t i = 0; i < program_.sources_.size(); ++i) {
      const std::int64_t elements = spec_of(sources_[i]).shape.num_elements();
      program_.sources_[i].mode = elements == program_.elements_ ? Mode::kFlat : Mode::kScalar;
      if (elements != program_.elements_ && elements != 1) broadcast.push_back(i);
    }
    if (broadcast.empty() || program_.elements_ == 0) return;
    std::vector<std::vector<Axis>> joint = axes_of(broadcast);
    const bool rows_are_long = joint[0].back().extent >= kLongRow;
    if (rows_are_long) program_.row_ = joint[0].back().extent;
    for (std::size_t i = 0; i < broadcast.size(); ++i) {
      Source& source = program_.sources_[broadcast[i]];
      if (rows_are_long) {
        source.axes = std::move(joint[i]);
        source.mode = source.axes.back().step == 0 ? Mode::kRowScalar : Mode::kRow;
      } else {
        source.axes = std::move(axes_of({&broadcast[i], 1})[0]);
        source.mode = Mode::kTile;
      }
    }
  }

  // Does the value have one element for a whole tile?
  bool is_fixed(NodeId id) const {
    if (at(id).source == kNoInstruction) return false;
    const Mode mode = program_.sources_[at(id).source].mode;
    return mode == Mode::kScalar || mode == Mode::kRowScalar;
  }

  // --- chains

  void choose_chains() {
    plans_.resize(nodes_.size());
    std::size_t length = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = region_.node(nodes_[i]);
      const std::span<const ValueId> inputs = node.inputs();
      const TensorSpec& spec = spec_of(nodes_[i]);
      std::vector<TensorSpec> arguments;
      for (const ValueId input : inputs) arguments.push_back(spec_of(input.node));
      Plan& plan = plans_[i];
      plan.function = node.op().tile(view_of(node, arguments, no_variables()), {&spec, 1});
      LOCKSTEP_CHECK(plan.function != nullptr, node.op().name, ": the tile maker gave an empty function");
      const auto* tile = plan.function.target<StepTile>();
      const bool moves = std::ranges::any_of(inputs, [&](ValueId input) { return !is_fixed(input.node); });
      if (tile != nullptr && moves && kernels::chain_loop(spec.dtype) != nullptr &&
          arguments[0].dtype == spec.dtype) {
        plan.step = tile->step;
      }
      const auto reads = [&](std::size_t before) {
        return std::ranges::count_if(inputs, [&](ValueId input) { return input.node == nodes_[before]; });
      };
      plan.continues = i > 0 && plan.step && plans_[i - 1].step && reads(i - 1) > 0 && length < kMaxChain &&
                       spec_of(nodes_[i - 1]).dtype == spec.dtype;
      length = plan.continues ? length + 1 : 1;
      if (i == 0) continue;
      // The previous value is needed in memory unless this step is its only reader and reads it once.
      Value& before = at(nodes_[i - 1]);
      before.is_kept = !plan.continues || before.last_use > i || before.is_result || reads(i - 1) > 1;
    }
    if (!nodes_.empty()) at(nodes_.back()).is_kept = true;
  }

  // --- where values lie

  std::uint32_t new_memory_cell() { return kMemory | memory_cells_++; }

  std::uint32_t take_register(NodeId id) {
    largest_ = std::max(largest_, size_of(spec_of(id).dtype));
    if (free_.empty()) return static_cast<std::uint32_t>(program_.registers_++);
    const std::uint32_t taken = free_.back();  // the one used last: it is the warmest
    free_.pop_back();
    return taken;
  }

  // One-element inputs that only steps of chains read need no register.
  void place_sources() {
    std::vector<bool> is_spread(program_.sources_.size(), false);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (plans_[i].step) continue;
      for (const ValueId input : region_.node(nodes_[i]).inputs()) {
        if (at(input.node).source != kNoInstruction) is_spread[at(input.node).source] = true;
      }
    }
    for (std::size_t i = 0; i < program_.sources_.size(); ++i) {
      const NodeId id = sources_[i];
      Source& source = program_.sources_[i];
      if (is_fixed(id)) {
        source.element = at(id).element = new_memory_cell();
        source.is_spread = is_spread[i] || at(id).is_result;
        if (source.is_spread) source.cell = take_register(id);
      } else {
        const bool in_memory = source.mode == Mode::kFlat || source.mode == Mode::kRow;
        source.cell = in_memory ? new_memory_cell() : take_register(id);
      }
      at(id).cell = source.cell;
    }
  }

  // May output 0 be written as soon as the node has run? It may lie in the memory of an input of its spec:
  // not while that input is still to be read.
  bool may_write_early(NodeId node) const {
    for (std::size_t i = 0; i < program_.sources_.size(); ++i) {
      const NodeId source = sources_[i];
      if (program_.sources_[i].mode != Mode::kFlat || spec_of(source).dtype != spec_of(node).dtype) continue;
      if (at(source).last_use > at(node).made_by || at(source).is_result) return false;
    }
    return true;
  }

  void plan_outputs() {
    for (const std::size_t result : results_) {
      const NodeId id = region_.results()[result].node;
      Value& value = at(id);
      Output output;
      output.output = static_cast<std::uint32_t>(result);
      output.size = static_cast<std::uint32_t>(size_of(spec_of(id).dtype));
      const bool computed = value.made_by != kNoInstruction;
      output.copied = !computed || value.cell != kNoCell || (result == 0 && !may_write_early(id));
      if (!output.copied) {
        output.cell = new_memory_cell();
        value.cell = output.cell;
      } else if (computed) {
        value.last_use = kEnd;
      }
      program_.outputs_.push_back(output);
    }
    // The copy to output 0 comes last, for the same reason.
    std::ranges::sort(program_.outputs_, std::ranges::greater(), &Output::output);
  }

  // Gives the value of an instruction a register if it needs one; registers of inputs that are not read
  // afterwards become free.
  void place_value(std::size_t index) {
    const NodeId id = nodes_[index];
    std::vector<NodeId> dying;
    for (const ValueId input : region_.node(id).inputs()) {
      const Value& value = at(input.node);
      const bool dies = value.made_by != kNoInstruction && value.last_use == index && value.cell != kNoCell &&
                        (value.cell & kMemory) == 0;
      if (dies && std::ranges::find(dying, input.node) == dying.end()) dying.push_back(input.node);
    }
    if (at(id).cell == kNoCell && at(id).is_kept) {
      // In place if that is allowed: one dtype, so that element i overwrites element i.
      const auto reused =
          std::ranges::find_if(dying, [&](NodeId from) { return spec_of(from).dtype == spec_of(id).dtype; });
      if (reused != dying.end()) {
        at(id).cell = at(*reused).cell;
        dying.erase(reused);
      } else {
        at(id).cell = take_register(id);
      }
    }
    for (const NodeId from : dying) free_.push_back(at(from).cell);
  }

  // --- instructions

  void add_instruction(std::size_t index) {
    const NodeId id = nodes_[index];
    const std::span<const ValueId> inputs = region_.node(id).inputs();
    Plan& plan = plans_[index];
    if (plan.step) return add_step(index);
    Instruction instruction;
    instruction.function = std::move(plan.function);
    instruction.node = id;
    instruction.first = static_cast<std::uint32_t>(program_.operands_.size());
    instruction.count = static_cast<std::uint32_t>(inputs.size());
    for (const ValueId input : inputs) program_.operands_.push_back(at(input.node).cell);
    instruction.target = at(id).cell;
    program_.instructions_.push_back(std::move(instruction));
  }

  void add_step(std::size_t index) {
    const NodeId id = nodes_[index];
    const std::span<const ValueId> inputs = region_.node(id).inputs();
    const Plan& plan = plans_[index];
    // The input that the step continues: the value of the chain, or the first input that is not a single
    // element.
    const auto is_taken = [&](ValueId input) {
      return plan.continues ? input.node == nodes_[index - 1] : !is_fixed(input.node);
    };
    const bool first_is_taken = is_taken(inputs[0]);
    if (!plan.continues) {
      Instruction instruction;
      instruction.chain = kernels::chain_loop(spec_of(id).dtype);
      instruction.node = id;
      instruction.source = at(inputs[first_is_taken ? 0 : 1].node).cell;
      instruction.first = static_cast<std::uint32_t>(program_.links_.size());
      program_.instructions_.push_back(std::move(instruction));
    } else if (at(nodes_[index - 1]).is_kept) {
      add_to_chain({kernels::ChainOp::kStore, kernels::ChainForm::kRight, at(nodes_[index - 1]).cell});
    }
    Link link{*plan.step, kernels::ChainForm::kRight, kNoCell};
    if (inputs.size() == 2) {
      const NodeId other = inputs[first_is_taken ? 1 : 0].node;
      const bool fixed = is_fixed(other);
      link.cell = fixed ? at(other).element : at(other).cell;
      if (first_is_taken) {
        link.form = fixed ? kernels::ChainForm::kRightScalar : kernels::ChainForm::kRight;
      } else {
        link.form = fixed ? kernels::ChainForm::kLeftScalar : kernels::ChainForm::kLeft;
      }
    }
    add_to_chain(link);
    program_.instructions_.back().target = at(id).cell;
  }

  void add_to_chain(Link link) {
    program_.links_.push_back(link);
    ++program_.instructions_.back().count;
  }

  // Registers come first, so that memory cells get their numbers once all registers are known.
  void number_cells() {
    const auto registers = static_cast<std::uint32_t>(program_.registers_);
    const auto number = [&](std::uint32_t& cell) {
      if (cell != kNoCell && (cell & kMemory) != 0) cell = registers + (cell & ~kMemory);
    };
    for (Source& source : program_.sources_) {
      number(source.cell);
      number(source.element);
    }
    for (std::uint32_t& cell : program_.operands_) number(cell);
    for (Link& link : program_.links_) number(link.cell);
    for (Instruction& instruction : program_.instructions_) {
      number(instruction.target);
      number(instruction.source);
    }
    for (Output& output : program_.outputs_) number(output.cell);
    program_.cells_ = program_.registers_ + memory_cells_;
  }

  void choose_tile() {
    const std::size_t bytes = std::max<std::size_t>(program_.registers_, 1) * largest_;
    std::int64_t tile = static_cast<std::int64_t>(kRegisterBudget / bytes) / kMinTile * kMinTile;
    tile = std::clamp(tile, kMinTile, kMaxTile);
    if (program_.row_ > 0) {
      const std::int64_t pieces = (program_.row_ + tile - 1) / tile;
      tile = (program_.row_ + pieces - 1) / pieces;
    }
    // A repeating input is spread only once if a tile is a multiple of its period.
    std::int64_t period = 1;
    for (Source& source : program_.sources_) {
      if (source.mode != Mode::kTile || source.axes[0].step != 0) continue;
      const std::int64_t common = std::lcm(period, program_.elements_ / source.axes[0].extent);
      if (common > tile) continue;
      period = common;
      source.mode = Mode::kPeriodic;
    }
    tile = tile / period * period;
    program_.tile_ = std::max<std::int64_t>(std::min(tile, program_.elements_), 1);
    // An odd number of cache lines, so that registers do not fight for the same places in the cache.
    const std::size_t lines = (static_cast<std::size_t>(program_.tile_) * largest_ + 63) / 64;
    program_.register_bytes_ = (lines | 1U) * 64;
  }

  TileProgram& program_;
  const Graph& region_;
  std::span<const TensorSpec> specs_;
  std::span<const std::size_t> results_;
  Shape shape_;
  std::vector<Value> values_;        // by node
  std::vector<NodeId> nodes_;        // that run, in order
  std::vector<Plan> plans_;          // of those
  std::vector<NodeId> sources_;      // parameters and constants that they read
  std::vector<std::uint32_t> free_;  // registers
  std::uint32_t memory_cells_ = 0;
  std::size_t largest_ = 1;  // bytes of an element in a register
};

TileProgram::TileProgram(const Graph& region, std::span<const TensorSpec> specs,
                         std::span<const std::size_t> results)
    : region_(&region) {
  Maker(*this, region, specs, results).run();
}

}  // namespace lockstep::internal
