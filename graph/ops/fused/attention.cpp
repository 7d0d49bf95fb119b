// graph/ops/fused/attention.cpp - scaled dot-product attention and its gradient, made by the pass fuse-attention.
#include "lockstep/core/kernels/attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/gemm.h"
#include "lockstep/graph/ops/fused/internal/attention.h"
#include "lockstep/graph/ops/fused/internal/attention_on_cpu.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"

namespace lockstep {

namespace {

using internal::Attention;
using internal::AttentionMask;
using internal::AttentionRows;

// --- what the attributes say

struct Form {
  bool packed = false, rows_first = false, has_mask = false;
  std::size_t mask() const { return packed ? 1 : 3; }  // which input
  std::size_t inputs() const { return mask() + (has_mask ? 1 : 0); }
};

Form form_of(const NodeView& node) {
  Form form;
  form.packed = node.get_or("packed", false);
  form.rows_first = form.packed;
  form.has_mask = node.get_or("mask", false);
  if (const auto* layout = node.find<std::string>("layout")) {
    if (*layout != "heads_first" && *layout != "rows_first")
      NodeView::fail(str("has layout=\"", *layout, "\": expected heads_first or rows_first"));
    form.rows_first = *layout == "rows_first";
    if (form.packed && !form.rows_first)
      NodeView::fail("is packed, which is rows_first, but has layout=\"heads_first\"");
  }
  return form;
}

void check_dropout(const NodeView& node) {
  const auto* rate = node.find<double>("rate");
  if ((rate == nullptr) != (node.find<std::int64_t>("key") == nullptr))
    NodeView::fail("takes rate and key for a dropout, or neither");
  if (rate != nullptr && !(*rate >= 0 && *rate <= 1))
    NodeView::fail(str("rate must lie in [0, 1], got ", *rate));
}

// --- shapes

bool may_match(std::int64_t a, std::int64_t b) { return a == b || a == kUnknown || b == kUnknown; }
std::int64_t known_of(std::int64_t a, std::int64_t b) { return a == kUnknown ? b : a; }

struct Extents {
  std::vector<std::int64_t> batch;  // the axes before the queries, as the scores have them
  std::int64_t queries = 0, keys = 0, width = 0, value_width = 0;

  std::vector<std::int64_t> rows(std::int64_t count, std::int64_t elements, bool rows_first) const {
    std::vector<std::int64_t> dims = batch;
    dims.insert(rows_first ? dims.begin() + 1 : dims.end(), count);
    dims.push_back(elements);
    return dims;
  }
  Shape out(bool rows_first) const {
    return Shape(std::span<const std::int64_t>(rows(queries, value_width, rows_first)));
  }
  Shape logs() const {
    std::vector<std::int64_t> dims = batch;
    dims.push_back(queries);
    return Shape(std::span<const std::int64_t>(dims));
  }
  Shape scores() const {
    std::vector<std::int64_t> dims = batch;
    dims.push_back(queries);
    dims.push_back(keys);
    return Shape(std::span<const std::int64_t>(dims));
  }
};

// Of one of q, k and v.
struct Part {
  std::vector<std::int64_t> batch;
  std::int64_t rows = 0, width = 0;
};

Part part_of(const Shape& shape, bool rows_first) {
  Part part;
  part.batch.assign(shape.dims().begin(), shape.dims().end() - 2);
  part.rows = shape.dim(-2);
  part.width = shape.dim(-1);
  if (rows_first) std::swap(part.batch[1], part.rows);
  return part;
}

Extents extents_of(const NodeView& node, const Form& form) {
  if (form.packed) {
    const Shape& shape = node.input(0).shape;
    if (shape.rank() != 5 || !may_match(shape[2], 3))
      NodeView::fail(str("takes q, k and v packed as [batch, rows, 3, heads, width], got ", node.input(0)));
    return {{shape[0], shape[3]}, shape[1], shape[1], shape[4], shape[4]};
  }
  const auto fail = [&](const char* wanted) {
    NodeView::fail(
        str("takes ", wanted, ", got ", node.input(0), ", ", node.input(1), " and ", node.input(2)));
  };
  Part parts[3];
  for (std::size_t i = 0; i < 3; ++i) {
    const Shape& shape = node.input(i).shape;
    if (form.rows_first && shape.rank() != 4) fail("q, k and v as [batch, rows, heads, width]");
    if (shape.rank() < 2 || shape.rank() != node.input(0).shape.rank())
      fail("q, k and v of one rank, 2 or more: [batch.., rows, width]");
    parts[i] = part_of(shape, form.rows_first);
  }
  auto& [q, k, v] = parts;
  for (const Part& part : {k, v}) {
    for (std::size_t axis = 0; axis < q.batch.size(); ++axis) {
      if (!may_match(q.batch[axis], part.batch[axis]))
        fail("q, k and v with the same heads of the same batches");
      q.batch[axis] = known_of(q.batch[axis], part.batch[axis]);
    }
  }
  if (!may_match(q.width, k.width)) fail("q and k with rows of one width");
  if (!may_match(k.rows, v.rows)) fail("as many rows of v as of k");
  return {q.batch, q.rows, known_of(k.rows, v.rows), known_of(q.width, k.width), v.width};
}

// Into which two groups of batch axes does the mask fall, so that it has all axes of a group, or none? The result is how many
// the first group has; none: there is no such cut.
std::optional<std::size_t> cut_of(std::span<const std::int64_t> mask, std::span<const std::int64_t> batch) {
  const auto all = [&](std::size_t begin, std::size_t end, bool broadcast) {
    for (std::size_t axis = begin; axis < end; ++axis) {
      const bool fits = broadcast ? mask[axis] == 1 : may_match(mask[axis], batch[axis]);
      if (!fits && batch[axis] != 1 && !(broadcast && mask[axis] == kUnknown)) return false;
    }
    return true;
  };
  const std::size_t n = batch.size();
  if (all(0, n, true) || all(0, n, false)) return 0;
  for (std::size_t cut = 1; cut < n; ++cut) {
    if ((all(0, cut, true) && all(cut, n, false)) || (all(0, cut, false) && all(cut, n, true))) return cut;
  }
  return std::nullopt;
}

// The mask's extents with ones for the axes that it does not have.
std::vector<std::int64_t> aligned(const Shape& mask, std::size_t rank) {
  std::vector<std::int64_t> dims(rank - mask.rank(), 1);
  dims.insert(dims.end(), mask.dims().begin(), mask.dims().end());
  return dims;
}

void check_mask(const NodeView& node, const Form& form, const Extents& extents) {
  const Shape scores = extents.scores();
  const TensorSpec& mask = node.input(form.mask());
  bool fits = mask.shape.rank() <= scores.rank();
  for (std::size_t i = 1; fits && i <= mask.shape.rank(); ++i) {
    const std::int64_t extent = mask.shape[mask.shape.rank() - i];
    fits = may_match(extent, 1) || may_match(extent, scores[scores.rank() - i]);
  }
  if (!fits) NodeView::fail(str("takes a mask that broadcasts to the scores ", scores, ", got ", mask));
  const std::vector<std::int64_t> dims = aligned(mask.shape, scores.rank());
  if (!cut_of(std::span(dims).first(dims.size() - 2), extents.batch)) {
    NodeView::fail(str("takes a mask that is broadcast along the first batch axes of the scores ", scores,
                       " or along the last, got ", mask));
  }
}

// The shapes of all that follow from the inputs of the forward node, which are checked.
Extents checked_extents(const InferContext& c, const Form& form) {
  const DType dtype = c.input(0).dtype;
  c.require(is_floating(dtype), "takes floating values");
  for (std::size_t i = 0; i < form.inputs(); ++i) {
    if (c.input(i).dtype != dtype)
      NodeView::fail(str("takes values of one dtype, got ", c.input(0), " and ", c.input(i)));
  }
  check_dropout(c);
  Extents extents = extents_of(c, form);
  if (form.has_mask) check_mask(c, form, extents);
  return extents;
}

DType logs_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

void check_inputs(const InferContext& c, std::size_t wanted) {
  if (c.num_inputs() != wanted)
    NodeView::fail(str("takes ", wanted, " inputs by its attributes, got ", c.num_inputs()));
}

void infer_attention(InferContext& c) {
  const Form form = form_of(c);
  check_inputs(c, form.inputs());
  const Extents extents = checked_extents(c, form);
  c.add_output(c.input(0).dtype, extents.out(form.rows_first));
  c.add_output(logs_dtype(c.input(0).dtype), extents.logs());
}

void infer_attention_grad(InferContext& c) {
  const Form form = form_of(c);
  check_inputs(c, form.inputs() + 3);
  const Extents extents = checked_extents(c, form);
  const auto check = [&](std::size_t i, const char* what, DType dtype, const Shape& shape) {
    if (const TensorSpec wanted{dtype, shape}; !c.input(i).may_equal(wanted))
      NodeView::fail(str("takes ", what, " as ", wanted, ", got ", c.input(i)));
  };
  const DType dtype = c.input(0).dtype;
  const std::size_t first = form.inputs();
  check(first, "what attention gave", dtype, extents.out(form.rows_first));
  check(first + 1, "the logs that attention gave", logs_dtype(dtype), extents.logs());
  check(first + 2, "what flows back", dtype, extents.out(form.rows_first));
  for (std::size_t i = 0; i < (form.packed ? 1U : 3U); ++i) c.add_output(c.input(i));
}

// --- where everything lies

std::int64_t product(std::span<const std::int64_t> extents) {
  std::int64_t result = 1;
  for (const std::int64_t extent : extents) result *= extent;
  return result;
}

AttentionMask mask_of(const Form& form, const Shape& shape, const Extents& extents, std::size_t cut) {
  const std::vector<std::int64_t> dims = aligned(shape, extents.batch.size() + 2);
  const std::size_t n = extents.batch.size();
  AttentionMask mask{.operand = form.mask()};
  const std::span<const std::int64_t> all(dims);
  const auto step = [&](std::size_t begin, std::size_t end) {
    return product(all.subspan(begin, end - begin)) == 1 ? 0 : product(all.subspan(end));
  };
  mask.batch = step(0, cut);
  mask.head = step(cut, n);
  mask.row = step(n, n + 1);
  mask.column = step(n + 1, n + 2);
  return mask;
}

}  // namespace

Attention internal::attention_of(const NodeView& node) {
  const Form form = form_of(node);
  const Extents extents = extents_of(node, form);
  Attention a;
  std::size_t cut = form.rows_first ? 1 : 0;
  if (form.has_mask) {
    const Shape& shape = node.input(form.mask()).shape;
    const std::vector<std::int64_t> dims = aligned(shape, extents.batch.size() + 2);
    if (!form.rows_first)
      cut = cut_of(std::span(dims).first(extents.batch.size()), extents.batch).value_or(0);
    a.mask = mask_of(form, shape, extents, cut);
  }
  a.batch = product(std::span(extents.batch).first(cut));
  a.heads = product(std::span(extents.batch).subspan(cut));
  a.queries = extents.queries;
  a.keys = extents.keys;
  a.width = extents.width;
  a.value_width = extents.value_width;
  a.scale = node.get<double>("scale");
  a.rate = node.get_or("rate", 0.0);
  if (const auto* key = node.find<std::int64_t>("key")) a.key = *key;
  a.packed = form.packed;
  const auto rows = [&](std::size_t operand, std::int64_t count, std::int64_t width) -> AttentionRows {
    if (form.rows_first) return {operand, 0, count * a.heads * width, width, a.heads * width};
    return {operand, 0, a.heads * count * width, count * width, width};
  };
  const auto part = [&](std::size_t i, std::int64_t count, std::int64_t width) {
    if (!form.packed) return rows(i, count, width);
    const std::int64_t row = 3 * a.heads * width;
    return AttentionRows{0, static_cast<std::int64_t>(i) * a.heads * width, count * row, width, row};
  };
  a.q = a.dq = part(0, a.queries, a.width);
  a.k = a.dk = part(1, a.keys, a.width);
  a.v = a.dv = part(2, a.keys, a.value_width);
  if (node.num_inputs() == form.inputs()) {
    a.out = rows(0, a.queries, a.value_width);
  } else {
    a.out = rows(form.inputs(), a.queries, a.value_width);
    a.logs = form.inputs() + 1;
    a.flow = rows(form.inputs() + 2, a.queries, a.value_width);
  }
  return a;
}

namespace {

OpDef attention_op(std::string_view name, const char* summary, Arity inputs) {
  OpDef def;
  def.name = name;
  def.summary = summary;
  def.inputs = inputs;
  def.attributes = {{"scale", AttributeType::kFloat},          {"mask", AttributeType::kBool, false},
                    {"rate", AttributeType::kFloat, false},    {"key", AttributeType::kInt, false},
                    {"layout", AttributeType::kString, false}, {"packed", AttributeType::kBool, false}};
  def.effects = Effect::kRandom;  // with a key
  return def;
}

}  // namespace

void internal::register_attention_ops(OpRegistry& registry) {
  OpDef forward =
      attention_op(kAttention, "softmax(q kT * scale + mask) v, head by head, and the logarithms of its sums",
                   Arity::between(1, 4));
  forward.infer = infer_attention;
  forward.cost = attention_cost;
  forward.split = attention_split;
  forward.kernels["cpu"] = attention_kernel;
  registry.add(std::move(forward));

  OpDef back =
      attention_op(kAttentionGrad, "what flows back through attention into q, k and v", Arity::between(4, 7));
  back.infer = infer_attention_grad;
  back.cost = attention_grad_cost;
  back.split = attention_grad_split;
  back.kernels["cpu"] = attention_grad_kernel;
  registry.add(std::move(back));
}

}  // namespace lockstep
