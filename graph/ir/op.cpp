// graph/ir/op.cpp - what an operation is, and the registry of all of them.
#include "lockstep/graph/ir/op.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <shared_mutex>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/error.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/internal/edit_distance.h"

namespace lockstep {

std::string to_string(Effect effects) {
  if (effects == Effect::kPure) return "pure";
  static constexpr std::pair<Effect, const char*> kNames[] = {{Effect::kReadsVariable, "reads_variable"},
                                                              {Effect::kWritesVariable, "writes_variable"},
                                                              {Effect::kCollective, "collective"},
                                                              {Effect::kRandom, "random"},
                                                              {Effect::kHost, "host"},
                                                              {Effect::kOpaque, "opaque"}};
  std::string text;
  for (const auto& [effect, name] : kNames) {
    if (has(effects, effect)) text += (text.empty() ? "" : "|") + std::string(name);
  }
  return text;
}

const TensorSpec& NodeView::variable(std::string_view name) const {
  const TensorSpec* spec = variables_ == nullptr ? nullptr : (*variables_)(name);
  if (spec == nullptr) fail(str("variable '", name, "' is not declared; declare it in the outermost graph"));
  return *spec;
}

std::vector<std::int64_t> NodeView::shape_operand(std::size_t i) const {
  if (shape_values_ != nullptr) return (*shape_values_)(i);
  const Shape& shape = input(i).shape;
  return std::vector<std::int64_t>(shape.is_known() ? static_cast<std::size_t>(shape.num_elements()) : 0,
                                   kUnknownElement);
}

Group& NodeView::group(std::string_view name) const {
  if (runtime_ == nullptr) {
    throw FailedPrecondition(str("'", name_, "' needs the group '", name,
                                 "' of a runtime, and the interpreter has none: compile the graph"));
  }
  return runtime_->group(name);
}

int NodeView::card() const { return runtime_ == nullptr ? -1 : runtime_->topology().facts(*device_).card; }

void NodeView::fail(const std::string& message) { throw InvalidArgument(message); }

void NodeView::missing(std::string_view attribute) {
  fail(str("attribute '", attribute, "' is missing or has another type"));
}

void InferContext::expect_outputs(std::int64_t count) const {
  if (count > static_cast<std::int64_t>(most_))
    fail(str("gives ", count, " outputs, and there can be ", most_, " at most"));
}

void InferContext::add_output(TensorSpec spec) {
  expect_outputs(static_cast<std::int64_t>(outputs_.size()) + 1);
  outputs_.push_back(std::move(spec));
}

void InferContext::add_output(DType dtype, Shape shape) { add_output(TensorSpec{dtype, std::move(shape)}); }

DType InferContext::same_dtype() const {
  for (std::size_t i = 1; i < num_inputs(); ++i) {
    if (input(i).dtype != input(0).dtype) {
      fail(str("inputs must have one dtype, got ", input(0), " and ", input(i),
               "; cast one of them: cast(x, DType::kF32)"));
    }
  }
  return input(0).dtype;
}

std::string arity_message(const OpDef& op, std::size_t inputs) {
  const Arity& arity = op.inputs;
  const auto got = [&](std::size_t wanted) {
    return str(wanted == 1 ? " input" : " inputs", ", got ", inputs);
  };
  if (arity.min == arity.max) return str("takes ", arity.min, got(arity.min));
  if (arity.max == std::numeric_limits<std::size_t>::max())
    return str("takes at least ", arity.min, got(arity.min));
  return str("takes ", arity.min, " to ", arity.max, got(arity.max));
}

struct OpRegistry::State {
  mutable std::shared_mutex mutex;
  std::deque<OpDef> defs;  // addresses never change
  NameMap<const OpDef*> known;
  NameMap<std::weak_ptr<const OpDef>> unknown;  // each lives as long as a graph holds it
  std::deque<KernelDef> kernels;                // added later; addresses never change
  // By op and kernel set; null: it was asked for, and nothing could be derived.
  NameMap<std::map<std::string, const KernelDef*, std::less<>>> added;
  std::map<std::string, std::function<KernelMaker(const OpDef&)>, std::less<>> derived;  // by kernel set
};

OpRegistry::OpRegistry() : state_(std::make_unique<State>()) {}
OpRegistry::~OpRegistry() = default;

namespace {

bool is_op_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || !letter(name.front())) return false;
  return std::ranges::all_of(name, [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.'; });
}

}  // namespace

const OpDef& OpRegistry::add(OpDef def) {
  if (!is_op_name(def.name)) {
    throw InvalidArgument(
        str("op name '", def.name, "' must be letters, digits, '_' and '.', and not start with a digit"));
  }
  if (!def.infer) throw InvalidArgument(str("op '", def.name, "' has no inference rule"));
  if (const auto cpu = def.kernels.find("cpu"); cpu != def.kernels.end()) {
    if (!cpu->second.cost) cpu->second.cost = def.cost;
    if (!cpu->second.split) cpu->second.split = def.split;
  }
  const std::unique_lock lock(state_->mutex);
  if (state_->known.contains(def.name)) {
    throw InvalidArgument(str("op '", def.name, "' is registered already; choose another name"));
  }
  const OpDef& stored = state_->defs.emplace_back(std::move(def));
  state_->known.emplace(stored.name, &stored);
  return stored;
}

void OpRegistry::add_kernel(std::string_view op, std::string_view kernel_set, KernelDef kernel) {
  const OpDef& def = get(op);
  if (!kernel.make) {
    throw InvalidArgument(
        str("the kernel of op '", op, "' for the kernel set '", kernel_set, "' has no maker"));
  }
  if (kernel_set.empty()) throw InvalidArgument(str("the kernel of op '", op, "' names no kernel set"));
  const std::unique_lock lock(state_->mutex);
  auto& added = state_->added[def.name];
  const auto there = added.find(kernel_set);
  if (there != added.end() && there->second == nullptr) added.erase(there);
  if (def.kernels.contains(kernel_set) || added.contains(kernel_set)) {
    throw InvalidArgument(str("op '", op, "' has a kernel for the kernel set '", kernel_set, "' already"));
  }
  added.emplace(kernel_set, &state_->kernels.emplace_back(std::move(kernel)));
}

const KernelDef* OpRegistry::kernel(const OpDef& op, std::string_view kernel_set) const {
  if (const auto own = op.kernels.find(kernel_set); own != op.kernels.end()) return &own->second;
  std::function<KernelMaker(const OpDef&)> derive;
  {
    const std::shared_lock lock(state_->mutex);
    if (const auto added = state_->added.find(op.name); added != state_->added.end()) {
      if (const auto found = added->second.find(kernel_set); found != added->second.end())
        return found->second;
    }
    const auto derived = state_->derived.find(kernel_set);
    if (derived == state_->derived.end() || !op.known) return nullptr;
    derive = derived->second;
  }
  KernelMaker maker = derive(op);  // not under the lock: it may look at other ops
  const std::unique_lock lock(state_->mutex);
  const auto [place, fresh] = state_->added[op.name].try_emplace(std::string(kernel_set), nullptr);
  if (fresh && maker) place->second = &state_->kernels.emplace_back(std::move(maker));
  return place->second;
}

void OpRegistry::derive_kernels(std::string_view kernel_set,
                                std::function<KernelMaker(const OpDef&)> derive) {
  const std::unique_lock lock(state_->mutex);
  if (!state_->derived.emplace(kernel_set, std::move(derive)).second)
    throw InvalidArgument(str("kernels of the kernel set '", kernel_set, "' are derived already"));
}

std::vector<std::string> OpRegistry::kernel_sets(const OpDef& op) const {
  std::vector<std::string> sets, derived;
  for (const auto& [set, unused] : op.kernels) sets.push_back(set);
  {
    const std::shared_lock lock(state_->mutex);
    for (const auto& [set, unused] : state_->derived) derived.push_back(set);
  }
  for (const std::string& set : derived)
    static_cast<void>(kernel(op, set));  // from now on it is among those added
  {
    const std::shared_lock lock(state_->mutex);
    if (const auto added = state_->added.find(op.name); added != state_->added.end()) {
      for (const auto& [set, kernel] : added->second) {
        if (kernel != nullptr) sets.push_back(set);
      }
    }
  }
  std::ranges::sort(sets);
  return sets;
}

const OpDef* OpRegistry::find(std::string_view name) const {
  const std::shared_lock lock(state_->mutex);
  const auto found = state_->known.find(name);
  return found == state_->known.end() ? nullptr : found->second;
}

const OpDef& OpRegistry::get(std::string_view name) const {
  if (const OpDef* def = find(name)) return *def;
  throw NotFound(str("no op named '", name.substr(0, 80), "' is registered; did you mean ",
                     internal::closest_names(name, names()), "?"));
}

std::shared_ptr<const OpDef> OpRegistry::find_or_unknown(std::string_view name) {
  if (const OpDef* def = find(name)) return {std::shared_ptr<const OpDef>(), def};
  OpDef def;
  def.name = std::string(name);
  def.inputs = Arity::at_least(0);
  def.effects = Effect::kOpaque;
  def.open_attributes = true;
  def.known = false;
  // Runs when the last graph that holds the op lets it go: removes it from the table.
  const auto forget = [state = state_.get()](const OpDef* gone) {
    {
      const std::unique_lock lock(state->mutex);
      const auto found = state->unknown.find(gone->name);
      if (found != state->unknown.end() && found->second.expired()) state->unknown.erase(found);
    }
    delete gone;  // NOLINT(cppcoreguidelines-owning-memory): the deleter of its shared pointer
  };
  // Made before locking, because its deleter takes the lock.
  std::shared_ptr<const OpDef> made(new OpDef(std::move(def)), forget);
  const std::unique_lock lock(state_->mutex);
  std::weak_ptr<const OpDef>& slot = state_->unknown[made->name];
  if (std::shared_ptr<const OpDef> there = slot.lock()) return there;
  slot = made;
  return made;
}

std::vector<std::string> OpRegistry::names() const {
  const std::shared_lock lock(state_->mutex);
  std::vector<std::string> names;
  for (const auto& [name, def] : state_->known) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

}  // namespace lockstep
