// io/state/logical_variables.cpp - the variables of a store at rest, each with its copies, and whether saved
// variables fit them.
#include "lockstep/io/state/internal/logical_variables.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += str(text.empty() ? "'" : ", '", printable(name), "'");
  return text;
}

// Why `offered` cannot be restored into the variable; empty if it can.
std::string misfit(const LogicalVariable& variable, const Offered& offered, const RestoreOptions& options) {
  const std::string name = str("'", printable(variable.name()), "'");
  const std::size_t copies = variable.copies().size();
  const bool one = static_cast<bool>(variable.has_value());
  if (offered.copies > 0 && (one || offered.copies != copies)) {
    const bool same_number = offered.copies == copies;
    return str(name, " was saved as the copies of ", offered.copies,
               " replicas, each its own, and the program has ", one ? "one value" : str(copies, " of them"),
               same_number ? "" : str(": restore it on ", offered.copies, " replicas"),
               one ? str(same_number ? ": " : ", and ", "declare it as each replica's own ",
                         same_number ? "here" : "there", " too (may_drift, or Synchronization::kOnRead)")
                   : "");
  }
  if (offered.copies == 0 && !one && !options.spread_values) {
    return str(name, " was saved as one value, and the program has ", copies,
               " copies, each replica's own: RestoreOptions::spread_values gives every copy that value");
  }
  const TensorSpec& spec = one ? variable.spec() : variable.copy_spec();
  return offered.spec == spec ? "" : str(name, " is ", spec, " in the program and ", offered.spec, " there");
}

}  // namespace

std::vector<LogicalVariable> logical_variables(const StoreAtRest& rest) {
  struct Group {
    std::vector<StoredVariable*> copies;
    VariableRole role;
  };
  std::map<std::string_view, Group> by_name;
  for (const StoreAtRest::Item& item : rest.variables()) {
    if (item.role.copy_of.empty()) by_name[item.variable->name()] = {{item.variable}, item.role};
  }
  for (const StoreAtRest::Item& item : rest.variables()) {
    if (item.role.copy_of.empty()) continue;
    const auto original = by_name.find(item.role.copy_of);
    LOCKSTEP_CHECK(original != by_name.end(), "'", item.variable->name(), "' is a copy of '",
                   item.role.copy_of, "', which is not in the store");
    original->second.copies.push_back(item.variable);
  }
  std::vector<LogicalVariable> variables;
  for (auto& [name, group] : by_name) {
    // "w/replica_2" before "w/replica_10": the bits of a sum depend on the order.
    std::ranges::sort(group.copies.begin() + 1, group.copies.end(), {}, [](const StoredVariable* copy) {
      return std::pair<std::size_t, std::string_view>(copy->name().size(), copy->name());
    });
    variables.emplace_back(std::move(group.copies), group.role);
  }
  return variables;
}

RestoreReport match(std::span<const LogicalVariable> variables, std::span<const Offered> offered,
                    const RestoreOptions& options, std::string_view source) {
  RestoreReport report;
  std::vector<std::string> mismatched;
  auto next = offered.begin();
  for (const LogicalVariable& variable : variables) {
    for (; next != offered.end() && next->name < variable.name(); ++next)
      report.extra.emplace_back(next->name);
    if (next == offered.end() || next->name != variable.name()) {
      report.missing.push_back(variable.name());
      continue;
    }
    if (const std::string why = misfit(variable, *next, options); !why.empty()) mismatched.push_back(why);
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
  if (!faults.empty()) {
    throw FailedPrecondition(
        str(source, " does not fit the variables of the program, and nothing was restored:", faults,
            "\nVariables of a traced function, optimizer slots among them, exist once it is made: "
            "restore after that; RestoreOptions can allow what is missing or extra."));
  }
  return report;
}

}  // namespace lockstep::internal
