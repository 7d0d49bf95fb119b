// graph/train/gradients.cpp - reverse-mode derivatives, as nodes of the same graph.
#include "lockstep/graph/train/gradients.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/build/internal/region_trace.h"
#include "lockstep/graph/ir/internal/gradient_nodes.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/internal/flow_back.h"

namespace lockstep {

// --- the walk back

namespace {

using internal::kGradients;  // Provenance::made_by of what is made here
using internal::RegionTrace;

// Each list is one thing to differentiate by: a value, or all reads of a variable.
using Sources = std::vector<std::vector<Value>>;
// Nodes through which nothing may flow back, and the variable that each of them reads inside a region.
using Refused = std::unordered_map<NodeId, std::string>;

// All that flows into one value, in the order in which it came.
Gradient joined(const std::vector<Gradient>& flows) {
  if (flows.size() < 2) return flows.empty() ? Gradient() : flows[0];
  if (std::ranges::all_of(flows, &Gradient::is_sparse)) {
    std::vector<Value> indices, values;
    for (const Gradient& flow : flows) {
      indices.push_back(flow.slices().indices);
      values.push_back(flow.slices().values);
    }
    return IndexedSlices{concat(indices, 0), concat(values, 0), flows[0].slices().dense_shape};
  }
  Value total = to_dense(flows[0]);
  for (std::size_t i = 1; i < flows.size(); ++i) total = total + to_dense(flows[i]);
  return total;
}

std::string with_site(const Node& node) {
  const SourceSite& site = node.site();
  return site.known() ? str("'", node.name(), "' (made at ", site.file, ":", site.line, ")")
                      : str("'", node.name(), "'");
}

// Which of the first `end` nodes depend on a source? A stop_gradient ends the dependence: nodes after it need
// no rule.
std::vector<bool> dependents(const Graph& graph, const Sources& sources, const Refused& refused,
                             std::size_t end) {
  static const OpDef& stop = OpRegistry::global().get("stop_gradient");
  std::vector<bool> active(end, false);
  const auto mark = [&](NodeId id) {
    if (id.index() < end) active[id.index()] = true;
  };
  for (const std::vector<Value>& values : sources) {
    for (const Value& value : values) mark(value.id().node);
  }
  for (const auto& [id, variable] : refused) mark(id);
  for (std::size_t i = 0; i < end; ++i) {
    if (active[i] || !graph.contains(NodeId(i)) || &graph.node(NodeId(i)).op() == &stop) continue;
    active[i] = std::ranges::any_of(graph.node(NodeId(i)).inputs(), [&](ValueId input) {
      return active[input.node.index()] && is_floating(graph.spec(input).dtype);
    });
  }
  return active;
}

class Backward {
 public:
  Backward(GraphBuilder& builder, const Sources& sources, const Refused& refused, SourceSite site)
      : builder_(builder), sources_(sources), refused_(refused), site_(site) {}

  // What flows back into each source, given a seed for each target; a target that nothing flows into has an
  // empty seed.
  std::vector<Gradient> run(std::span<const Value> targets, std::span<const Gradient> seeds) {
    const Graph& graph = builder_.graph();
    std::size_t end = 0;
    for (const Value& target : targets) end = std::max(end, target.id().node.index() + std::size_t{1});
    active_ = dependents(graph, sources_, refused_, end);
    flows_.resize(end);
    // Ids are in order of making, so that users of a value come before it on the way back.
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (seeds[i].valid()) flow(targets[i].id(), seeds[i]);
    }
    for (std::size_t i = end; i-- > 0;) {
      if (active_[i] && !flows_[i].empty()) step_back(graph.node(NodeId(i)));
    }
    return collect();
  }

 private:
  // Does a derivative go through this value?
  bool carries(ValueId value) const {
    return active_[value.node.index()] && is_floating(builder_.graph().spec(value).dtype);
  }

  void flow(ValueId into, const Gradient& gradient) {
    std::vector<std::vector<Gradient>>& outputs = flows_[into.node.index()];
    outputs.resize(builder_.graph().node(into.node).outputs().size());
    std::vector<Gradient>& flows = outputs[into.output];
    if (!flows.empty() && !flows.back().is_sparse() && !gradient.is_sparse()) {
      flows.back() = flows.back().dense() + gradient.dense();  // at once: what was added need not be kept
    } else {
      flows.push_back(gradient);
    }
  }

  void step_back(const Node& node) {
    std::vector<std::vector<Gradient>>& flows = flows_[node.id().index()];
    if (const auto found = refused_.find(node.id()); found != refused_.end()) {
      throw InvalidArgument(str("gradients: variable '", found->second, "' is read inside a region of '",
                                node.name(), "'; read it outside, and use the value inside"),
                            place_of(node));
    }
    const bool goes_on = std::ranges::any_of(node.inputs(), [&](ValueId input) { return carries(input); });
    const auto scope = builder_.scope(str("gradients/", node.name()));
    const auto device = builder_.device(node.device());
    const auto made_for = internal::BuilderAccess(builder_).made_for(node, kGradients, GradientMark::kShare);
    for (std::vector<Gradient>& list : flows) {
      if (list.size() > 1) list = {joined(list)};
    }
    if (!goes_on) return;
    if (!node.op().gradient) {
      throw InvalidArgument(str("gradients: op '", node.op().name,
                                "' has no gradient rule, and what is differentiated depends on it; give it "
                                "OpDef::gradient, or put stop_gradient() in front of it"),
                            place_of(node));
    }
    std::vector<Value> inputs, outputs, grads;
    for (const ValueId input : node.inputs()) inputs.emplace_back(&builder_, input);
    for (std::uint32_t i = 0; i < node.outputs().size(); ++i) {
      outputs.emplace_back(&builder_, ValueId{node.id(), i});
      grads.push_back(flows[i].empty() ? Value() : to_dense(flows[i][0]));
    }
    const std::vector<TensorSpec> specs = input_specs(builder_.graph(), node);
    const NodeView::VariableSpecs variables =
        variable_specs(internal::BuilderAccess(builder_).outermost().graph());
    const NodeView view = view_of(node, specs, variables);
    GradientContext context(node, view, inputs, outputs, grads);
    const std::vector<Gradient> result = apply_rule(node, context);
    check_rule(node, result, specs);
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (result[i].valid() && carries(node.inputs()[i])) flow(node.inputs()[i], result[i]);
    }
  }

  // An error that names no node is about this one.
  static std::vector<Gradient> apply_rule(const Node& node, GradientContext& context) {
    try {
      return node.op().gradient(context);
    } catch (const Error& error) {
      if (!error.place().node.empty() || !error.place().file.empty()) throw;
      throw_error(error.code(), error.message(), place_of(node));
    }
  }

  static void check_rule(const Node& node, const std::vector<Gradient>& result,
                         std::span<const TensorSpec> inputs) {
    if (result.size() != inputs.size()) {
      throw InvalidArgument(str("the gradient rule of op '", node.op().name, "' gives ",
                                counted(result.size(), "gradient"), " for ", counted(inputs.size(), "input")),
                            place_of(node));
    }
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (!result[i].valid() || result[i].is_sparse()) continue;
      const TensorSpec& spec = result[i].dense().spec();
      if (!spec.may_equal(inputs[i])) {
        throw InvalidArgument(str("the gradient rule of op '", node.op().name, "' gives ", spec,
                                  " for input ", i, ", which is ", inputs[i]),
                              place_of(node));
      }
    }
  }

  std::vector<Gradient> collect() {
    std::vector<Gradient> results;
    const auto made_at = internal::BuilderAccess(builder_).made_at(site_);
    for (const std::vector<Value>& values : sources_) {
      std::vector<Gradient> parts;
      for (const Value& value : values) {
        const std::size_t at = value.id().node.index();
        if (at >= flows_.size() || flows_[at].empty() || flows_[at][value.id().output].empty()) continue;
        parts.push_back(joined(flows_[at][value.id().output]));
      }
      results.push_back(joined(parts));
    }
    return results;
  }

  GraphBuilder& builder_;
  const Sources& sources_;
  const Refused& refused_;
  SourceSite site_;
  std::vector<bool> active_;                               // by node: depends on a source
  std::vector<std::vector<std::vector<Gradient>>> flows_;  // by node and output
};

// The seed: what flows into the target itself.
Value seed_of(const Value& target, const GradientOptions& options, SourceSite site) {
  const ErrorPlace place{target.name(), "gradients", {}, site.file, site.line, -1};
  if (!is_floating(target.dtype())) {
    throw InvalidArgument(str("gradients: the target '", target.name(), "' is ", target.spec(),
                              "; only floating values have gradients"),
                          place);
  }
  if (!options.seed.valid() && target.shape() != Shape{}) {
    throw InvalidArgument(str("gradients: the target '", target.name(), "' is ", target.spec(),
                              ", not a scalar; reduce it (sum, mean) or give GradientOptions::seed"),
                          place);
  }
  if (options.seed.valid() && !options.seed.spec().may_equal(target.spec())) {
    throw InvalidArgument(str("gradients: the seed is ", options.seed.spec(), " for a target of ",
                              target.spec(), "; they must have one dtype and shape"),
                          place);
  }
  const auto made_at = internal::BuilderAccess(target.builder()).made_at(site, internal::kGradientSeed);
  if (options.seed.valid()) return identity(options.seed);
  // Made from the shape alone if it is known: the seed is then the same on all replicas, even if the target
  // is not.
  if (target.shape().is_known()) return full(target.builder(), target.dtype(), target.shape(), 1, site);
  return ones_like(target);
}

// As Value::builder(), but errors name `what` and the caller's line.
GraphBuilder& builder_of(const Value& value, const char* what, const SourceSite& site) {
  try {
    return value.builder();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(str("gradients: ", what, ": ", error.message()),
                          {{}, "gradients", {}, site.file, site.line, -1});
  }
}

// The graph of a value and those around it, outermost last.
std::vector<GraphBuilder*> levels_of(const Value& value) {
  std::vector<GraphBuilder*> levels;
  for (GraphBuilder* at = &value.builder(); at != nullptr; at = RegionTrace::parent_of(*at))
    levels.push_back(at);
  return levels;
}

// The sources in one graph: its own, and values captured from the graph around it.
struct Level {
  GraphBuilder* builder;
  // A list for each source of the call, with its values in this graph, then a list for each captured value.
  Sources sources;
  std::vector<Value> captured;  // values of the graph around that depend on a source there
};

// One for each level of the target, its own first.
std::vector<Level> split_by_level(std::span<GraphBuilder* const> levels, const Sources& sources,
                                  std::span<const Refused> refused) {
  std::vector<Level> result;
  std::vector<bool> active;  // in the graph around
  for (std::size_t at = levels.size(); at-- > 0;) {
    Level level{levels[at], Sources(sources.size()), {}};
    for (std::size_t i = 0; i < sources.size(); ++i) {
      for (const Value& value : sources[i]) {
        if (&value.builder() == levels[at]) level.sources[i].push_back(value);
      }
    }
    for (const auto& [outer, parameter] : RegionTrace::captures_of(*levels[at])) {
      if (!active[outer.id().node.index()] || !is_floating(outer.dtype())) continue;
      level.captured.push_back(outer);
      level.sources.push_back({Value(levels[at], {parameter, 0})});
    }
    const Graph& graph = levels[at]->graph();
    if (at > 0) active = dependents(graph, level.sources, refused[at], graph.id_bound());
    result.push_back(std::move(level));
  }
  std::ranges::reverse(result);
  return result;
}

// What flows back from the target into sources of its graph or of those around it: what flows into a value
// that a region captured flows on in the graph that it was captured from. `refused` is by level.
std::vector<Gradient> flow_outwards(const Value& target, const Value& seed, const Sources& sources,
                                    std::span<const Refused> refused, SourceSite site) {
  std::vector<std::vector<Gradient>> parts(sources.size());
  std::vector<Value> targets = {target};
  std::vector<Gradient> seeds = {seed};
  std::size_t number = 0;
  for (const Level& level : split_by_level(levels_of(target), sources, refused)) {
    const std::vector<Gradient> flows =
        Backward(*level.builder, level.sources, refused[number++], site).run(targets, seeds);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (flows[i].valid()) parts[i].push_back(flows[i]);
    }
    targets = level.captured;
    seeds.assign(flows.begin() + static_cast<std::ptrdiff_t>(sources.size()), flows.end());
  }
  const auto made_at = internal::BuilderAccess(target.builder()).made_at(site);
  std::vector<Gradient> results;
  results.reserve(parts.size());
  for (const std::vector<Gradient>& flows : parts) results.push_back(joined(flows));
  return results;
}

}  // namespace

std::vector<Gradient> internal::flow_back(GraphBuilder& builder, std::span<const Value> targets,
                                          std::span<const Value> seeds, std::span<const Value> sources,
                                          SourceSite site) {
  Sources each;
  for (const Value& source : sources) each.push_back({source});
  const std::vector<Gradient> flows(seeds.begin(), seeds.end());
  return Backward(builder, each, {}, site).run(targets, flows);
}

std::vector<Gradient> gradients(const Value& target, std::span<const Value> of,
                                const GradientOptions& options, SourceSite site) {
  GraphBuilder& builder = builder_of(target, "the target", site);
  const std::vector<GraphBuilder*> levels = levels_of(target);
  Sources sources;
  for (const Value& value : of) {
    if (std::ranges::find(levels, &builder_of(value, "a value to differentiate by", site)) == levels.end()) {
      throw InvalidArgument(str("gradients: '", value.name(), "' belongs to another graph than the target '",
                                target.name(), "', which cannot depend on it"),
                            {value.name(), "gradients", {}, site.file, site.line, -1});
    }
    sources.push_back({value});
  }
  const Value seed = seed_of(target, options, site);
  const std::vector<Refused> refused(levels.size());
  std::vector<Gradient> results = flow_outwards(target, seed, sources, refused, site);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].valid()) continue;
    if (options.unconnected == Unconnected::kError) {
      throw InvalidArgument(str("gradients: '", target.name(), "' does not depend on '", of[i].name(), "'"),
                            {of[i].name(), "gradients", {}, site.file, site.line, -1});
    }
    const auto made_at = internal::BuilderAccess(builder).made_at(site);
    results[i] = zeros_like(of[i]);
  }
  return results;
}

std::vector<Gradient> gradients(const Value& target, std::span<const VariableRef> of,
                                const GradientOptions& options, SourceSite site) {
  GraphBuilder& builder = builder_of(target, "the target", site);
  const std::vector<GraphBuilder*> levels = levels_of(target);
  struct Wanted {
    std::vector<std::size_t> places;  // in `of`: a variable may be named twice
    bool written = false;
    bool outdated = false;            // sources found so far are stale: the graph around has written it since
    std::string writer, late_reader;  // the first that writes it, and one that reads it after that
  };
  NameMap<Wanted> wanted;
  for (std::size_t i = 0; i < of.size(); ++i) wanted[of[i].name].places.push_back(i);
  Sources sources(of.size());
  std::vector<Refused> refused(levels.size());
  for (std::size_t level = levels.size(); level-- > 0;) {  // in program order: outermost first
    for (auto& [name, one] : wanted) one.outdated = std::exchange(one.written, false) || one.outdated;
    for (const Node& node : levels[level]->graph().nodes()) {
      if (level == 0 && node.id().index() > target.id().node.index()) break;
      if (!has(effects_of(node), Effect::kReadsVariable | Effect::kWritesVariable)) continue;
      for (const VariableUse& use : variable_uses(node)) {
        const auto found = wanted.find(use.name);
        if (found == wanted.end()) continue;
        if (use.reads && !found->second.written) {
          if (node.op().region_kind != RegionKind::kNone) refused[level].emplace(node.id(), use.name);
          if (node.op().traits.reads_variable) {
            for (const std::size_t i : found->second.places) {
              if (found->second.outdated) sources[i].clear();
              sources[i].push_back({levels[level], {node.id(), 0}});
            }
            found->second.outdated = false;
          }
        }
        if (found->second.written && node.op().traits.reads_variable)
          found->second.late_reader = with_site(node);
        if (!found->second.written && use.writes) found->second.writer = with_site(node);
        found->second.written = found->second.written || use.writes;
      }
    }
  }
  const Value seed = seed_of(target, options, site);
  std::vector<Gradient> results = flow_outwards(target, seed, sources, refused, site);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].valid()) continue;
    const VariableDecl* decl = internal::BuilderAccess(builder).outermost().graph().find_variable(of[i].name);
    const ErrorPlace place{of[i].name, "gradients", {}, site.file, site.line, -1};
    if (decl == nullptr)
      throw InvalidArgument(str("gradients: no variable '", of[i].name, "' is declared"), place);
    if (options.unconnected == Unconnected::kError) {
      if (!is_floating(decl->spec.dtype)) {
        throw InvalidArgument(str("gradients: variable '", of[i].name, "' is ", decl->spec,
                                  "; only floating-point variables have a gradient"),
                              place);
      }
      const Wanted& one = wanted.at(of[i].name);
      const std::string why =
          one.late_reader.empty()
              ? std::string()
              : str(" as it was when the step began: ", one.late_reader, " reads what ", one.writer,
                    " has written; take all gradients of a variable before the step first writes it");
      throw InvalidArgument(
          str("gradients: '", target.name(), "' does not depend on variable '", of[i].name, "'", why), place);
    }
    results[i] = builder.constant(Tensor::zeros(decl->spec.dtype, decl->spec.shape), "zeros", site);
  }
  return results;
}

// --- ops

namespace {

// Output 0 is input 0.
OpDef alias_op(std::string name, std::string summary, Arity inputs) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = inputs;
  def.traits.alias = true;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements()](KernelContext& c) {
      kernels::copy(dtype, c.input(0), c.output(0), 0, n);
    };
  };
  return def;
}

OpDef custom_gradient_op() {
  OpDef def = alias_op("custom_gradient", "input 0, with the gradient of its region for the inputs behind it",
                       Arity::at_least(2));
  def.regions = 1;
  def.attributes = {{"places", AttributeType::kInts}, {"inputs", AttributeType::kInt}};
  def.infer = [](InferContext& c) {
    const std::int64_t inputs = c.get<std::int64_t>("inputs");
    const auto& places = c.get<std::vector<std::int64_t>>("places");
    const Graph& rule = c.regions()[0];
    if (inputs < 1 || static_cast<std::size_t>(inputs) >= c.num_inputs()) {
      NodeView::fail(str("`inputs` is ", inputs, " with ", c.num_inputs(), " operands"));
    }
    if (rule.parameters().size() != c.num_inputs() + 1 || rule.results().size() != places.size()) {
      NodeView::fail(str("the rule takes ", rule.parameters().size(), " values and gives ",
                         rule.results().size(), "; it must take ", c.num_inputs() + 1, " and give ",
                         places.size()));
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::int64_t place = places[i];
      if (place < 0 || place >= inputs) NodeView::fail(str("`places` names input ", place, " of ", inputs));
      const TensorSpec& input = c.input(1 + static_cast<std::size_t>(place));
      const TensorSpec& flow = rule.spec(rule.results()[i]);
      if (!flow.may_equal(input)) {
        NodeView::fail(str("the rule gives ", flow, " for input ", place, ", which is ", input,
                           "; a gradient has the dtype and the shape of its input"));
      }
    }
    c.add_output(c.input(0));
  };
  // Operands: output, inputs, captured. Parameters of the rule: inputs, output, flow, captured.
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    internal::check_repeatable(c.builder(), c.node());
    const auto inputs = static_cast<std::size_t>(c.view().get<std::int64_t>("inputs"));
    std::vector<Value> arguments;
    for (std::size_t i = 0; i < inputs; ++i) arguments.push_back(c.input(1 + i));
    arguments.push_back(c.input(0));
    arguments.push_back(c.grad());
    for (std::size_t i = 1 + inputs; i < c.num_inputs(); ++i) arguments.push_back(c.input(i));
    const std::vector<Value> flows = internal::replay(c.builder(), c.node().regions()[0], arguments);
    std::vector<Gradient> result(c.num_inputs());
    const auto& places = c.view().get<std::vector<std::int64_t>>("places");
    for (std::size_t i = 0; i < flows.size(); ++i) result[1 + static_cast<std::size_t>(places[i])] = flows[i];
    return result;
  };
  return def;
}

Value alias(std::string_view op, const Operand& x) {
  const Value& value = x.value_for(op);
  return value.builder().op1(op, {value}, {}, {}, x.site());
}

}  // namespace

void internal::register_gradient_ops(OpRegistry& registry) {
  OpDef stop = alias_op("stop_gradient", "its input, through which nothing flows back", Arity::exactly(1));
  stop.gradient = [](GradientContext&) -> std::vector<Gradient> { return {Gradient()}; };
  registry.add(std::move(stop));
  OpDef keep = alias_op("checkpoint", "its input, to be kept for the way back", Arity::exactly(1));
  keep.traits.checkpoint = true;
  keep.gradient = [](GradientContext& c) -> std::vector<Gradient> { return {c.grad()}; };
  registry.add(std::move(keep));
  registry.add(custom_gradient_op());
}

Value custom_gradient(std::span<const Value> inputs, const CustomForwardFn& forward,
                      const CustomBackwardFn& backward, SourceSite site) {
  static const OpDef& op = OpRegistry::global().get("custom_gradient");
  const ErrorPlace place{{}, "custom_gradient", {}, site.file, site.line, -1};
  if (inputs.empty()) throw InvalidArgument("custom_gradient: needs at least one input", place);
  GraphBuilder& builder = internal::BuilderAccess(inputs[0].builder()).innermost();
  const Value output = forward(inputs);
  RegionTrace trace(builder);
  std::vector<Value> parameters;
  for (const Value& input : inputs) parameters.push_back(trace.parameter(input.name(), input.spec()));
  parameters.push_back(trace.parameter("output", output.spec()));
  parameters.push_back(trace.parameter("flow", output.spec()));
  const std::span<const Value> all(parameters);
  const std::vector<Value> flows =
      backward(all.first(inputs.size()), parameters[inputs.size()], parameters[inputs.size() + 1]);
  if (flows.size() != inputs.size()) {
    throw InvalidArgument(str("custom_gradient: the rule gives ", counted(flows.size(), "gradient"), " for ",
                              counted(inputs.size(), "input")),
                          place);
  }
  std::vector<Value> given;
  std::vector<std::int64_t> places;
  for (std::size_t i = 0; i < flows.size(); ++i) {
    if (!flows[i].valid()) continue;
    given.push_back(flows[i]);
    places.push_back(static_cast<std::int64_t>(i));
  }
  trace.finish(given, site);
  std::vector<Value> captured;
  trace.add_captures_to(captured);
  std::vector<Graph> regions;
  regions.push_back(trace.take(parameters, captured));
  std::vector<Value> operands = {output};
  operands.insert(operands.end(), inputs.begin(), inputs.end());
  operands.insert(operands.end(), captured.begin(), captured.end());
  std::vector<Attribute> attributes;
  attributes.push_back({"places", std::move(places)});
  attributes.push_back({"inputs", static_cast<std::int64_t>(inputs.size())});
  const NodeId id = builder.node(op, {}, operands, std::move(attributes), std::move(regions), site);
  return builder.outputs_of(id)[0];
}

Value stop_gradient(const Operand& x) { return alias("stop_gradient", x); }
Value checkpoint(const Operand& x) { return alias("checkpoint", x); }

std::vector<Gradient> gradients(const Value& target, std::initializer_list<Value> of,
                                const GradientOptions& options, SourceSite site) {
  return gradients(target, std::span<const Value>(of.begin(), of.size()), options, site);
}

std::vector<Gradient> gradients(const Value& target, std::initializer_list<VariableRef> of,
                                const GradientOptions& options, SourceSite site) {
  return gradients(target, std::span<const VariableRef>(of.begin(), of.size()), options, site);
}

Value custom_gradient(std::initializer_list<Value> inputs, const CustomForwardFn& forward,
                      const CustomBackwardFn& backward, SourceSite site) {
  return custom_gradient(std::span<const Value>(inputs.begin(), inputs.size()), forward, backward, site);
}

}  // namespace lockstep
