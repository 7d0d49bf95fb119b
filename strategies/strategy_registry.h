// strategies/strategy_registry.h - strategies by name, so that they can be named in text.
//
//   StrategyRegistry::global().add({.name = "compressed", .summary = "...", .options = {devices_option()}},
//                                  [](const PassOptions& given, const StrategyOptions& base) { ... });
//   std::unique_ptr<Strategy> s = StrategyRegistry::global().make("compressed(devices=[cpu:0,cpu:1])");
//
// Names and options are written as those of passes (graph/transform/pass_options.h). A factory also gets what
// the text cannot express: runtime, store and checks, as StrategyOptions.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/named_factories.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

using StrategyInfo = FactoryInfo;
// Throws InvalidArgument (BadOptionValue) for a value it refuses.
using StrategyFactory =
    std::function<std::unique_ptr<Strategy>(const PassOptions& options, const StrategyOptions& base)>;

class LOCKSTEP_API StrategyRegistry {
 public:
  // The registry that make_strategy and tools use; it contains the strategies of this folder.
  static StrategyRegistry& global();

  StrategyRegistry();  // an empty one
  ~StrategyRegistry();
  StrategyRegistry(const StrategyRegistry&) = delete;
  StrategyRegistry& operator=(const StrategyRegistry&) = delete;

  // Throws InvalidArgument for a taken or malformed name, no factory, two options of one name, or a default
  // of the wrong type.
  void add(StrategyInfo info, StrategyFactory factory);
  bool contains(std::string_view name) const;
  std::vector<StrategyInfo> strategies() const;  // by name

  // One strategy from "name" or "name(option=value,...)". Throws NotFound for an unknown name, with the
  // closest ones; UnknownOption, BadOptionValue or PipelineSyntaxError for the rest.
  std::unique_ptr<Strategy> make(std::string_view text, const StrategyOptions& base = {}) const;

  // Passes and strategies, separated by commas: a strategy stands for enter-replicas and the passes of its
  // pipeline.
  PassPipeline parse_pipeline(std::string_view text,
                              const PassRegistry& passes = PassRegistry::global()) const;

 private:
  NamedFactories<Strategy, NotFound, const StrategyOptions&> factories_{"strategy"};
};

// The option that most strategies have: a list, empty by default. If the text gives an empty list
// (PassOptions::is_given), the factory must refuse it, as Strategy's constructor does.
LOCKSTEP_API OptionSpec devices_option();

// Called once by StrategyRegistry::global(); adds the strategies of this folder to any registry.
LOCKSTEP_API void register_strategies(StrategyRegistry& registry);

}  // namespace lockstep
