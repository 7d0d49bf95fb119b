#include "lockstep/io/state/snapshot.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/store_at_rest.h"
#include "lockstep/io/state/internal/logical_variables.h"

namespace lockstep {

Snapshot::Snapshot(std::uint64_t step, std::vector<Item> items) : step_(step), items_(std::move(items)) {
  std::ranges::sort(items_, {}, &Item::name);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (!items_[i].value.defined()) throw InvalidArgument(str("snapshot: '", items_[i].name, "' is empty"));
    if (i > 0 && items_[i].name == items_[i - 1].name) {
      throw InvalidArgument(str("snapshot: '", items_[i].name, "' comes twice"));
    }
  }
}

std::span<const Snapshot::Item> Snapshot::variables() const { return items_; }

const Tensor* Snapshot::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(items_, name, {},
                                           [](const Item& item) -> std::string_view { return item.name; });
  return at == items_.end() || at->name != name ? nullptr : &at->value;
}

void Snapshot::take(VariableStore& store) {
  const StoreAtRest rest(store, StoreAtRest::Access::kRead);
  const std::vector<internal::LogicalVariable> variables = internal::logical_variables(rest);
  std::string refused;
  for (const internal::LogicalVariable& variable : variables) {
    if (const Decision decision = variable.has_value(); !decision) {
      refused += str("\n  '", variable.name(), "': ", decision.reason());
    }
  }
  if (!refused.empty()) throw FailedPrecondition(str("variables that cannot be saved:", refused));

  // Into the tensors of the last time, where they fit and nobody else has kept them.
  std::vector<Item> taken;
  taken.reserve(variables.size());
  for (const internal::LogicalVariable& variable : variables) {
    const Tensor* old = find(variable.name());
    const bool reuse = old != nullptr && old->spec() == variable.spec() && old->use_count() == 1;
    taken.push_back(
        {variable.name(), reuse ? *old : Tensor::empty(variable.spec().dtype, variable.spec().shape)});
  }
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].read(taken[i].value);
  items_ = std::move(taken);
  step_ = store.step();
}

RestoreReport Snapshot::restore(VariableStore& store, const RestoreOptions& options) const {
  const StoreAtRest rest(store, StoreAtRest::Access::kWrite);
  const std::vector<internal::LogicalVariable> variables = internal::logical_variables(rest);
  std::vector<internal::Offered> offered;
  for (const Item& item : items_) offered.push_back({item.name, item.value.spec()});
  RestoreReport report = internal::match(variables, offered, options, "the snapshot");
  for (const internal::LogicalVariable& variable : variables) {
    if (const Tensor* value = find(variable.name())) variable.write(*value);
  }
  store.set_step(step_);
  report.step = step_;
  return report;
}

}  // namespace lockstep
