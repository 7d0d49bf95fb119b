// io/state/snapshot.cpp - all variables of a store at one moment.
#include "lockstep/io/state/snapshot.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/store_at_rest.h"
#include "lockstep/io/state/internal/logical_variables.h"

namespace lockstep {

namespace {

// In a list that is sorted by name.
template <class Entry>
const Entry* find_by_name(const std::vector<Entry>& list, std::string_view name) {
  const auto at = std::ranges::lower_bound(list, name, {},
                                           [](const Entry& entry) -> std::string_view { return entry.name; });
  return at == list.end() || at->name != name ? nullptr : &*at;
}

template <class Entry>
void sort_by_name(std::vector<Entry>& list) {
  std::ranges::sort(list, {}, &Entry::name);
  const auto twice = std::ranges::adjacent_find(list, {}, &Entry::name);
  if (twice != list.end()) throw InvalidArgument(str("snapshot: '", twice->name, "' comes twice"));
}

void check_state(std::string_view name, const Tensor& bytes) {
  if (bytes.defined() && bytes.dtype() == DType::kU8 && bytes.shape().rank() == 1) return;
  throw InvalidArgument(str("snapshot: the state '", name, "' is kept as u8[n], got ",
                            bytes.defined() ? to_string(bytes.spec()) : "an empty tensor"));
}

void check_item(const Snapshot::Item& item) {
  if (item.copies.empty() && !item.value.defined())
    throw InvalidArgument(str("snapshot: '", item.name, "' is empty"));
  if (item.copies.empty()) return;
  if (item.value.defined())
    throw InvalidArgument(str("snapshot: '", item.name, "' has a value and copies; give it one of both"));
  for (const Tensor& copy : item.copies) {
    if (!copy.defined() || copy.spec() != item.copies[0].spec())
      throw InvalidArgument(str("snapshot: the copies of '", item.name, "' differ in dtype or shape"));
  }
}

// A tensor of the spec: `old` if it fits and nobody else holds it, else a new one.
Tensor used_again(const Tensor* old, const TensorSpec& spec) {
  const bool reuse = old != nullptr && old->defined() && old->spec() == spec && old->use_count() == 1;
  return reuse ? *old : Tensor::empty(spec.dtype, spec.shape);
}

}  // namespace

Snapshot::Snapshot(std::uint64_t step, std::vector<Item> items, std::vector<State> states)
    : step_(step), items_(std::move(items)), states_(std::move(states)) {
  std::ranges::for_each(items_, check_item);
  for (const State& state : states_) check_state(state.name, state.bytes);
  sort_by_name(items_);
  sort_by_name(states_);
}

std::span<const Snapshot::Item> Snapshot::variables() const { return items_; }
std::span<const Snapshot::State> Snapshot::states() const { return states_; }

const Snapshot::Item* Snapshot::find_item(std::string_view name) const { return find_by_name(items_, name); }

const Tensor* Snapshot::find(std::string_view name) const {
  const Item* item = find_item(name);
  return item == nullptr || !item->copies.empty() ? nullptr : &item->value;
}

const Tensor* Snapshot::find_state(std::string_view name) const {
  const State* state = find_by_name(states_, name);
  return state == nullptr ? nullptr : &state->bytes;
}

void Snapshot::set_state(std::string_view name, Tensor bytes) {
  check_state(name, bytes);
  const auto at = std::ranges::lower_bound(states_, name, {},
                                           [](const State& state) -> std::string_view { return state.name; });
  if (at != states_.end() && at->name == name) {
    at->bytes = std::move(bytes);
  } else {
    states_.insert(at, {std::string(name), std::move(bytes)});
  }
}

void Snapshot::take(VariableStore& store) {
  const StoreAtRest rest(store, StoreAtRest::Access::kRead);
  const std::vector<internal::LogicalVariable> variables = internal::logical_variables(rest);
  std::string refused;
  for (const internal::LogicalVariable& variable : variables) {
    if (const Decision decision = variable.has_value(); !decision && !variable.is_apart())
      refused += str("\n  '", variable.name(), "': ", decision.reason());
  }
  if (!refused.empty()) throw FailedPrecondition(str("variables that cannot be saved:", refused));

  // Into the tensors of the last snapshot, if they can be used again.
  std::vector<Item> taken;
  taken.reserve(variables.size());
  for (const internal::LogicalVariable& variable : variables) {
    const Item* old = find_item(variable.name());
    Item item{variable.name(), {}};
    if (variable.has_value()) {
      item.value = used_again(old == nullptr ? nullptr : &old->value, variable.spec());
    } else {
      for (std::size_t i = 0; i < variable.copies().size(); ++i) {
        const bool had = old != nullptr && i < old->copies.size();
        item.copies.push_back(used_again(had ? &old->copies[i] : nullptr, variable.copy_spec()));
      }
    }
    taken.push_back(std::move(item));
  }
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (taken[i].copies.empty()) variables[i].read(taken[i].value);
    for (std::size_t c = 0; c < taken[i].copies.size(); ++c)
      taken[i].copies[c].assign(variables[i].copies()[c]->storage());
  }
  items_ = std::move(taken);
  step_ = store.step();
}

RestoreReport Snapshot::restore(VariableStore& store, const RestoreOptions& options, SourceSite site) const {
  const StoreAtRest rest(store, StoreAtRest::Access::kWrite);
  const std::vector<internal::LogicalVariable> variables = internal::logical_variables(rest);
  std::vector<internal::Offered> offered;
  for (const Item& item : items_)
    offered.push_back(
        {item.name, item.copies.empty() ? item.value.spec() : item.copies[0].spec(), item.copies.size()});
  RestoreReport report = named_call("Snapshot::restore()", site, [&] {
    return internal::match(variables, offered, options, "the snapshot");
  });
  for (const State& state : states_) report.states.emplace_back(state.name, state.bytes);
  if (options.check_states) options.check_states(report.states);
  std::vector<StoredVariable*> written;
  for (const internal::LogicalVariable& variable : variables)
    written.insert(written.end(), variable.copies().begin(), variable.copies().end());
  const CommitScope scope(store.commits(), written);
  for (const internal::LogicalVariable& variable : variables) {
    const Item* item = find_item(variable.name());
    if (item == nullptr) continue;
    for (std::size_t i = 0; i < item->copies.size(); ++i)
      variable.copies()[i]->storage().assign(item->copies[i]);
    if (item->copies.empty() && variable.has_value()) variable.write(item->value);
    if (item->copies.empty() && !variable.has_value()) {
      for (StoredVariable* copy : variable.copies()) copy->storage().assign(item->value);
    }
  }
  store.set_step(step_);
  report.step = step_;
  return report;
}

}  // namespace lockstep
