// graph/ops/variables.cpp - reading and writing declared state.
//
// The kernel of an update takes the variable's current value before the node's inputs and gives the new
// value; it may run in place, and it never fails.
#include <algorithm>
#include <optional>
#include <string>

#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"

namespace lockstep {

namespace {

using internal::shards_for;

constexpr std::int64_t kCopyGrain = 64 << 10;

OpDef variable_op(std::string name, std::string summary, std::size_t inputs, Effect effects) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(inputs);
  def.attributes = {{"variable", AttributeType::kVariable}};
  def.effects = effects;
  def.traits.infallible = true;
  def.traits.in_place = true;
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{shards_for(outputs[0].shape.num_elements(), kCopyGrain), 0, false};
  };
  return def;
}

void infer_update(InferContext& c) {
  const std::string& name = c.get<VariableRef>("variable").name;
  const TensorSpec& spec = c.variable(name);
  if (c.input(0).dtype != spec.dtype || !c.input(0).shape.admits(spec.shape)) {
    NodeView::fail(str("variable '", name, "' holds ", spec, ", got a value of ", c.input(0)));
  }
  c.add_output(spec);
}

OpDef read_op() {
  OpDef def =
      variable_op("read", "the variable's value at this point of the program", 0, Effect::kReadsVariable);
  def.traits.reads_variable = "variable";
  def.infer = [](InferContext& c) { c.add_output(c.variable(c.get<VariableRef>("variable").name)); };
  return def;
}

OpDef assign_op() {
  OpDef def = variable_op("assign", "sets the variable; gives the new value", 1, Effect::kWritesVariable);
  def.traits.updates_variable = OpTraits::Update{"variable", 0, false, {}, false, {}};
  def.infer = infer_update;
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::copy(dtype, c.input(1), c.output(0), begin, end);
    };
  };
  return def;
}

OpDef assign_add_op() {
  OpDef def = variable_op("assign_add", "adds to the variable; gives the new value", 1,
                          Effect::kReadsVariable | Effect::kWritesVariable);
  def.traits.updates_variable = OpTraits::Update{"variable", 0, true, {}, false, {}};
  def.infer = [](InferContext& c) {
    c.require(c.input(0).dtype != DType::kBool, "has no meaning for bool");
    infer_update(c);
  };
  def.cost = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Cost{static_cast<double>(outputs[0].shape.num_elements()),
                3 * static_cast<double>(num_bytes(outputs[0])), 0};
  };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [spec = outputs[0], n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::binary(kernels::BinaryOp::kAdd, spec.dtype, spec.shape, c.input(0), spec.shape, c.input(1),
                      spec.shape, c.output(0), begin, end);
    };
  };
  return def;
}

// --- by rows

using kernels::BinaryOp;

// What `how` does to a row; absent: the row is set.
std::optional<BinaryOp> row_op(const NodeView& node) {
  const std::string& how = node.get<std::string>("how");
  if (how == "set") return std::nullopt;
  if (how == "add") return BinaryOp::kAdd;
  if (how == "mul") return BinaryOp::kMul;
  if (how == "div") return BinaryOp::kDiv;
  if (how == "min") return BinaryOp::kMinimum;
  if (how == "max") return BinaryOp::kMaximum;
  NodeView::fail(
      str("'", how.substr(0, 40), "' is nothing to do to rows: expected set, add, mul, div, min or max"));
}

// Is one of these integers 0?
bool has_zero(DType dtype, const void* row, std::int64_t columns) {
  bool found = false;
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      const T* const first = static_cast<const T*>(row);
      found = std::find(first, first + columns, T{0}) != first + columns;
    }
  });
  return found;
}

void infer_row_change(InferContext& c) {
  const std::string& name = c.get<VariableRef>("variable").name;
  const TensorSpec& spec = c.variable(name);
  const TensorSpec &indices = c.input(0), &rows = c.input(1);
  const std::optional<BinaryOp> op = row_op(c);
  if (spec.shape.rank() == 0) NodeView::fail(str("variable '", name, "' is a scalar, which has no rows"));
  c.require(!op || spec.dtype != DType::kBool, "has no meaning for bool, unless rows are set");
  if (indices.dtype != DType::kI64 || indices.shape.rank() != 1)
    NodeView::fail(str("the indices must be an i64 vector, got ", indices));
  bool fits = rows.dtype == spec.dtype && rows.shape.rank() == spec.shape.rank();
  for (std::size_t axis = 1; fits && axis < spec.shape.rank(); ++axis)
    fits = rows.shape[axis] == kUnknown || rows.shape[axis] == spec.shape[axis];
  if (!fits) NodeView::fail(str("variable '", name, "' holds ", spec, ", got rows of ", rows));
  if (rows.shape[0] != kUnknown && indices.shape[0] != kUnknown && rows.shape[0] != indices.shape[0])
    NodeView::fail(str("takes one index for each row, got ", counted(indices.shape[0], "index", "indices"),
                       " for ", counted(rows.shape[0], "row")));
  c.add_output(spec);
}

OpDef assign_rows_op() {
  OpDef def = variable_op("assign_rows", "changes the named rows of the variable; gives the new value", 2,
                          Effect::kReadsVariable | Effect::kWritesVariable);
  def.attributes.push_back({"how", AttributeType::kString});
  def.traits.updates_variable = OpTraits::Update{"variable", 1, true, {}, false, 0};
  def.infer = infer_row_change;
  def.cost = [](const NodeView& node, std::span<const TensorSpec>) {
    const auto rows = static_cast<double>(num_bytes(node.input(1)));
    return Cost{static_cast<double>(node.input(1).shape.num_elements()),
                static_cast<double>(num_bytes(node.input(0))) + (row_op(node) ? 3 : 2) * rows, 0};
  };
  // A row that is named twice is changed twice, in order: one shard.
  def.split = nullptr;
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const std::int64_t rows = outputs[0].shape[0], elements = outputs[0].shape.num_elements();
    return [op = row_op(node), dtype = outputs[0].dtype, count = node.input(0).shape[0], rows, elements,
            columns = rows == 0 ? 0 : elements / rows](KernelContext& c) {
      if (c.output(0) != c.input(0)) kernels::copy(dtype, c.input(0), c.output(0), 0, elements);
      const auto* indices = static_cast<const std::int64_t*>(c.input(1));
      const std::size_t bytes = static_cast<std::size_t>(columns) * size_of(dtype);
      const Shape row{columns};
      for (std::int64_t i = 0; i < count; ++i) {
        if (indices[i] < 0 || indices[i] >= rows) continue;  // check_indices fails such a step
        auto* to = static_cast<char*>(c.output(0)) + static_cast<std::size_t>(indices[i]) * bytes;
        const auto* from = static_cast<const char*>(c.input(2)) + static_cast<std::size_t>(i) * bytes;
        if (op == BinaryOp::kDiv && has_zero(dtype, from, columns)) continue;  // check_divisors too
        if (op) {
          kernels::binary(*op, dtype, row, to, row, from, row, to, 0, columns);
        } else {
          kernels::copy(dtype, from, to, 0, columns);
        }
      }
    };
  };
  return def;
}

}  // namespace

void internal::register_variable_ops(OpRegistry& registry) {
  registry.add(read_op());
  registry.add(assign_op());
  registry.add(assign_add_op());
  registry.add(assign_rows_op());
}

}  // namespace lockstep
