// strategies/passes/allow_drift.cpp - declares variables and their copies as synchronized on read.
#include "lockstep/strategies/passes/allow_drift.h"

#include <utility>

#include "lockstep/core/base/name_set.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/strategies/passes/internal/registrations.h"

namespace lockstep {

namespace {

const OptionTable<AllowDriftOptions>& allow_drift_options() {
  static const auto table =
      OptionTable<AllowDriftOptions>("allow-drift", "lets the copies of some variables drift apart")
          .option("variables", &AllowDriftOptions::variables, "whose copies may drift apart")
          .option("strict", &AllowDriftOptions::strict, "a name that is no variable is an error");
  return table;
}

class AllowDrift final : public Pass {
 public:
  explicit AllowDrift(AllowDriftOptions options) : options_(std::move(options)) {}
  std::string_view name() const override { return "allow-drift"; }
  std::string to_string() const override { return allow_drift_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    NameSet drifting;
    for (const std::string& variable : options_.variables) {
      if (options_.strict && graph.find_variable(variable) == nullptr)
        throw PassError(name(), str("there is no variable '", variable, "'"));
      drifting.insert(variable);
    }
    std::vector<VariableDecl> declared;
    for (const VariableDecl& decl : graph.variables()) {
      const bool drifts = drifting.contains(decl.copy_of.empty() ? decl.name : decl.copy_of);
      if (drifts && decl.synchronization != Synchronization::kOnRead) declared.push_back(decl);
    }
    for (VariableDecl& decl : declared) {
      decl.synchronization = Synchronization::kOnRead;
      decl.aggregation = Aggregation::kNone;
      graph.redeclare_variable(std::move(decl));
    }
    return outcome_of(!declared.empty());
  }

  AllowDriftOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_allow_drift(AllowDriftOptions options) {
  return std::make_unique<AllowDrift>(std::move(options));
}

void internal::register_allow_drift(PassRegistry& registry) {
  add_pass(registry, allow_drift_options(), make_allow_drift);
}

}  // namespace lockstep
