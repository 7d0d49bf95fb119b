// graph/ops/fused/tile_program.cpp - a graph of element-wise nodes as one walk over memory.
#include "lockstep/graph/ops/fused/internal/tile_program.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>

namespace lockstep::internal {

namespace {

constexpr std::size_t kStackBytes = 48 * 1024;  // more than any sane program needs

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

const NodeView::VariableSpecs& no_variables() {
  static const NodeView::VariableSpecs none = [](std::string_view) { return nullptr; };
  return none;
}

const Tensor* constant_of(const Node& node) {
  const auto& attribute = node.op().traits.gives_attribute;
  return attribute ? node.find<Tensor>(*attribute) : nullptr;
}

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
    if (!wanted.may_equal(inputs[i])) {
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

// --- running

struct TileProgram::Call {
  const KernelContext& context;
  void** cells;
  std::size_t at = 0;      // the instruction that runs
  std::int64_t begin = 0;  // of its tile

  const std::byte* base(const Source& source) const {
    return static_cast<const std::byte*>(
        source.input < 0 ? source.constant.raw() : context.input(static_cast<std::size_t>(source.input)));
  }
  std::byte* output(const Output& output) const {
    return static_cast<std::byte*>(context.output(output.output));
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
  } catch (const RefusedData& refused) {
    throw RefusedData(refused.message(), call.begin + refused.position(), place());
  } catch (const Error& error) {
    std::throw_with_nested(Error(error.code(), error.message(), place()));
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(code_of(error, ErrorCode::kFailedPrecondition),
                                 str("the kernel failed: ", message_of(error)), place()));
  }
}

// Sets the addresses that instructions read and write, for the tile [at, at + count).
void TileProgram::enter(Call& call, std::int64_t at, std::int64_t count, bool first) const {
  for (const Source& source : sources_) {
    auto* const base = const_cast<std::byte*>(call.base(source));  // an input is only read
    const auto target = [&] { return static_cast<std::byte*>(call.cells[source.cell]); };
    switch (source.mode) {
      case Mode::kFlat: call.cells[source.cell] = base + at * source.size; break;
      case Mode::kScalar:
        if (!first) break;
        call.cells[source.element] = base;
        if (source.is_spread) fill(base, source.size, tile_, target());
        break;
      case Mode::kPeriodic:
        if (first) spread(source, base, at, std::min(tile_, elements_ - at), target());
        break;
      case Mode::kTile: spread(source, base, at, count, target()); break;
      case Mode::kRow: call.cells[source.cell] = base + offset_of(source.axes, at) * source.size; break;
      case Mode::kRowScalar:
        if (!first && at % row_ != 0) break;
        call.cells[source.element] = base + offset_of(source.axes, at) * source.size;
        if (source.is_spread)
          fill(static_cast<std::byte*>(call.cells[source.element]), source.size, tile_, target());
        break;
    }
  }
  for (const Output& output : outputs_) {
    if (!output.copied) call.cells[output.cell] = call.output(output) + at * output.size;
  }
}

void TileProgram::execute(Call& call, const Instruction& instruction, std::int64_t count) const {
  if (instruction.chain == nullptr) {
    const void* inputs[kMaxTileOperands];
    const std::uint32_t* const operands = operands_.data() + instruction.first;
    for (std::uint32_t i = 0; i < instruction.count; ++i) inputs[i] = call.cells[operands[i]];
    instruction.function(inputs, call.cells[instruction.target], count);
    return;
  }
  kernels::ChainLink steps[2 * kMaxChain];  // each may be followed by a store
  const Link* const chain = links_.data() + instruction.first;
  for (std::uint32_t i = 0; i < instruction.count; ++i) {
    // A step without a second operand has no cell.
    steps[i] = {chain[i].op, chain[i].form, chain[i].cell < cells_ ? call.cells[chain[i].cell] : nullptr};
  }
  instruction.chain(call.cells[instruction.source], steps, instruction.count, call.cells[instruction.target],
                    count);
}

void TileProgram::walk(Call& call, std::int64_t begin, std::int64_t end) const {
  for (std::int64_t at = begin; at < end;) {
    std::int64_t count = std::min(tile_, end - at);
    if (row_ > 0) count = std::min(count, row_ - at % row_);
    enter(call, at, count, at == begin);
    call.begin = at;
    for (call.at = 0; call.at < instructions_.size(); ++call.at) execute(call, instructions_[call.at], count);
    for (const Output& output : outputs_) {
      if (!output.copied) continue;
      std::memmove(call.output(output) + at * output.size, call.cells[output.cell],
                   static_cast<std::size_t>(count) * output.size);
    }
    at += count;
  }
}

}  // namespace lockstep::internal
