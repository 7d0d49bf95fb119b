// graph/build/builder.cpp - builds a graph node by node, checking each as it is made.
#include "lockstep/graph/build/builder.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>

#include "lockstep/core/device.h"
#include "lockstep/graph/ir/internal/plain_call.h"
#include "lockstep/graph/ir/internal/shape_values.h"

namespace lockstep {

// --- values

namespace internal {

// Values refer to their builder through a ticket, since they may outlive it. Tickets are never freed, only
// given to later builders, and no number is used twice: if the ticket's number differs from a Value's, the
// graph of the Value is no longer being built.
struct BuilderTicket {
  std::atomic<std::uint64_t> number{0};
  GraphBuilder* builder = nullptr;
};

}  // namespace internal

namespace {

using internal::BuilderTicket;

class Tickets {
 public:
  static Tickets& all() {
    static auto* const tickets = new Tickets();  // never destroyed: a Value may be static
    return *tickets;
  }

  BuilderTicket* take(GraphBuilder* builder, bool of_region) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      free_.reserve(tickets_.size() + 1);  // so that returning one cannot fail
      free_.push_back(&tickets_.emplace_back());
    }
    BuilderTicket* const ticket = free_.back();
    free_.pop_back();
    ticket->builder = builder;
    ticket->number.store(next_number(of_region), std::memory_order_release);
    return ticket;
  }
  void give_back(BuilderTicket* ticket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ticket->number.store(0, std::memory_order_release);
    ticket->builder = nullptr;
    free_.push_back(ticket);
  }
  // Odd for regions, so that the error about a stale Value can tell a finished region from a finished graph.
  static std::uint64_t next_number(bool of_region) {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(2, std::memory_order_relaxed) + (of_region ? 3 : 2);
  }

 private:
  std::mutex mutex_;
  std::deque<BuilderTicket> tickets_;
  std::vector<BuilderTicket*> free_;
};

}  // namespace

Value::Value(GraphBuilder* builder, ValueId id)
    : ticket_(builder == nullptr ? nullptr : builder->ticket_),
      id_(id),
      number_(builder == nullptr ? 0 : builder->ticket_->number.load(std::memory_order_relaxed)) {}

GraphBuilder& Value::builder() const {
  if (ticket_ == nullptr) throw InvalidArgument("an empty Value was used; it stands for no node");
  if (number_ != ticket_->number.load(std::memory_order_acquire)) {
    throw InvalidArgument(
        number_ % 2 == 0
            ? "a Value was used after finish(): its graph is no longer being built, and no other one knows "
              "it; hand it over as a result and an argument"
            : "a Value was used outside of the function that made it (a branch, a loop body or the code of a "
              "replica); return it from there and use what cond(), while_loop() or run() gives");
  }
  return *ticket_->builder;
}

const Value& Operand::value_for(std::string_view op) const {
  const auto place = [&] { return ErrorPlace{{}, std::string(op), {}, site_.file, site_.line, -1}; };
  if (number_) throw InvalidArgument(str(op, ": takes a Value here, got the number ", *number_), place());
  try {
    value_.builder();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(str(op, ": ", error.message()), place());
  }
  return value_;
}

const TensorSpec& Value::spec() const { return builder().graph().spec(id_); }
const std::string& Value::name() const { return builder().graph().node(id_.node).name(); }

// --- the builder

GraphBuilder::GraphBuilder() : GraphBuilder(nullptr) {}
GraphBuilder::~GraphBuilder() { Tickets::all().give_back(ticket_); }

GraphBuilder::GraphBuilder(GraphBuilder* parent) : parent_(parent) {
  if (parent_ != nullptr) device_ = parent_->device_;
  variable_specs_ = [this](std::string_view name) { return variable_spec(name); };
  ticket_ = Tickets::all().take(this, parent_ != nullptr);
}

const TensorSpec* GraphBuilder::variable_spec(std::string_view name) const {
  const GraphBuilder* root = this;
  while (root->parent_ != nullptr) root = root->parent_;
  const VariableDecl* decl = root->graph_.find_variable(name);
  return decl == nullptr ? nullptr : &decl->spec;
}

GraphBuilder& GraphBuilder::innermost() {
  GraphBuilder* builder = this;
  while (builder->child_ != nullptr) builder = builder->child_;
  return *builder;
}

GraphBuilder& GraphBuilder::outermost() {
  GraphBuilder* builder = this;
  while (builder->parent_ != nullptr) builder = builder->parent_;
  return *builder;
}

Value GraphBuilder::import(const Value& value) {
  if (&value.builder() == this) return value;
  if (parent_ == nullptr) {
    throw InvalidArgument(
        str("value '", value.name(), "' belongs to another graph; feed it through a placeholder"));
  }
  const Value outer = parent_->import(value);
  for (const auto& [captured, parameter] : captures_) {
    if (captured == outer) return {this, {parameter, 0}};
  }
  const Value parameter = add_parameter(outer.name(), outer.spec(), {});
  captures_.emplace_back(outer, parameter.id().node);
  return parameter;
}

// The contents of a captured value are not known inside a region. A shape operand is therefore made anew
// there, from the captured values whose shapes it follows from.
Value GraphBuilder::import_shape(const Value& value) {
  GraphBuilder& home = value.builder();
  if (&home == this || parent_ == nullptr) return import(value);
  for (const auto& [outer, own] : shapes_) {
    if (outer == value) return own;
  }
  const Node& origin = home.graph_.node(value.id().node);
  if (!internal::is_derivable(origin)) return import(value);  // inference will refuse it
  std::vector<Value> inputs;
  for (const ValueId input : origin.inputs()) {
    const Value outer(&home, input);
    inputs.push_back(origin.op().traits.gives_shape ? outer : import_shape(outer));
  }
  const NodeId id = node(origin.op(), origin.name(), inputs, origin.attributes(), {}, origin.site());
  const Value own{this, {id, value.id().output}};
  shapes_.emplace_back(value, own);
  return own;
}

Value GraphBuilder::add_parameter(std::string_view name, const TensorSpec& spec, SourceSite site) {
  static const OpDef& op = OpRegistry::global().get("placeholder");
  NodeInit init;
  init.op = &op;
  init.name = graph_.unique_name(name);
  init.outputs = {spec};
  init.site = site;
  init.device = device_;
  const NodeId id = graph_.add(std::move(init));
  graph_.add_parameter(id);
  return {this, {id, 0}};
}

namespace {

// " made at model.cpp:7"; for a node that reads a variable, the line of the variable.
std::string origin_of(const Node& node, const Graph& outermost) {
  if (const auto& attribute = node.op().traits.reads_variable) {
    const auto* read = node.find<VariableRef>(*attribute);
    const VariableDecl* decl = read == nullptr ? nullptr : outermost.find_variable(read->name);
    if (decl != nullptr && !decl->made_at.empty()) return " made at " + decl->made_at;
  }
  return node.site().known() ? str(" made at ", node.site().file, ":", node.site().line) : std::string();
}

// "matmul: inner dimensions differ ... (inputs: 'x' f32[2,3] made at model.cpp:7, ...)"
[[noreturn]] void refuse(const Graph& graph, const Graph& outermost, const OpDef& op, const std::string& name,
                         std::span<const ValueId> inputs, const std::string& reason,
                         const std::string& device, const SourceSite& site) {
  std::string from;
  for (const ValueId input : inputs) {
    const Node& node = graph.node(input.node);
    from += str(from.empty() ? "; inputs: '" : ", '", node.name(), "' ", graph.spec(input),
                origin_of(node, outermost));
  }
  throw InvalidArgument(str(op.name, ": ", reason, from), {name, op.name, device, site.file, site.line, -1});
}

void check_attributes(const OpDef& op, const std::vector<Attribute>& attributes) {
  for (const AttributeSpec& spec : op.attributes) {
    const AttributeValue* value = find_attribute(attributes, spec.name);
    if (value == nullptr) {
      if (spec.required)
        NodeView::fail(str("attribute '", spec.name, "' (", to_string(spec.type), ") is missing"));
    } else if (type_of(*value) != spec.type) {
      NodeView::fail(str("attribute '", spec.name, "' must be of type ", to_string(spec.type), ", not ",
                         to_string(type_of(*value))));
    }
  }
  if (op.open_attributes) return;
  for (const Attribute& attribute : attributes) {
    if (std::ranges::find(op.attributes, attribute.name, &AttributeSpec::name) == op.attributes.end()) {
      NodeView::fail(str("there is no attribute '", attribute.name, "'"));
    }
  }
}

}  // namespace

NodeId GraphBuilder::node(const OpDef& op, std::string_view name, std::span<const Value> inputs,
                          std::vector<Attribute> attributes, std::vector<Graph> regions, SourceSite site,
                          std::span<const TensorSpec> declared) {
  if (child_ != nullptr) {  // inside a branch or a loop body: the node belongs there
    return innermost().node(op, name, inputs, std::move(attributes), std::move(regions), site, declared);
  }
  const auto& maker = outermost().maker_;
  if (maker) site = maker->site;
  NodeInit init;
  init.op = &op;
  init.inputs.reserve(inputs.size());
  SmallVector<TensorSpec, 4> specs;
  std::string base = scope_;
  base += name.empty() ? std::string_view(op.name) : name;
  try {
    for (const Value& input : inputs) {
      const bool is_shape =
          std::ranges::find(op.shape_operands, init.inputs.size()) != op.shape_operands.end();
      const Value own = is_shape ? import_shape(input) : import(input);
      init.inputs.push_back(own.id());
      specs.push_back(own.spec());
    }
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(str(op.name, ": ", error.message()),
                          {base, op.name, device_, site.file, site.line, -1});
  }
  init.name = graph_.unique_name(base);  // after the captures, which take names too
  init.attributes = std::move(attributes);
  init.regions = std::move(regions);
  init.site = site;
  init.device = device_;
  if (maker && !maker->name.empty()) {
    const std::uint64_t identity = Graph::new_identity();
    const std::uint64_t origin = maker->origin == 0 ? identity : maker->origin;
    init.provenance = Provenance{identity, origin, graph_.intern(maker->name), {}, -1, maker->gradient};
  }
  try {
    if (!op.inputs.accepts(inputs.size())) NodeView::fail(arity_message(op, inputs.size()));
    check_attributes(op, init.attributes);
    if (init.regions.size() != op.regions) NodeView::fail(str("takes ", op.regions, " regions"));
    NodeView::ShapeValues shape_values;
    if (!op.shape_operands.empty()) {
      shape_values = [&](std::size_t i) { return internal::static_elements(graph_, init.inputs[i]); };
    }
    InferContext context(init.name, specs, init.attributes, init.regions, &variable_specs_, declared,
                         shape_values ? &shape_values : nullptr);
    op.infer(context);
    init.outputs = std::move(context.outputs());
  } catch (const Error& error) {
    refuse(graph_, outermost().graph_, op, init.name, init.inputs, error.message(), device_, site);
  }
  const NodeId id = graph_.add(std::move(init));
  order_effects(id);
  return id;
}

void GraphBuilder::order_effects(NodeId id) {
  const Node& node = graph_.node(id);
  const OpDef& op = node.op();
  if (op.effects == Effect::kPure && op.regions == 0) return;
  const Effect effects = effects_of(node);
  std::vector<NodeId> controls(node.controls().begin(), node.controls().end());
  const auto after = [&](NodeId before) {
    if (before.valid()) controls.push_back(before);
  };
  if (has(effects, Effect::kOpaque)) {
    after(barrier_);
    for (const NodeId before : since_barrier_) after(before);
    barrier_ = id;
    since_barrier_.clear();
  } else if (must_run(effects) || has(effects, Effect::kReadsVariable)) {
    after(barrier_);
    since_barrier_.push_back(id);
  }
  const bool uses_variables = has(effects, Effect::kReadsVariable | Effect::kWritesVariable);
  for (const VariableUse& use : uses_variables ? variable_uses(node) : std::vector<VariableUse>()) {
    Order& order = order_[use.name];
    after(order.last_write);
    if (use.writes) {
      for (const NodeId reader : order.reads) after(reader);
      order.last_write = id;
      order.reads.clear();
    } else {
      order.reads.push_back(id);
    }
  }
  // Each control once, and none that a data input orders anyway.
  std::ranges::sort(controls);
  controls.erase(std::unique(controls.begin(), controls.end()), controls.end());
  for (const ValueId input : node.inputs()) {
    const auto found = std::ranges::lower_bound(controls, input.node);
    if (found != controls.end() && *found == input.node) controls.erase(found);
  }
  graph_.set_controls(id, controls);
}

void GraphBuilder::keep_trips(NodeId loop) {
  const Node& node = graph_.node(loop);
  const auto* kept = node.find<bool>("stash");
  if (kept != nullptr && *kept) return;
  graph_.set_attribute(loop, "stash", true);
  const std::vector<TensorSpec> inputs = input_specs(graph_, node);
  graph_.set_outputs(loop, infer_outputs(node, inputs, variable_specs_));
}

std::vector<Value> GraphBuilder::outputs_of(NodeId id) {
  std::vector<Value> values;
  const std::size_t count = graph_.node(id).outputs().size();
  for (std::size_t i = 0; i < count; ++i) values.push_back({this, {id, static_cast<std::uint32_t>(i)}});
  return values;
}

namespace {

const OpDef& op_named(std::string_view name, const SourceSite& site) {
  const OpRegistry& registry = OpRegistry::global();
  if (const OpDef* def = registry.find(name)) return *def;
  try {
    return registry.get(name);
  } catch (const NotFound& error) {
    throw NotFound(error.message(), {{}, std::string(name), {}, site.file, site.line, -1});
  }
}

}  // namespace

std::vector<Value> GraphBuilder::op(std::string_view name, std::span<const Value> inputs,
                                    std::vector<Attribute> attributes, std::string_view node_name,
                                    SourceSite site) {
  GraphBuilder& target = innermost();
  return target.outputs_of(
      target.node(op_named(name, site), node_name, inputs, std::move(attributes), {}, site));
}

Value GraphBuilder::op1(std::string_view name, std::initializer_list<Value> inputs,
                        std::vector<Attribute> attributes, std::string_view node_name, SourceSite site) {
  GraphBuilder& target = innermost();
  const NodeId id = target.node(op_named(name, site), node_name, {inputs.begin(), inputs.size()},
                                std::move(attributes), {}, site);
  if (target.graph_.node(id).outputs().empty()) {
    throw InvalidArgument(str("op '", name, "' has no outputs; make it with op()"),
                          place_of(target.graph_.node(id)));
  }
  return {&target, {id, 0}};
}

// --- sources

Value GraphBuilder::placeholder(std::string_view name, DType dtype, Shape shape, SourceSite site) {
  if (child_ != nullptr || parent_ != nullptr) {
    throw FailedPrecondition(str("placeholder '", name, "' inside a region; make it in the outermost graph"),
                             {std::string(name), "placeholder", {}, site.file, site.line, -1});
  }
  const std::string full = scope_ + std::string(name);
  if (name.empty() || graph_.find(full).valid()) {
    throw InvalidArgument(str("placeholder '", full, "': the name is ", name.empty() ? "empty" : "taken",
                              "; it is fed by its name"),
                          {full, "placeholder", {}, site.file, site.line, -1});
  }
  return add_parameter(full, {dtype, std::move(shape)}, site);
}

Value GraphBuilder::constant(const Tensor& value, std::string_view name, SourceSite site) {
  std::vector<Attribute> attributes;
  // Constants of a graph are on the host.
  attributes.push_back({"value", value.memory() == kHostMemory ? value.clone() : value.host()});
  return op1("constant", {}, std::move(attributes), name, site);
}

Value GraphBuilder::random_uniform(const TensorSpec& spec, double low, double high,
                                   std::optional<std::int64_t> key, SourceSite site) {
  const std::int64_t used = key ? *key : new_key();
  return op1("random_uniform", {},
             {{"dtype", spec.dtype}, {"shape", spec.shape}, {"low", low}, {"high", high}, {"key", used}}, {},
             site);
}

// --- variables

VariableRef GraphBuilder::variable(std::string_view name, const Tensor& initial, SourceSite site) {
  VariableDecl decl;
  decl.name = scope_ + std::string(name);
  if (!initial.defined()) {
    throw InvalidArgument(str("variable '", decl.name, "': its initial value is an empty tensor handle"),
                          {decl.name, "variable", {}, site.file, site.line, -1});
  }
  decl.spec = initial.spec();
  decl.initial = initial.clone().host();
  return variable(std::move(decl), site);
}

VariableRef GraphBuilder::variable(VariableDecl decl, SourceSite site) {
  const ErrorPlace place{decl.name, "variable", {}, site.file, site.line, -1};
  if (parent_ != nullptr || child_ != nullptr) {
    throw FailedPrecondition("variables are declared in the outermost graph, not inside a region", place);
  }
  VariableRef reference{decl.name};
  if (decl.device.empty()) decl.device = device_;
  if (decl.made_at.empty() && site.known()) decl.made_at = str(site.file, ":", site.line);
  try {
    graph_.declare_variable(std::move(decl));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(error.message(), place);
  }
  return reference;
}

VariableRef GraphBuilder::find_or_declare(VariableDecl decl, SourceSite site) {
  const ErrorPlace place{decl.name, "variable", {}, site.file, site.line, -1};
  VariableRef reference{decl.name};
  Graph& graph = outermost().graph_;
  if (const VariableDecl* found = graph.find_variable(decl.name)) {
    if (found->spec == decl.spec) return reference;
    throw InvalidArgument(
        str("variable '", decl.name, "' is declared as ", found->spec,
            found->made_at.empty() ? "" : str(" (", found->made_at, ")"), ", and wanted as ", decl.spec),
        place);
  }
  if (decl.device.empty() && parent_ == nullptr) decl.device = device_;  // a strategy places those of regions
  if (decl.made_at.empty() && site.known()) decl.made_at = str(site.file, ":", site.line);
  if (decl.initial.defined()) decl.initial = decl.initial.clone().host();
  try {
    graph.declare_variable(std::move(decl));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(error.message(), place);
  }
  return reference;
}

namespace {

// The name, inside a scope, of a node that uses the variable: a variable made there already has the scope in
// its name.
std::string name_inside(std::string_view scope, std::string_view variable, const char* use) {
  if (variable.starts_with(scope)) variable.remove_prefix(scope.size());
  return std::string(variable).append("/").append(use);
}

}  // namespace

Value GraphBuilder::read(const VariableRef& variable, SourceSite site) {
  return op1("read", {}, {{"variable", variable}}, name_inside(innermost().scope_, variable.name, "read"),
             site);
}
Value GraphBuilder::assign(const VariableRef& variable, const Value& value, SourceSite site) {
  return op1("assign", {value}, {{"variable", variable}},
             name_inside(innermost().scope_, variable.name, "assign"), site);
}
Value GraphBuilder::assign_add(const VariableRef& variable, const Value& delta, SourceSite site) {
  return op1("assign_add", {delta}, {{"variable", variable}},
             name_inside(innermost().scope_, variable.name, "assign_add"), site);
}

// --- lambdas

NodeId GraphBuilder::add_call(std::string_view name, std::span<const Value> inputs,
                              std::span<const TensorSpec> outputs, KernelFn function,
                              const CallOptions& options, SourceSite site) {
  static const OpDef& op = OpRegistry::global().get("call");
  std::vector<Attribute> attributes;
  attributes.reserve(3);
  attributes.push_back({"effects", static_cast<std::int64_t>(options.effects)});
  attributes.push_back({"function", Lambda{std::move(function)}});
  if (!(options.seconds >= 0)) {
    throw InvalidArgument(str("call: the cost hint is ", options.seconds, " seconds; it must be 0 or more"),
                          {std::string(name), "call", {}, site.file, site.line, -1});
  }
  if (options.seconds > 0) attributes.push_back({"seconds", options.seconds});
  return node(op, name, inputs, std::move(attributes), {}, site, outputs);
}

namespace {

template <class Function>
void check_callable(const Function& function, std::string_view name, const SourceSite& site) {
  if (function) return;
  throw InvalidArgument("call: the function is empty",
                        {std::string(name), "call", {}, site.file, site.line, -1});
}

}  // namespace

std::vector<Value> GraphBuilder::call(std::string_view name, std::span<const Value> inputs,
                                      std::span<const TensorSpec> outputs, KernelFn function,
                                      CallOptions options, SourceSite site) {
  check_callable(function, name, site);
  GraphBuilder& target = innermost();
  return target.outputs_of(target.add_call(name, inputs, outputs, std::move(function), options, site));
}

NodeId GraphBuilder::call(std::string_view name, std::function<void()> function, CallOptions options,
                          std::span<const NodeId> after, SourceSite site) {
  check_callable(function, name, site);
  GraphBuilder& target = innermost();
  const NodeId id = target.add_call(name, {}, {}, internal::PlainCall{std::move(function)}, options, site);
  for (const NodeId before : after) target.run_after(id, before);
  return id;
}

void GraphBuilder::run_after(NodeId node, NodeId before) {
  GraphBuilder& target = innermost();
  if (!target.graph_.contains(node) || !target.graph_.contains(before)) {
    throw InvalidArgument("run_after: no such node in the graph that is being built");
  }
  target.graph_.add_control(node, before);
}

// --- names and places

GraphBuilder::Guard GraphBuilder::scope(std::string_view name) {
  if (name.empty()) throw InvalidArgument("scope: the name is empty");
  GraphBuilder& target = innermost();
  return {target.scope_, str(target.scope_, name, "/")};
}

GraphBuilder::Guard GraphBuilder::device(std::string_view device) {
  return {innermost().device_, device.empty() ? std::string() : Device::parse(device).to_string()};
}

// --- results

void GraphBuilder::result(const Value& value, SourceSite site) {
  const ErrorPlace place{{}, "result", {}, site.file, site.line, -1};
  if (child_ != nullptr) {
    throw FailedPrecondition("result() inside a branch or loop body; return the value from the function",
                             place);
  }
  try {
    graph_.add_result(import(value).id());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(str("result: ", error.message()), place);
  }
}

Graph GraphBuilder::finish() {
  if (parent_ != nullptr || child_ != nullptr) {
    throw FailedPrecondition("finish() inside a region; the function's return value ends the region");
  }
  order_.clear();
  barrier_ = NodeId();
  since_barrier_.clear();
  next_key_ = -1;
  // Invalidates the values of the finished graph.
  ticket_->number.store(Tickets::next_number(false), std::memory_order_release);
  return std::move(graph_);
}

}  // namespace lockstep
