#include "lockstep/io/state/internal/logical_variables.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <span>
#include <type_traits>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/reduce_replicas.h"
#include "lockstep/core/printable.h"

namespace lockstep::internal {
namespace {

// What copy `i` of so many gets of `value`, so that in their order they sum up to it.
template <class T>
T share(T value, std::size_t i, std::size_t copies) {
  if constexpr (std::is_integral_v<T>) {
    const auto wide = static_cast<std::int64_t>(value);
    const std::int64_t rest = wide % static_cast<std::int64_t>(copies);
    const std::int64_t extra = static_cast<std::int64_t>(i) < std::abs(rest) ? (rest < 0 ? -1 : 1) : 0;
    return static_cast<T>(wide / static_cast<std::int64_t>(copies) + extra);
  } else {
    using Exact = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const auto whole = static_cast<Exact>(value);
    const T equal(whole / static_cast<Exact>(copies));
    if (i + 1 < copies || whole == 0 || !std::isfinite(whole)) return equal;
    // The others sum up to at least half of it and hardly more than all of it: no digit is lost in what is
    // left for the last. Half floats lose some in their share, less than the sum, which is made in f32, keeps
    // when it is rounded.
    Exact before = 0;
    for (std::size_t other = 0; other + 1 < copies; ++other) before += static_cast<Exact>(equal);
    return T(whole - before);
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += str(text.empty() ? "'" : ", '", printable(name), "'");
  return text;
}

}  // namespace

Decision LogicalVariable::has_value() const {
  if (copies.size() == 1) return Decision::yes();
  if (rule == CopyRule::kApart) {
    return Decision::no(
        "every replica has a copy of its own and no aggregation makes them one value; give it one");
  }
  if (spec().dtype == DType::kBool && (rule == CopyRule::kSum || rule == CopyRule::kMean)) {
    return Decision::no("truth values have no sum or mean; give it the aggregation of the first replica");
  }
  if (is_integer(spec().dtype) && rule == CopyRule::kMean) {
    return Decision::no(
        "the mean of integers over replicas is no integer; give it the aggregation of the sum or of the "
        "first "
        "replica");
  }
  return Decision::yes();
}

void LogicalVariable::read(Tensor& into) const noexcept {
  const bool all = rule == CopyRule::kSum || rule == CopyRule::kMean;
  // The mean of equal values is that value, which adding up and dividing may miss: what was restored is saved
  // as it was.
  const bool equal = rule == CopyRule::kMean && std::ranges::all_of(copies, [&](StoredVariable* copy) {
                       return copy->storage().bit_equal(copies[0]->storage());
                     });
  if (!all || equal || copies.size() == 1) {
    into.assign(copies[0]->storage());
  } else {
    kernels::reduce_replicas(rule == CopyRule::kSum ? ReplicaReduce::kSum : ReplicaReduce::kMean,
                             spec().dtype, memory, into.raw(), 0, into.num_elements());
  }
}

void LogicalVariable::write(const Tensor& value) const noexcept {
  if (rule != CopyRule::kSum || copies.size() == 1) {
    for (StoredVariable* copy : copies) copy->storage().assign(value);
    return;
  }
  visit_dtype(spec().dtype, [&]<class T>(T) {
    const std::span<const T> whole = value.data<T>();
    for (std::size_t c = 0; c < copies.size(); ++c) {
      const std::span<T> part = copies[c]->storage().data<T>();
      for (std::size_t i = 0; i < whole.size(); ++i) part[i] = share(whole[i], c, copies.size());
    }
  });
}

std::vector<LogicalVariable> logical_variables(const StoreAtRest& rest) {
  std::map<std::string_view, LogicalVariable> by_name;
  for (const StoreAtRest::Item& item : rest.variables()) {
    if (item.role.copy_of.empty()) by_name[item.variable->name()] = {{item.variable}, item.role.copies};
  }
  for (const StoreAtRest::Item& item : rest.variables()) {
    if (item.role.copy_of.empty()) continue;
    const auto original = by_name.find(item.role.copy_of);
    LOCKSTEP_CHECK(original != by_name.end(), "'", item.variable->name(), "' is a copy of '",
                   item.role.copy_of, "', which is not in the store");
    original->second.copies.push_back(item.variable);
  }
  std::vector<LogicalVariable> variables;
  for (auto& [name, variable] : by_name) {
    // "w/replica_2" before "w/replica_10": the bits of a sum depend on the order.
    std::ranges::sort(variable.copies.begin() + 1, variable.copies.end(), {}, [](const StoredVariable* copy) {
      return std::pair<std::size_t, std::string_view>(copy->name().size(), copy->name());
    });
    for (StoredVariable* copy : variable.copies) variable.memory.push_back(copy->storage().raw());
    variables.push_back(std::move(variable));
  }
  return variables;
}

RestoreReport match(std::span<const LogicalVariable> variables, std::span<const Offered> offered,
                    const RestoreOptions& options, std::string_view source) {
  RestoreReport report;
  std::vector<std::string> mismatched, refused;
  auto next = offered.begin();
  for (const LogicalVariable& variable : variables) {
    for (; next != offered.end() && next->name < variable.name(); ++next)
      report.extra.emplace_back(next->name);
    if (next == offered.end() || next->name != variable.name()) {
      report.missing.push_back(variable.name());
      continue;
    }
    if (next->spec != variable.spec()) {
      mismatched.push_back(
          str("'", variable.name(), "' is ", variable.spec(), " in the program and ", next->spec, " there"));
    } else if (const Decision decision = variable.has_value(); !decision) {
      refused.push_back(str("'", variable.name(), "': ", decision.reason()));
    }
    ++next;
  }
  for (; next != offered.end(); ++next) report.extra.emplace_back(next->name);

  std::string faults;
  if (!report.missing.empty() && !options.allow_missing) {
    faults += str("\n  missing (the program has them): ", listed(report.missing));
  }
  if (!report.extra.empty() && !options.allow_extra) {
    faults += str("\n  extra (the program does not have them): ", listed(report.extra));
  }
  for (const std::string& text : mismatched) faults += str("\n  mismatched: ", text);
  for (const std::string& text : refused) faults += str("\n  not restorable: ", text);
  if (!faults.empty()) {
    throw FailedPrecondition(
        str(source, " does not fit the variables of the program, and nothing was restored:", faults,
            "\nVariables of a traced function, optimizer slots among them, exist once it is made: "
            "restore after that; RestoreOptions can allow what is missing or extra."));
  }
  return report;
}

}  // namespace lockstep::internal
