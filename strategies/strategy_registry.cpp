#include "lockstep/strategies/strategy_registry.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "lockstep/strategies/passes/enter_replicas.h"
#include "lockstep/strategies/passes/register.h"

namespace lockstep {

namespace {

bool is_kebab_case(std::string_view name) {
  if (name.empty() || name.front() == '-' || name.back() == '-') return false;
  return std::ranges::all_of(
      name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

}  // namespace

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
  if (!is_kebab_case(info.name)) {
    throw InvalidArgument(
        str("strategy name '", info.name, "' must be kebab-case: a-z, 0-9 and '-' between them"));
  }
  if (!factory) throw InvalidArgument(str("strategy '", info.name, "' is registered without a factory"));
  const std::unique_lock lock(mutex_);
  if (entries_.contains(info.name))
    throw InvalidArgument(str("strategy '", info.name, "' is registered already; choose another name"));
  std::string name = info.name;
  entries_.emplace(std::move(name), Entry{std::move(info), std::move(factory)});
}

bool StrategyRegistry::contains(std::string_view name) const {
  const std::shared_lock lock(mutex_);
  return entries_.find(name) != entries_.end();
}

std::vector<StrategyInfo> StrategyRegistry::strategies() const {
  const std::shared_lock lock(mutex_);
  std::vector<StrategyInfo> infos;
  for (const auto& [name, entry] : entries_) infos.push_back(entry.info);
  return infos;
}

std::unique_ptr<Strategy> StrategyRegistry::make(std::string_view text, const StrategyOptions& base) const {
  const std::vector<PassText> parts = parse_passes(text);
  if (parts.size() != 1) {
    throw PipelineSyntaxError(parts.size() < 2 ? 0 : parts[1].position,
                              str("expected one strategy, got ", parts.size(), " in '", text, "'"));
  }
  const Entry* entry = nullptr;
  std::string known;
  {
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(parts[0].name);
    if (found != entries_.end())
      entry = &found->second;  // entries stay where they are, and are never taken out
    for (const auto& [name, unused] : entries_) known += str(known.empty() ? "" : ", ", name);
  }
  if (entry == nullptr)
    throw NotFound(str("no strategy is called '", parts[0].name, "'; there are: ", known));
  std::unique_ptr<Strategy> strategy = entry->factory(resolve_options(parts[0], entry->info.options), base);
  if (strategy == nullptr)
    throw InvalidArgument(str("the factory of strategy '", parts[0].name, "' made nothing"));
  return strategy;
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
