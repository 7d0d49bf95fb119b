// graph/ops/updates.cpp - the ops with which optimizers update variables.
//
// Each op names a variable and its slots; a dense form takes (gradient, learning_rate[, step]), a form by
// rows takes (indices, rows, learning_rate[, step]). All of one kind share inference, split and kernel.
#include "lockstep/graph/ops/updates.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/core/kernels/updates.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/merged/internal/merged_updates.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {

namespace {

using internal::shards_for;
using kernels::UpdateArgs;
using kernels::UpdateKind;
using kernels::UpdateRule;

// An attribute of an update and the field of the rule that it sets.
struct Number {
  const char* attribute;
  double UpdateRule::*field;
  // The range of the attribute: [low, high), or [low, high] if `closed`.
  double low, high;
  bool closed;
};

constexpr double kAny = std::numeric_limits<double>::max();
constexpr Number kMomentum{"momentum", &UpdateRule::momentum, 0, 1, true};
constexpr Number kDecay{"decay", &UpdateRule::decay, 0, 1, true};
constexpr Number kBeta1{"beta1", &UpdateRule::beta1, 0, 1, false};
constexpr Number kBeta2{"beta2", &UpdateRule::beta2, 0, 1, false};
constexpr Number kEpsilon{"epsilon", &UpdateRule::epsilon, 0, kAny, true};
constexpr Number kWeightDecay{"weight_decay", &UpdateRule::weight_decay, 0, kAny, true};

struct Kind {
  const char* name;
  const char* summary;
  UpdateKind kind;
  std::vector<std::string> slots;
  std::vector<Number> numbers;
  bool nesterov = false;   // has the attribute `nesterov`
  bool with_step = false;  // takes the number of the step
};

std::vector<Kind> all_kinds() {
  return {
      {"sgd", "w -= lr * g", UpdateKind::kSgd, {}, {}},
      {"momentum", "gradient descent with momentum", UpdateKind::kMomentum, {"velocity"}, {kMomentum}, true},
      {"adagrad",
       "steps divided by the root of all squared gradients",
       UpdateKind::kAdagrad,
       {"accumulator"},
       {kEpsilon}},
      {"rmsprop",
       "steps divided by the root of a mean of squares",
       UpdateKind::kRmsProp,
       {"mean_square"},
       {kDecay, kEpsilon}},
      {"rmsprop_momentum",
       "rmsprop with momentum",
       UpdateKind::kRmsPropMomentum,
       {"mean_square", "velocity"},
       {kDecay, kEpsilon, kMomentum}},
      {"rmsprop_centered",
       "rmsprop by the variance, with momentum",
       UpdateKind::kRmsPropCentered,
       {"mean_square", "mean_gradient", "velocity"},
       {kDecay, kEpsilon, kMomentum}},
      {"adam",
       "steps by bias-corrected moments",
       UpdateKind::kAdam,
       {"m", "v"},
       {kBeta1, kBeta2, kEpsilon},
       false,
       true},
      {"adamw",
       "adam with decoupled weight decay",
       UpdateKind::kAdamW,
       {"m", "v"},
       {kBeta1, kBeta2, kEpsilon, kWeightDecay},
       false,
       true},
  };
}

// --- inference

void check_numbers(const InferContext& c, const std::vector<Number>& numbers) {
  for (const Number& number : numbers) {
    const double value = c.get<double>(number.attribute);
    const bool fits = value >= number.low && (number.closed ? value <= number.high : value < number.high);
    if (fits) continue;
    NodeView::fail(str("attribute '", number.attribute, "' is ", value, "; it must be ",
                       number.high == kAny
                           ? str("finite, and ", number.low, " or more")
                           : str("in [", number.low, ", ", number.high, number.closed ? "]" : ")")));
  }
}

void check_slots(const InferContext& c, const Kind& kind, const TensorSpec& spec) {
  const TensorSpec wanted{kernels::slot_dtype(spec.dtype), spec.shape};
  const std::string& variable = c.get<VariableRef>("variable").name;
  for (const std::string& slot : kind.slots) {
    const std::string& name = c.get<VariableRef>(slot).name;
    if (c.variable(name) != wanted) {
      NodeView::fail(str("slot '", slot, "' is variable '", name, "', which holds ", c.variable(name),
                         "; beside '", variable, "' of ", spec, " it must hold ", wanted));
    }
    const auto same = std::ranges::count_if(
        kind.slots, [&](const std::string& other) { return c.get<VariableRef>(other).name == name; });
    if (name == variable || same > 1) {
      NodeView::fail(str("variable '", name, "' is named twice; slots are variables of their own"));
    }
  }
}

void check_scalars(const InferContext& c, const Kind& kind, std::size_t first) {
  const TensorSpec& rate = c.input(first);
  if ((rate.dtype != DType::kF32 && rate.dtype != DType::kF64) || !rate.shape.admits(Shape{})) {
    NodeView::fail(str("the learning rate must be a scalar of f32 or f64, got ", rate));
  }
  if (kind.with_step &&
      (c.input(first + 1).dtype != DType::kI64 || !c.input(first + 1).shape.admits(Shape{}))) {
    NodeView::fail(str("the number of the step must be an i64 scalar, got ", c.input(first + 1)));
  }
}

const TensorSpec& check_variable(const InferContext& c) {
  const std::string& name = c.get<VariableRef>("variable").name;
  const TensorSpec& spec = c.variable(name);
  if (!is_floating(spec.dtype)) {
    NodeView::fail(str("variable '", name, "' holds ", spec, "; optimizers update floating variables"));
  }
  return spec;
}

void add_outputs(InferContext& c, const Kind& kind, const TensorSpec& spec) {
  c.add_output(spec);
  for (std::size_t i = 0; i < kind.slots.size(); ++i)
    c.add_output(kernels::slot_dtype(spec.dtype), spec.shape);
}

void infer_dense(InferContext& c, const Kind& kind) {
  const TensorSpec spec = check_variable(c);
  if (c.input(0).dtype != spec.dtype || !c.input(0).shape.admits(spec.shape)) {
    NodeView::fail(str("variable '", c.get<VariableRef>("variable").name, "' holds ", spec,
                       ", got a gradient of ", c.input(0)));
  }
  check_scalars(c, kind, 1);
  check_numbers(c, kind.numbers);
  check_slots(c, kind, spec);
  add_outputs(c, kind, spec);
}

void infer_sparse_update(InferContext& c, const Kind& kind) {
  const TensorSpec spec = check_variable(c);
  const std::string& name = c.get<VariableRef>("variable").name;
  const TensorSpec& indices = c.input(0);
  const TensorSpec& rows = c.input(1);
  if (spec.shape.rank() == 0) NodeView::fail(str("variable '", name, "' is a scalar, which has no rows"));
  if (indices.dtype != DType::kI64 || indices.shape.rank() != 1) {
    NodeView::fail(str("the indices must be an i64 vector, got ", indices));
  }
  bool fits = rows.dtype == spec.dtype && rows.shape.rank() == spec.shape.rank();
  for (std::size_t axis = 1; fits && axis < spec.shape.rank(); ++axis) {
    fits = rows.shape[axis] == kUnknown || rows.shape[axis] == spec.shape[axis];
  }
  if (!fits) NodeView::fail(str("variable '", name, "' holds ", spec, ", got rows of ", rows));
  if (rows.shape[0] != kUnknown && indices.shape[0] != kUnknown && rows.shape[0] != indices.shape[0]) {
    NodeView::fail(str("takes one index for each row, got ", counted(indices.shape[0], "index", "indices"),
                       " for ", counted(rows.shape[0], "row")));
  }
  check_scalars(c, kind, 2);
  check_numbers(c, kind.numbers);
  check_slots(c, kind, spec);
  add_outputs(c, kind, spec);
}

// --- running

UpdateRule rule_of(const NodeView& node, const Kind& kind) {
  UpdateRule rule;
  rule.kind = kind.kind;
  for (const Number& number : kind.numbers) rule.*number.field = node.get<double>(number.attribute);
  rule.nesterov = kind.nesterov && node.get_or<bool>("nesterov", false);
  return rule;
}

// The kernel's inputs are the variable, its slots, then the node's inputs; the scalars come last.
UpdateRule with_scalars(UpdateRule rule, const KernelContext& c, std::size_t rate, bool with_step) {
  rule.learning_rate = c.input_spec(rate).dtype == DType::kF64
                           ? *static_cast<const double*>(c.input(rate))
                           : static_cast<double>(*static_cast<const float*>(c.input(rate)));
  if (with_step) rule.step = *static_cast<const std::int64_t*>(c.input(rate + 1));
  return rule;
}

UpdateArgs args_of(const KernelContext& c, std::size_t slots, std::size_t gradient) {
  UpdateArgs args;
  args.variable = c.input(0);
  args.new_variable = c.output(0);
  for (std::size_t i = 0; i < slots; ++i) {
    args.slots[i] = c.input(1 + i);
    args.new_slots[i] = c.output(1 + i);
  }
  args.gradient = c.input(gradient);
  return args;
}

// Elements per shard: with more slots, an element has more bytes.
std::int64_t grain(const Kind& kind) {
  return (std::int64_t{64} << 10) / (1 + static_cast<std::int64_t>(kind.slots.size()));
}

Cost update_cost(const Kind& kind, const TensorSpec& variable, std::int64_t elements) {
  const auto n = static_cast<double>(elements);
  const auto slots = static_cast<double>(kind.slots.size());
  Cost cost;
  cost.flops = n * (2 + 6 * slots);
  cost.bytes = n * (3 * static_cast<double>(size_of(variable.dtype)) +
                    2 * slots * static_cast<double>(size_of(kernels::slot_dtype(variable.dtype))));
  return cost;
}

OpDef update_op(const Kind& kind) {
  OpDef def;
  def.name = kind.name;
  def.summary = kind.summary;
  def.attributes = {{"variable", AttributeType::kVariable}};
  for (const std::string& slot : kind.slots) def.attributes.push_back({slot, AttributeType::kVariable});
  for (const Number& number : kind.numbers)
    def.attributes.push_back({number.attribute, AttributeType::kFloat});
  if (kind.nesterov) def.attributes.push_back({"nesterov", AttributeType::kBool, false});
  def.effects = Effect::kReadsVariable | Effect::kWritesVariable;
  def.traits.infallible = true;
  def.traits.in_place = true;
  return def;
}

UpdateArgs args_of(const KernelContext& c, const internal::MergedUpdates& merged, std::size_t update) {
  UpdateArgs args;
  args.variable = c.input(merged.state(update, 0));
  args.new_variable = c.output(merged.state(update, 0));
  for (std::size_t i = 1; i < merged.variables(); ++i) {
    args.slots[i - 1] = c.input(merged.state(update, i));
    args.new_slots[i - 1] = c.output(merged.state(update, i));
  }
  args.gradient = c.input(merged.operand(update));
  return args;
}

// A shard is a range of the elements of all variables, one after the other.
KernelFn merged_dense_kernel(const Kind& kind, const NodeView& node, std::span<const TensorSpec> outputs) {
  const internal::MergedUpdates merged(node);
  const UpdateRule rule = rule_of(view_of(merged.update(0), {}, {}), kind);
  std::vector<std::int64_t> starts = {0};
  for (std::size_t i = 0; i < merged.size(); ++i)
    starts.push_back(starts.back() + outputs[merged.state(i, 0)].shape.num_elements());
  return [merged, rule, dtype = outputs[0].dtype, with_step = kind.with_step,
          starts = std::make_shared<const std::vector<std::int64_t>>(std::move(starts))](KernelContext& c) {
    const auto [begin, end] = c.range(starts->back());
    std::size_t update =
        static_cast<std::size_t>(std::ranges::upper_bound(*starts, begin) - starts->begin()) - 1;
    const auto next = [&, begin = begin, end = end](kernels::UpdatePart& part) {
      if (update >= merged.size() || (*starts)[update] >= end) return false;
      const std::int64_t start = (*starts)[update];
      part.args = args_of(c, merged, update);
      part.begin = std::max(begin - start, std::int64_t{0});
      part.end = std::min(end, (*starts)[update + 1]) - start;
      ++update;
      return true;
    };
    kernels::update(with_scalars(rule, c, merged.shared_input(0), with_step), dtype, std::ref(next));
  };
}

OpDef dense_op(const Kind& kind) {
  OpDef def = update_op(kind);
  def.inputs = Arity::exactly(kind.with_step ? 3 : 2);
  def.traits.updates_variable = OpTraits::Update{"variable", 0, true, kind.slots, true, {}};
  def.infer = [kind](InferContext& c) { infer_dense(c, kind); };
  def.cost = [kind](const NodeView&, std::span<const TensorSpec> outputs) {
    return update_cost(kind, outputs[0], outputs[0].shape.num_elements());
  };
  def.split = [kind](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{shards_for(outputs[0].shape.num_elements(), grain(kind)), 0, false};
  };
  def.kernels["cpu"] = [kind](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [rule = rule_of(node, kind), dtype = outputs[0].dtype, n = outputs[0].shape.num_elements(),
            slots = kind.slots.size(), with_step = kind.with_step](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::update(with_scalars(rule, c, slots + 2, with_step), dtype, args_of(c, slots, slots + 1), begin,
                      end);
    };
  };
  def.kernels["cpu"].merge = [kind](const NodeView& node, std::span<const TensorSpec> outputs) {
    return merged_dense_kernel(kind, node, outputs);
  };
  return def;
}

std::int64_t columns_of(const TensorSpec& variable) {
  std::int64_t columns = 1;
  for (std::size_t axis = 1; axis < variable.shape.rank(); ++axis) columns *= variable.shape[axis];
  return columns;
}

OpDef rows_op(const Kind& kind) {
  OpDef def = update_op(kind);
  def.name += "_sparse";
  def.summary = str(kind.name, " for the named rows; other rows and their slots stay");
  def.inputs = Arity::exactly(kind.with_step ? 4 : 3);
  def.traits.updates_variable = OpTraits::Update{"variable", 1, true, kind.slots, true, 0};
  def.infer = [kind](InferContext& c) { infer_sparse_update(c, kind); };
  def.cost = [kind](const NodeView& node, std::span<const TensorSpec> outputs) {
    Cost cost = update_cost(kind, outputs[0], node.input(1).shape.num_elements());
    cost.bytes += static_cast<double>(num_bytes(node.input(0)));
    return cost;
  };
  // Every shard reads all indices, so that a large number of shards does not pay off.
  def.split = [kind](const NodeView& node, std::span<const TensorSpec>) {
    const std::int64_t count = node.input(0).shape[0];
    const std::int64_t shards = shards_for(node.input(1).shape.num_elements(), grain(kind));
    return Split{std::min<std::int64_t>(shards, 32), static_cast<std::size_t>(count) * sizeof(std::int64_t),
                 false};
  };
  def.kernels["cpu"] = [kind](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    kernels::SparseRows rows;
    rows.count = node.input(0).shape[0];
    rows.rows = outputs[0].shape[0];
    rows.columns = columns_of(outputs[0]);
    return [rule = rule_of(node, kind), dtype = outputs[0].dtype, rows, slots = kind.slots.size(),
            with_step = kind.with_step](KernelContext& c) {
      kernels::SparseRows here = rows;
      here.indices = static_cast<const std::int64_t*>(c.input(slots + 1));
      kernels::update_rows(with_scalars(rule, c, slots + 3, with_step), dtype, here,
                           args_of(c, slots, slots + 2), c.shard(), c.num_shards(),
                           static_cast<std::int64_t*>(c.scratch()));
    };
  };
  return def;
}

// --- indices

template <class T>
void check_and_copy(const KernelContext& c, std::int64_t begin, std::int64_t end, std::int64_t limit) {
  const T* indices = static_cast<const T*>(c.input(0));
  for (std::int64_t i = begin; i < end; ++i) {
    if (indices[i] < 0 || indices[i] >= limit) {
      throw RefusedData(str("check_indices: index ", indices[i], " at position ", i, " is outside of [0, ",
                            limit, "); rows are counted from 0"),
                        i);
    }
  }
  kernels::copy(dtype_of<T>, c.input(0), c.output(0), begin, end);
}

OpDef check_indices_op() {
  OpDef def;
  def.name = "check_indices";
  def.traits.refuses_integers = true;
  def.summary =
      "its first input; fails where an index is outside of [0, limit), or a second has not as many rows";
  def.inputs = Arity::between(1, 2);
  def.attributes = {{"limit", AttributeType::kInt}};
  def.traits.in_place = true;
  def.infer = [](InferContext& c) {
    const DType dtype = c.input(0).dtype;
    if (dtype != DType::kI32 && dtype != DType::kI64) {
      NodeView::fail(str("indices are i32 or i64, got ", c.input(0)));
    }
    c.require(c.get<std::int64_t>("limit") >= 0, "the limit must be 0 or more");
    if (c.num_inputs() == 2) {
      const Shape &indices = c.input(0).shape, &rows = c.input(1).shape;
      if (indices.rank() != 1 || rows.rank() == 0)
        NodeView::fail(str("takes a vector of indices for rows, got ", c.input(0), " and ", c.input(1)));
      if (indices[0] != kUnknown && rows[0] != kUnknown && indices[0] != rows[0])
        NodeView::fail(str("takes one index for each row, got ", counted(indices[0], "index", "indices"),
                           " for ", counted(rows[0], "row")));
    }
    c.add_output(c.input(0));
  };
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{shards_for(outputs[0].shape.num_elements(), std::int64_t{64} << 10), 0, false};
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements(),
            limit = node.get<std::int64_t>("limit")](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      if (dtype == DType::kI64) {
        check_and_copy<std::int64_t>(c, begin, end, limit);
      } else {
        check_and_copy<std::int32_t>(c, begin, end, limit);
      }
    };
  };
  return def;
}

// --- divisors

OpDef check_divisors_op() {
  OpDef def;
  def.name = "check_divisors";
  def.traits.refuses_integers = true;
  def.summary = "its input, whole numbers to divide by; fails where one is 0";
  def.inputs = Arity::exactly(1);
  def.traits.in_place = true;
  def.infer = [](InferContext& c) {
    if (!is_integer(c.input(0).dtype)) NodeView::fail(str("takes integers, got ", c.input(0)));
    c.add_output(c.input(0));
  };
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{shards_for(outputs[0].shape.num_elements(), std::int64_t{64} << 10), 0, false};
  };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      visit_dtype(dtype, [&, first = begin, last = end]<class T>(T) {
        const T* values = static_cast<const T*>(c.input(0));
        const T* zero = std::find(values + first, values + last, T(0));
        if (zero == values + last) return;
        throw RefusedData(
            str("check_divisors: element ", zero - values, " is 0, and integers cannot be divided by 0"),
            zero - values);
      });
      kernels::copy(dtype, c.input(0), c.output(0), begin, end);
    };
  };
  return def;
}

}  // namespace

void internal::register_updates_ops(OpRegistry& registry) {
  for (const Kind& kind : all_kinds()) {
    registry.add(dense_op(kind));
    registry.add(rows_op(kind));
  }
  registry.add(check_indices_op());
  registry.add(check_divisors_op());
}

Value check_divisors(const Operand& divisors) {
  const Value& value = divisors.value_for("check_divisors");
  return value.builder().op1("check_divisors", {value}, {}, {}, divisors.site());
}

Value check_indices(const Operand& indices, std::int64_t limit) {
  const Value& value = indices.value_for("check_indices");
  return value.builder().op1("check_indices", {value}, {{"limit", limit}}, {}, indices.site());
}

Value check_indices(const Operand& indices, std::int64_t limit, const Value& rows) {
  const Value& value = indices.value_for("check_indices");
  return value.builder().op1("check_indices", {value, rows}, {{"limit", limit}}, {}, indices.site());
}

}  // namespace lockstep
