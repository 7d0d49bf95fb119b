// strategies/make_strategy.cpp - strategies from text, for command lines and configuration files.
#include "lockstep/strategies/make_strategy.h"

#include "lockstep/strategies/strategy_registry.h"

namespace lockstep {

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const StrategyInfo& info : StrategyRegistry::global().strategies()) names.push_back(info.name);
  return names;
}

std::unique_ptr<Strategy> make_strategy(std::string_view text, const StrategyOptions& base, SourceSite site) {
  return named_call("make_strategy()", site, [&] { return StrategyRegistry::global().make(text, base); });
}

}  // namespace lockstep
