// graph/ops/control_flow.cpp - ops with regions. How they run is decided by OpDef::region_kind.
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/replica_tensors.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"

namespace lockstep {

namespace {

const TensorSpec& parameter_spec(const Graph& region, std::size_t i) {
  return region.spec({region.parameters()[i], 0});
}

// Does the region take these values?
void check_parameters(const Graph& region, const char* which, std::span<const TensorSpec> arguments) {
  if (region.parameters().size() != arguments.size()) {
    NodeView::fail(str(which, " takes ", counted(region.parameters().size(), "parameter"), ", got ",
                       counted(arguments.size(), "value")));
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const TensorSpec& wanted = parameter_spec(region, i);
    const bool fits = wanted.dtype == arguments[i].dtype && wanted.shape.rank() == arguments[i].shape.rank();
    if (!fits) NodeView::fail(str(which, " parameter ", i, " is ", wanted, ", got ", arguments[i]));
    for (std::size_t axis = 0; axis < wanted.shape.rank(); ++axis) {
      const std::int64_t have = arguments[i].shape[axis];
      if (wanted.shape[axis] != kUnknown && have != kUnknown && wanted.shape[axis] != have) {
        NodeView::fail(str(which, " parameter ", i, " is ", wanted, ", got ", arguments[i]));
      }
    }
  }
}

bool is_bool_scalar(const TensorSpec& spec) { return spec.dtype == DType::kBool && spec.shape.rank() == 0; }

TensorSpec result_spec(const Graph& region, std::size_t i) { return region.spec(region.results()[i]); }

OpDef region_op(std::string name, std::string summary, Arity inputs, std::size_t regions, RegionKind kind) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = inputs;
  def.regions = regions;
  def.region_kind = kind;
  return def;
}

OpDef cond_op() {
  OpDef def = region_op("cond", "region 0 where the predicate holds, else region 1, over the same arguments",
                        Arity::at_least(1), 2, RegionKind::kCond);
  def.gradient = internal::gradient_of_cond();
  def.infer = [](InferContext& c) {
    if (!is_bool_scalar(c.input(0))) NodeView::fail(str("the predicate must be bool[], got ", c.input(0)));
    const Graph& then_region = c.regions()[0];
    const Graph& else_region = c.regions()[1];
    check_parameters(then_region, "then branch", c.inputs().subspan(1));
    check_parameters(else_region, "else branch", c.inputs().subspan(1));
    if (then_region.results().size() != else_region.results().size()) {
      NodeView::fail(str("the then branch gives ", counted(then_region.results().size(), "value"),
                         ", the else branch ", else_region.results().size()));
    }
    for (std::size_t i = 0; i < then_region.results().size(); ++i) {
      const TensorSpec a = result_spec(then_region, i);
      const TensorSpec b = result_spec(else_region, i);
      if (a.dtype != b.dtype || a.shape.rank() != b.shape.rank()) {
        NodeView::fail(str("result ", i, " is ", a, " in the then branch and ", b, " in the else branch"));
      }
      c.add_output(a.dtype, join_shapes(a.shape, b.shape));
    }
  };
  return def;
}

OpDef while_op() {
  OpDef def =
      region_op("while_loop", "repeats region 1 while region 0 says true; the first `carried` inputs change",
                Arity::at_least(1), 2, RegionKind::kWhile);
  def.gradient = internal::gradient_of_while();
  def.attributes = {{"carried", AttributeType::kInt},
                    {"max_trips", AttributeType::kInt, false},
                    {"stash", AttributeType::kBool, false}};
  def.infer = [](InferContext& c) {
    const std::int64_t carried = c.get<std::int64_t>("carried");
    if (carried < 1 || static_cast<std::size_t>(carried) > c.num_inputs()) {
      NodeView::fail(str("`carried` is ", carried, " with ", counted(c.num_inputs(), "input")));
    }
    const Graph& condition = c.regions()[0];
    const Graph& body = c.regions()[1];
    check_parameters(condition, "condition", c.inputs());
    check_parameters(body, "body", c.inputs());
    if (condition.results().size() != 1 || !is_bool_scalar(result_spec(condition, 0))) {
      NodeView::fail("the condition must give one bool[]");
    }
    if (body.results().size() != static_cast<std::size_t>(carried)) {
      NodeView::fail(
          str("the body gives ", counted(body.results().size(), "value"), " for ", carried, " carried ones"));
    }
    for (std::size_t i = 0; i < body.results().size(); ++i) {
      const TensorSpec result = result_spec(body, i);
      const TensorSpec& parameter = parameter_spec(body, i);
      const Shape& given = c.input(i).shape;
      // A body may know more about its results than about its parameters.
      if (result.dtype != parameter.dtype || !parameter.shape.admits(result.shape) ||
          !given.may_equal(result.shape)) {
        NodeView::fail(str("carried value ", i, " goes in as ",
                           parameter.shape.admits(given) ? c.input(i) : parameter, " and comes out as ",
                           result, "; a loop must keep dtype and shape"));
      }
      // The loop keeps the shape it was given, which may be more precise than its body's.
      c.add_output(parameter.dtype, parameter.shape.admits(given) ? given : parameter.shape);
    }
    const std::int64_t max_trips = c.get_or<std::int64_t>("max_trips", -1);
    if (max_trips < -1) NodeView::fail(str("`max_trips` is ", max_trips, "; -1 says that there is no bound"));
    if (!c.get_or<bool>("stash", false)) return;
    if (max_trips < 0) NodeView::fail("a loop that keeps its trips needs `max_trips`");
    for (std::int64_t i = 0; i < carried; ++i) {
      const TensorSpec value = c.outputs()[static_cast<std::size_t>(i)];
      c.add_output(value.dtype, value.shape.with_inserted(0, max_trips));
    }
    c.add_output(DType::kI64, Shape{});
  };
  return def;
}

OpDef replicated_op() {
  OpDef def = region_op("replicated", "region 0 once per replica, over shared and per-replica inputs",
                        Arity::at_least(0), 1, RegionKind::kReplicated);
  def.attributes = {{"replicas", AttributeType::kInt},
                    {"shared", AttributeType::kInt},
                    {"update", AttributeType::kBool, false},
                    {"first", AttributeType::kInt, false},
                    {"world", AttributeType::kInt, false}};
  def.infer = [](InferContext& c) {
    const std::int64_t replicas = c.get<std::int64_t>("replicas");
    const std::int64_t shared = c.get<std::int64_t>("shared");
    if (replicas < 1) NodeView::fail(str("`replicas` must be at least 1, got ", replicas));
    internal::check_range(c, replicas);
    const auto inputs = static_cast<std::int64_t>(c.num_inputs());
    if (shared < 0 || shared > inputs || (inputs - shared) % replicas != 0) {
      NodeView::fail(str(inputs, " inputs are not ", shared, " shared ones and groups of ", replicas));
    }
    std::vector<TensorSpec> first(c.inputs().begin(), c.inputs().begin() + shared);
    for (std::int64_t i = shared; i < inputs; i += replicas)
      first.push_back(c.input(static_cast<std::size_t>(i)));
    for (std::int64_t r = 0; r < replicas; ++r) {
      for (std::size_t group = static_cast<std::size_t>(shared); group < first.size(); ++group) {
        const std::size_t at =
            static_cast<std::size_t>(shared + r) +
            (group - static_cast<std::size_t>(shared)) * static_cast<std::size_t>(replicas);
        first[group] = c.input(at);
      }
      check_parameters(c.regions()[0], "the replicated region", first);
    }
    for (std::size_t i = 0; i < c.regions()[0].results().size(); ++i) {
      for (std::int64_t r = 0; r < replicas; ++r) c.add_output(result_spec(c.regions()[0], i));
    }
  };
  return def;
}

}  // namespace

void internal::register_control_flow_ops(OpRegistry& registry) {
  registry.add(cond_op());
  registry.add(while_op());
  registry.add(replicated_op());
}

}  // namespace lockstep
