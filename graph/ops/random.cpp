// graph/ops/random.cpp - random draws.
#include "lockstep/graph/ops/random.h"

#include <cmath>

#include "lockstep/core/kernels/random.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"

namespace lockstep {

namespace {

using internal::shards_for;

constexpr std::int64_t kRandomGrain = 32 << 10;  // elements per shard; 20 to 80 us

std::uint64_t key_of(const NodeView& node) {
  return static_cast<std::uint64_t>(node.get<std::int64_t>("key"));
}

Cost cost_of_draws(double nanoseconds, std::span<const TensorSpec> outputs) {
  const double n = static_cast<double>(outputs[0].shape.num_elements());
  return Cost{12 * n, static_cast<double>(num_bytes(outputs[0])), 1e-9 * nanoseconds * n + 20e-9};
}

Split split_of_draws(const NodeView&, std::span<const TensorSpec> outputs) {
  return Split{shards_for(outputs[0].shape.num_elements(), kRandomGrain), 0, false};
}

// An op that fills a tensor, whose shape is its attribute or its input; T is the type of its two parameters.
template <class T>
struct Draw {
  const char* name;
  const char* summary;
  const char* first;  // the attributes' names
  const char* second;
  bool floating;
  double nanoseconds;                             // of an element
  void (*check)(DType dtype, T first, T second);  // fails if the kernel would throw
  void (*fill)(DType, const RandomStream&, T, T, void*, std::int64_t, std::int64_t);
};

template <class T>
OpDef draw_op(const Draw<T>& draw) {
  OpDef def;
  def.name = draw.name;
  def.summary = draw.summary;
  def.inputs = Arity::between(0, 1);
  constexpr AttributeType kType = std::is_same_v<T, double> ? AttributeType::kFloat : AttributeType::kInt;
  def.attributes = {{"dtype", AttributeType::kDType},
                    {"shape", AttributeType::kShape, false},
                    {draw.first, kType},
                    {draw.second, kType},
                    {"key", AttributeType::kInt}};
  def.shape_operands = {0};
  def.effects = Effect::kRandom;
  def.infer = [draw](InferContext& c) {
    const DType dtype = c.get<DType>("dtype");
    if (draw.floating && !is_floating(dtype)) NodeView::fail(str("dtype must be floating, got ", dtype));
    if (!draw.floating && !is_integer(dtype)) NodeView::fail(str("dtype must be an integer, got ", dtype));
    const auto* shape = c.find<Shape>("shape");
    if (shape != nullptr && !shape->is_known()) NodeView::fail(str("shape must be known, got ", *shape));
    draw.check(dtype, c.get<T>(draw.first), c.get<T>(draw.second));
    c.add_output(dtype, internal::target_shape_of(c, 0));
  };
  def.cost = [ns = draw.nanoseconds](const NodeView&, std::span<const TensorSpec> outputs) {
    return cost_of_draws(ns, outputs);
  };
  def.split = split_of_draws;
  // Nothing flows back into a shape.
  def.gradient = [](GradientContext& c) { return std::vector<Gradient>(c.num_inputs()); };
  def.kernels["cpu"] = [draw](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [fill = draw.fill, dtype = outputs[0].dtype, n = outputs[0].shape.num_elements(),
            first = node.get<T>(draw.first), second = node.get<T>(draw.second),
            key = key_of(node)](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      fill(dtype, c.random(key), first, second, c.output(0), begin, end);
    };
  };
  return def;
}

OpDef permutation_op() {
  OpDef def;
  def.name = "random_permutation";
  def.summary = "the numbers 0 to n-1 in an order decided by seed, key, replica and step alone";
  def.attributes = {{"n", AttributeType::kInt}, {"key", AttributeType::kInt}};
  def.effects = Effect::kRandom;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    const auto n = c.get<std::int64_t>("n");
    if (n < 0) NodeView::fail(str("n must be 0 or more, got ", n));
    c.add_output(DType::kI64, Shape{n});
  };
  def.cost = [](const NodeView&, std::span<const TensorSpec> outputs) { return cost_of_draws(5, outputs); };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [n = outputs[0].shape[0], key = key_of(node)](KernelContext& c) {
      kernels::permutation(c.random(key), n, static_cast<std::int64_t*>(c.output(0)));
    };
  };
  return def;
}

OpDef dropout_op() {
  OpDef def;
  def.name = "dropout";
  def.summary =
      "x / (1 - rate), but 0 for elements chosen with probability `rate` by seed, key, replica and step";
  def.inputs = Arity::exactly(1);
  def.attributes = {{"rate", AttributeType::kFloat}, {"key", AttributeType::kInt}};
  def.effects = Effect::kRandom;
  def.traits.in_place = true;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    const DType dtype = c.input(0).dtype;
    const double rate = c.get<double>("rate");
    if (!is_floating(dtype)) NodeView::fail(str("takes a floating value, got ", c.input(0)));
    if (!(rate >= 0 && rate <= 1)) NodeView::fail(str("rate must lie in [0, 1], got ", rate));
    c.add_output(c.input(0));
  };
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    Cost cost = cost_of_draws(1.5, outputs);
    cost.bytes += static_cast<double>(num_bytes(node.input(0)));
    return cost;
  };
  def.split = split_of_draws;
  // The same key chooses the same elements again.
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {dropout(c.grad(), c.view().get<double>("rate"), c.view().get<std::int64_t>("key"))};
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements(), rate = node.get<double>("rate"),
            key = key_of(node)](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::dropout(dtype, c.random(key), rate, c.input(0), c.output(0), begin, end);
    };
  };
  return def;
}

// Makes the node with `shape` as an attribute, or with `operand` as a shape operand.
Value draw(GraphBuilder& builder, const char* op, DType dtype, const Shape* shape, const Value* operand,
           std::vector<Attribute> attributes, RandomKey key, SourceSite site) {
  attributes.push_back({"dtype", dtype});
  attributes.push_back({"key", key ? *key : internal::BuilderAccess(builder).new_key()});
  if (shape != nullptr) {
    attributes.push_back({"shape", *shape});
    return builder.op1(op, {}, std::move(attributes), {}, site);
  }
  return builder.op1(op, {*operand}, std::move(attributes), {}, site);
}

}  // namespace

void internal::register_random_ops(OpRegistry& registry) {
  registry.add(
      draw_op<double>({.name = "random_uniform",
                       .summary = "independent draws from [low, high), decided by seed, key, replica and "
                                  "step alone",
                       .first = "low",
                       .second = "high",
                       .floating = true,
                       .nanoseconds = 1.2,
                       .check =
                           [](DType dtype, double low, double high) {
                             if (!kernels::is_uniform_range(dtype, low, high)) {
                               NodeView::fail(str("low must be below high, both finite in ", dtype,
                                                  ", as their distance, got [", low, ", ", high, ")"));
                             }
                           },
                       .fill = kernels::uniform}));
  registry.add(draw_op<double>(
      {.name = "random_normal",
       .summary = "independent normal draws, decided by seed, key, replica and step alone",
       .first = "mean",
       .second = "stddev",
       .floating = true,
       .nanoseconds = 3,
       .check =
           [](DType, double mean, double stddev) {
             if (!std::isfinite(mean) || !std::isfinite(stddev) || stddev < 0) {
               NodeView::fail(
                   str("mean must be finite, and stddev finite and 0 or more, got ", mean, " and ", stddev));
             }
           },
       .fill = kernels::normal}));
  registry.add(draw_op<std::int64_t>(
      {.name = "random_integers",
       .summary = "independent integers from low to high - 1, decided by seed, key, replica and step alone",
       .first = "low",
       .second = "high",
       .floating = false,
       .nanoseconds = 2,
       .check =
           [](DType dtype, std::int64_t low, std::int64_t high) {
             if (low >= high) NodeView::fail(str("low must be below high, got [", low, ", ", high, ")"));
             if (!kernels::is_integer_range(dtype, low, high))
               NodeView::fail(str(dtype, " does not hold all of [", low, ", ", high, ")"));
           },
       .fill = kernels::integers}));
  registry.add(permutation_op());
  registry.add(dropout_op());
}

Value random_uniform(const Value& shape, DType dtype, double low, double high, RandomKey key,
                     SourceSite site) {
  return draw(shape.builder(), "random_uniform", dtype, nullptr, &shape, {{"low", low}, {"high", high}}, key,
              site);
}

Value random_normal(GraphBuilder& builder, const TensorSpec& spec, double mean, double stddev, RandomKey key,
                    SourceSite site) {
  return draw(builder, "random_normal", spec.dtype, &spec.shape, nullptr,
              {{"mean", mean}, {"stddev", stddev}}, key, site);
}

Value random_normal(const Value& shape, DType dtype, double mean, double stddev, RandomKey key,
                    SourceSite site) {
  return draw(shape.builder(), "random_normal", dtype, nullptr, &shape, {{"mean", mean}, {"stddev", stddev}},
              key, site);
}

Value random_integers(GraphBuilder& builder, const TensorSpec& spec, std::int64_t low, std::int64_t high,
                      RandomKey key, SourceSite site) {
  return draw(builder, "random_integers", spec.dtype, &spec.shape, nullptr, {{"low", low}, {"high", high}},
              key, site);
}

Value random_integers(const Value& shape, DType dtype, std::int64_t low, std::int64_t high, RandomKey key,
                      SourceSite site) {
  return draw(shape.builder(), "random_integers", dtype, nullptr, &shape, {{"low", low}, {"high", high}}, key,
              site);
}

Value random_permutation(GraphBuilder& builder, std::int64_t n, RandomKey key, SourceSite site) {
  const std::int64_t used = key ? *key : internal::BuilderAccess(builder).new_key();
  return builder.op1("random_permutation", {}, {{"n", n}, {"key", used}}, {}, site);
}

Value dropout(const Operand& x, double rate, RandomKey key) {
  const Value& value = x.value_for("dropout");
  const std::int64_t used = key ? *key : internal::BuilderAccess(value.builder()).new_key();
  return value.builder().op1("dropout", {value}, {{"rate", rate}, {"key", used}}, {}, x.site());
}

}  // namespace lockstep
