#include "lockstep/strategies/strategy_registry.h"

#include <utility>

#include "lockstep/strategies/passes/enter_replicas.h"
#include "lockstep/strategies/passes/register.h"

namespace lockstep {

StrategyRegistry::StrategyRegistry() = default;
StrategyRegistry::~StrategyRegistry() = default;

StrategyRegistry& StrategyRegistry::global() {
  static StrategyRegistry* const registry = [] {
    static StrategyRegistry instance;
    register_strategies(instance);
    return &instance;
  }();
  return *registry;
}

void StrategyRegistry::add(StrategyInfo info, StrategyFactory factory) {
  factories_.add(std::move(info), std::move(factory));
}

bool StrategyRegistry::contains(std::string_view name) const { return factories_.contains(name); }

std::vector<StrategyInfo> StrategyRegistry::strategies() const { return factories_.infos(); }

std::unique_ptr<Strategy> StrategyRegistry::make(std::string_view text, const StrategyOptions& base) const {
  return factories_.make(factories_.read(text), base);
}

PassPipeline StrategyRegistry::parse_pipeline(std::string_view text, const PassRegistry& passes) const {
  register_strategy_passes();
  PassPipeline pipeline;
  const std::vector<PassText> parts = parse_passes(text);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t end = i + 1 < parts.size() ? parts[i + 1].position : text.size();
    std::string_view part = text.substr(parts[i].position, end - parts[i].position);
    if (i + 1 < parts.size()) part = part.substr(0, part.rfind(','));
    if (passes.contains(parts[i].name) || !contains(parts[i].name)) {
      pipeline.add(passes.make(part));
      continue;
    }
    const std::unique_ptr<Strategy> strategy = make(part);
    pipeline.add(make_enter_replicas({.replicas = strategy->num_replicas_in_sync()}));
    pipeline.append(strategy->pipeline());
  }
  return pipeline;
}

}  // namespace lockstep
