#include "lockstep/graph/internal/tile_program.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>

namespace lockstep::internal {

namespace {

constexpr std::int64_t kMaxTile = 1024;  // elements
constexpr std::int64_t kMinTile = 64;    // below that the calls cost more than the elements
constexpr std::size_t kRegisterBudget = 24
                                        << 10;  // bytes: with inputs and outputs streaming by, all is in L1
constexpr std::size_t kStackBytes = 48 << 10;   // more than the budget and its rounding for any sane program
constexpr std::int64_t kLongRow = 256;          // elements: rows worth a tile of their own
constexpr std::uint32_t kNoCell = 0xFFFFFFFFU;
constexpr std::uint32_t kMemory = 0x80000000U;  // while registers are being counted: a cell that is none
constexpr std::size_t kEnd = std::numeric_limits<std::size_t>::max();

const NodeView::VariableSpecs& no_variables() {
  static const NodeView::VariableSpecs none = [](std::string_view) { return nullptr; };
  return none;
}

const Tensor* constant_of(const Node& node) {
  const auto& attribute = node.op().traits.gives_attribute;
  return attribute ? node.find<Tensor>(*attribute) : nullptr;
}

bool may_be(const TensorSpec& wanted, const TensorSpec& value) {
  if (wanted.dtype != value.dtype || wanted.shape.rank() != value.shape.rank()) return false;
  for (std::size_t axis = 0; axis < wanted.shape.rank(); ++axis) {
    const std::int64_t a = wanted.shape[axis];
    const std::int64_t b = value.shape[axis];
    if (a != b && a != kUnknown && b != kUnknown) return false;
  }
  return true;
}

std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

void fill(const std::byte* value, std::size_t size, std::int64_t count, std::byte* to) {
  const auto splat = [&]<class T>(T element) {
    std::memcpy(&element, value, sizeof element);
    std::fill_n(reinterpret_cast<T*>(to), count, element);
  };
  switch (size) {
    case 1: return splat(std::uint8_t{});
    case 2: return splat(std::uint16_t{});
    case 4: return splat(std::uint32_t{});
    default: return splat(std::uint64_t{});
  }
}

}  // namespace

bool computes_tiles(const Node& node) {
  const OpDef& op = node.op();
  return op.tile != nullptr && op.traits.elementwise && op.regions == 0 && node.outputs().size() == 1 &&
         !node.inputs().empty() && node.inputs().size() <= kMaxTileOperands &&
         effects_of(node) == Effect::kPure;
}

std::vector<TensorSpec> infer_elementwise(const Graph& region, std::span<const TensorSpec> inputs) {
  if (region.parameters().size() != inputs.size()) {
    NodeView::fail(str("the region takes ", region.parameters().size(), " parameters, the node gives it ",
                       inputs.size()));
  }
  if (region.results().empty()) NodeView::fail("the region must give at least one result");
  std::vector<TensorSpec> specs(region.id_bound());
  std::vector<bool> known(region.id_bound(), false);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t at = region.parameters()[i].index();
    const TensorSpec& wanted = region.spec({region.parameters()[i], 0});
    if (!may_be(wanted, inputs[i])) {
      NodeView::fail(str("parameter ", i, " of the region is ", wanted, ", the node gives it ", inputs[i]));
    }
    specs[at] = inputs[i];
    known[at] = true;
  }
  std::vector<TensorSpec> arguments;
  for (const NodeId id : region.topological_order()) {
    if (known[id.index()]) continue;
    const Node& node = region.node(id);
    if (!node.controls().empty()) NodeView::fail(str("'", node.name(), "' in the region has control inputs"));
    if (const Tensor* constant = constant_of(node)) {
      specs[id.index()] = constant->spec();
      continue;
    }
    if (!computes_tiles(node)) {
      NodeView::fail(str("'", node.name(), "' (", node.op().name,
                         ") in the region is no element-wise op that computes tiles (OpDef::tile)"));
    }
    arguments.clear();
    for (const ValueId input : node.inputs()) arguments.push_back(specs[input.node.index()]);
    specs[id.index()] = infer_outputs(node, arguments, no_variables())[0];
  }
  return specs;
}

// Turns the part of a region that some results need into a program.
class TileProgram::Maker {
 public:
  Maker(TileProgram& program, const Graph& region, std::span<const TensorSpec> specs,
        std::span<const std::size_t> results)
      : program_(program),
        region_(region),
        specs_(specs),
        results_(results),
        order_(region.topological_order()) {
    const ValueId first = region.results()[results[0]];
    shape_ = specs[first.node.index()].shape;
    program_.elements_ = shape_.num_elements();
  }

  void run() {
    select();
    add_sources();
    choose_modes();
    plan_outputs();
    for (std::size_t i = 0; i < instructions_.size(); ++i) add_instruction(i);
    finish_outputs();
    number_cells();
    choose_tile();
  }

 private:
  static constexpr std::size_t kNoInstruction = std::numeric_limits<std::size_t>::max();

  // Which nodes the results need, and in which order they run.
  void select() {
    needed_.assign(region_.id_bound(), false);
    for (const std::size_t result : results_) needed_[region_.results()[result].node.index()] = true;
    for (std::size_t i = order_.size(); i-- > 0;) {
      if (!needed_[order_[i].index()]) continue;
      for (const ValueId input : region_.node(order_[i]).inputs()) needed_[input.node.index()] = true;
    }
    input_of_.assign(region_.id_bound(), -1);
    for (std::size_t i = 0; i < region_.parameters().size(); ++i)
      input_of_[region_.parameters()[i].index()] = static_cast<std::int32_t>(i);
    cell_.assign(region_.id_bound(), kNoCell);
    last_use_.assign(region_.id_bound(), 0);
    made_by_.assign(region_.id_bound(), kNoInstruction);
    for (const NodeId id : order_) {
      if (!needed_[id.index()]) continue;
      const Node& node = region_.node(id);
      if (input_of_[id.index()] >= 0 || constant_of(node) != nullptr) continue;
      for (const ValueId input : node.inputs()) last_use_[input.node.index()] = instructions_.size();
      made_by_[id.index()] = instructions_.size();
      instructions_.push_back(id);
    }
  }

  std::uint32_t new_memory_cell() { return kMemory | memory_cells_++; }

  std::uint32_t take_register() {
    if (free_.empty()) return static_cast<std::uint32_t>(program_.registers_++);
    const std::uint32_t taken = free_.back();  // the one used last: it is the warmest
    free_.pop_back();
    return taken;
  }

  void add_sources() {
    for (const NodeId id : order_) {
      if (!needed_[id.index()] || made_by_[id.index()] != kNoInstruction) continue;
      Source source;
      source.input = input_of_[id.index()];
      const TensorSpec& spec = specs_[id.index()];
      source.size = static_cast<std::uint32_t>(size_of(spec.dtype));
      if (source.input < 0) {
        source.constant = *constant_of(region_.node(id));
        // The same number often stands in several places.
        const auto same = std::ranges::find_if(program_.sources_, [&](const Source& other) {
          return other.input < 0 && other.constant.bit_equal(source.constant);
        });
        if (same != program_.sources_.end()) {
          shared_.emplace_back(id, static_cast<std::size_t>(same - program_.sources_.begin()));
          continue;
        }
      }
      nodes_of_sources_.push_back(id);
      program_.sources_.push_back(std::move(source));
    }
  }

  const Shape& shape_of_source(std::size_t i) const { return specs_[nodes_of_sources_[i].index()].shape; }

  // The axes of the program's shape for one or several inputs, outermost first: those over which all of them behave
  // alike are one axis, and extents of one are none.
  std::vector<std::vector<Axis>> axes_of(std::span<const std::size_t> sources) const {
    std::vector<std::vector<Axis>> axes(sources.size());
    std::vector<std::int64_t> strides(sources.size(), 1);
    std::vector<std::int64_t> steps(sources.size());
    for (std::size_t back = 1; back <= shape_.rank(); ++back) {
      const std::int64_t extent = shape_[shape_.rank() - back];
      bool merges = !axes[0].empty();
      for (std::size_t i = 0; i < sources.size(); ++i) {
        const Shape& shape = shape_of_source(sources[i]);
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
      const std::int64_t elements = shape_of_source(i).num_elements();
      Source& source = program_.sources_[i];
      if (elements == program_.elements_) {
        source.mode = Mode::kFlat;
      } else if (elements == 1) {
        source.mode = Mode::kScalar;
      } else {
        broadcast.push_back(i);
      }
    }
    if (!broadcast.empty() && program_.elements_ > 0) {
      std::vector<std::vector<Axis>> joint = axes_of(broadcast);
      if (joint[0].back().extent >= kLongRow) {
        program_.row_ = joint[0].back().extent;
        for (std::size_t i = 0; i < broadcast.size(); ++i) {
          Source& source = program_.sources_[broadcast[i]];
          source.axes = std::move(joint[i]);
          source.mode = source.axes.back().step == 0 ? Mode::kRowScalar : Mode::kRow;
        }
      } else {
        for (const std::size_t i : broadcast) {
          program_.sources_[i].axes = std::move(axes_of({&i, 1})[0]);
          program_.sources_[i].mode = Mode::kTile;
        }
      }
    }
    for (std::size_t i = 0; i < program_.sources_.size(); ++i) {
      Source& source = program_.sources_[i];
      const bool in_memory = source.mode == Mode::kFlat || source.mode == Mode::kRow;
      source.cell = in_memory ? new_memory_cell() : take_register();
      if (!in_memory) largest_ = std::max(largest_, std::size_t{source.size});
      cell_[nodes_of_sources_[i].index()] = source.cell;
    }
    for (const auto& [node, source] : shared_) cell_[node.index()] = program_.sources_[source].cell;
  }

  // May output 0 be written as soon as the node has run? It may lie where an input of its spec lies: not while
  // somebody still reads that.
  bool may_write_early(NodeId node) const {
    const DType dtype = specs_[node.index()].dtype;
    for (std::size_t i = 0; i < program_.sources_.size(); ++i) {
      const NodeId source = nodes_of_sources_[i];
      if (program_.sources_[i].input < 0 || specs_[source.index()].dtype != dtype) continue;
      if (program_.sources_[i].mode != Mode::kFlat) continue;
      if (last_use_[source.index()] > made_by_[node.index()] || is_result_[source.index()]) return false;
    }
    return true;
  }

  void plan_outputs() {
    is_result_.assign(region_.id_bound(), false);
    for (const std::size_t result : results_) is_result_[region_.results()[result].node.index()] = true;
    for (const std::size_t result : results_) {
      const NodeId node = region_.results()[result].node;
      Output output;
      output.output = static_cast<std::uint32_t>(result);
      output.size = static_cast<std::uint32_t>(size_of(specs_[node.index()].dtype));
      const bool computed = made_by_[node.index()] != kNoInstruction;
      output.copied = !computed || cell_[node.index()] != kNoCell || (result == 0 && !may_write_early(node));
      if (!output.copied) {
        output.cell = new_memory_cell();
        cell_[node.index()] = output.cell;
      } else if (computed) {
        last_use_[node.index()] = kEnd;
      }
      program_.outputs_.push_back(output);
    }
    // What is copied to output 0 comes last, for the same reason.
    std::ranges::sort(program_.outputs_, std::ranges::greater(), &Output::output);
  }

  void add_instruction(std::size_t index) {
    const NodeId id = instructions_[index];
    const Node& node = region_.node(id);
    const TensorSpec& spec = specs_[id.index()];
    Instruction instruction;
    instruction.node = id;
    instruction.first_operand = static_cast<std::uint32_t>(program_.operands_.size());
    instruction.operands = static_cast<std::uint32_t>(node.inputs().size());
    std::vector<TensorSpec> arguments;
    std::vector<NodeId> dying;  // registers that nobody reads afterwards
    for (const ValueId input : node.inputs()) {
      const NodeId from = input.node;
      arguments.push_back(specs_[from.index()]);
      program_.operands_.push_back(cell_[from.index()]);
      const bool dies = made_by_[from.index()] != kNoInstruction && last_use_[from.index()] == index &&
                        (cell_[from.index()] & kMemory) == 0;
      if (dies && std::ranges::find(dying, from) == dying.end()) dying.push_back(from);
    }
    instruction.function = node.op().tile(view_of(node, arguments, no_variables()), {&spec, 1});
    LOCKSTEP_CHECK(instruction.function != nullptr, node.op().name,
                   ": the tile maker gave an empty function");
    if (cell_[id.index()] == kNoCell) {
      // In place where that is allowed: one dtype, so that element i overwrites element i.
      const auto reused =
          std::ranges::find_if(dying, [&](NodeId from) { return specs_[from.index()].dtype == spec.dtype; });
      if (reused != dying.end()) {
        cell_[id.index()] = cell_[reused->index()];
        dying.erase(reused);
      } else {
        cell_[id.index()] = take_register();
      }
      largest_ = std::max(largest_, size_of(spec.dtype));
    }
    for (const NodeId from : dying) free_.push_back(cell_[from.index()]);
    instruction.target = cell_[id.index()];
    program_.instructions_.push_back(std::move(instruction));
  }

  void finish_outputs() {
    for (Output& output : program_.outputs_) {
      if (output.copied) output.cell = cell_[region_.results()[output.output].node.index()];
    }
  }

  // Registers come first, so that memory cells get their numbers once all registers are known.
  void number_cells() {
    const auto registers = static_cast<std::uint32_t>(program_.registers_);
    const auto number = [&](std::uint32_t& cell) {
      if ((cell & kMemory) != 0) cell = registers + (cell & ~kMemory);
    };
    for (Source& source : program_.sources_) number(source.cell);
    for (std::uint32_t& cell : program_.operands_) number(cell);
    for (Instruction& instruction : program_.instructions_) number(instruction.target);
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
    // Inputs that repeat themselves are spread once where a tile is a multiple of what they repeat.
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
    const std::size_t lines = round_up(static_cast<std::size_t>(program_.tile_) * largest_, 64) / 64;
    program_.register_bytes_ = (lines | 1U) * 64;
  }

  TileProgram& program_;
  const Graph& region_;
  std::span<const TensorSpec> specs_;
  std::span<const std::size_t> results_;
  std::vector<NodeId> order_;
  Shape shape_;
  std::vector<NodeId> instructions_;
  std::vector<NodeId> nodes_of_sources_;
  std::vector<std::pair<NodeId, std::size_t>> shared_;  // constants that stand for an earlier, equal one
  std::vector<std::uint32_t> free_;                     // registers
  std::uint32_t memory_cells_ = 0;
  std::size_t largest_ = 1;  // bytes of an element in a register
  // By node:
  std::vector<bool> needed_;
  std::vector<bool> is_result_;
  std::vector<std::int32_t> input_of_;
  std::vector<std::uint32_t> cell_;
  std::vector<std::size_t> last_use_;  // the last instruction that reads it
  std::vector<std::size_t> made_by_;   // instruction
};

TileProgram::TileProgram(const Graph& region, std::span<const TensorSpec> specs,
                         std::span<const std::size_t> results)
    : region_(&region) {
  Maker(*this, region, specs, results).run();
}

// --- running

struct TileProgram::Call {
  const KernelContext& context;
  void** cells;
  std::size_t at = 0;  // the instruction that runs

  const std::byte* base(const Source& source) const {
    return static_cast<const std::byte*>(
        source.input < 0 ? source.constant.raw() : context.input(static_cast<std::size_t>(source.input)));
  }
};

std::int64_t TileProgram::offset_of(std::span<const Axis> axes, std::int64_t at) {
  std::int64_t offset = 0;
  for (std::size_t i = axes.size(); i-- > 0;) {
    offset += at % axes[i].extent * axes[i].step;
    at /= axes[i].extent;
  }
  return offset;
}

// The elements [at, at + count) of the program's shape, of an input that is broadcast to it.
void TileProgram::spread(const Source& source, const std::byte* from, std::int64_t at, std::int64_t count,
                         std::byte* to) {
  const std::span<const Axis> axes = source.axes;
  const auto size = static_cast<std::int64_t>(source.size);
  std::int64_t index[Shape::kMaxRank];
  std::int64_t offset = 0;
  for (std::size_t i = axes.size(); i-- > 0;) {
    index[i] = at % axes[i].extent;
    at /= axes[i].extent;
    offset += index[i] * axes[i].step;
  }
  const Axis& inner = axes.back();
  std::int64_t& position = index[axes.size() - 1];
  while (count > 0) {
    const std::int64_t run = std::min(count, inner.extent - position);
    if (inner.step == 0) {
      fill(from + offset * size, source.size, run, to);
    } else {
      std::memcpy(to, from + offset * size, static_cast<std::size_t>(run * size));
    }
    to += run * size;
    count -= run;
    // On to the next run: the last axis starts anew, and the others count like an odometer.
    offset -= position * inner.step;
    position = 0;
    for (std::size_t i = axes.size() - 1; i-- > 0;) {
      offset += axes[i].step;
      if (++index[i] < axes[i].extent) break;
      offset -= axes[i].extent * axes[i].step;
      index[i] = 0;
    }
  }
}

void TileProgram::run(const KernelContext& c, std::int64_t begin, std::int64_t end) const {
  if (begin >= end) return;
  alignas(64) std::byte stack[kStackBytes];
  const std::size_t table = round_up(cells_ * sizeof(void*), 64);
  const std::size_t needed = table + registers_ * register_bytes_;
  std::byte* block = stack;
  std::unique_ptr<std::byte[]> heap;
  if (needed > kStackBytes) {  // hundreds of values alive at once: nobody writes that by hand
    heap = std::make_unique_for_overwrite<std::byte[]>(needed + 64);
    block = heap.get() + (64 - reinterpret_cast<std::uintptr_t>(heap.get()) % 64);
  }
  Call call{c, reinterpret_cast<void**>(block)};
  for (std::size_t i = 0; i < registers_; ++i) call.cells[i] = block + table + i * register_bytes_;
  const auto place = [&] { return place_of(region_->node(instructions_[call.at].node)); };
  try {
    walk(call, begin, end);
  } catch (const Error& error) {
    std::throw_with_nested(Error(error.code(), error.message(), place()));
  } catch (const std::exception& error) {
    std::throw_with_nested(
        Error(ErrorCode::kFailedPrecondition, str("the kernel failed: ", error.what()), place()));
  }
}

// What the instructions read, for the tile [at, at + count).
void TileProgram::enter(Call& call, std::int64_t at, std::int64_t count, bool first) const {
  for (const Source& source : sources_) {
    const std::byte* base = call.base(source);
    auto* const target = static_cast<std::byte*>(call.cells[source.cell]);
    switch (source.mode) {
      case Mode::kFlat: call.cells[source.cell] = const_cast<std::byte*>(base) + at * source.size; break;
      case Mode::kScalar:
        if (first) fill(base, source.size, std::min(tile_, elements_), target);
        break;
      case Mode::kPeriodic:
        if (first) spread(source, base, at, std::min(tile_, elements_ - at), target);
        break;
      case Mode::kTile: spread(source, base, at, count, target); break;
      case Mode::kRow:
        call.cells[source.cell] = const_cast<std::byte*>(base) + offset_of(source.axes, at) * source.size;
        break;
      case Mode::kRowScalar:
        if (first || at % row_ == 0) {
          fill(base + offset_of(source.axes, at) * source.size, source.size, tile_, target);
        }
        break;
    }
  }
}

void TileProgram::walk(Call& call, std::int64_t begin, std::int64_t end) const {
  for (std::int64_t at = begin; at < end;) {
    std::int64_t count = std::min(tile_, end - at);
    if (row_ > 0) count = std::min(count, row_ - at % row_);
    enter(call, at, count, at == begin);
    for (const Output& output : outputs_) {
      if (!output.copied)
        call.cells[output.cell] =
            static_cast<std::byte*>(call.context.output(output.output)) + at * output.size;
    }
    for (call.at = 0; call.at < instructions_.size(); ++call.at) {
      const Instruction& instruction = instructions_[call.at];
      const std::uint32_t* const operands = operands_.data() + instruction.first_operand;
      const void* inputs[kMaxTileOperands];
      for (std::uint32_t i = 0; i < instruction.operands; ++i) inputs[i] = call.cells[operands[i]];
      instruction.function(inputs, call.cells[instruction.target], count);
    }
    for (const Output& output : outputs_) {
      if (!output.copied) continue;
      auto* const to = static_cast<std::byte*>(call.context.output(output.output)) + at * output.size;
      std::memmove(to, call.cells[output.cell], static_cast<std::size_t>(count) * output.size);
    }
    at += count;
  }
}

}  // namespace lockstep::internal
