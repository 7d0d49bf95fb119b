// strategies/strategy_registry.h - strategies by name, so that they can be asked for in text.
//
//   StrategyRegistry::global().add({.name = "compressed", .summary = "...", .options = {devices_option()}},
//                                  [](const PassOptions& given, const StrategyOptions& base) { ... });
//   std::unique_ptr<Strategy> s = StrategyRegistry::global().make("compressed(devices=[cpu:0,cpu:1])");
//
// Names and options read as those of passes do (graph/pass_options.h). A factory is also handed what no text says: runtime,
// store and checks, as StrategyOptions, whose devices it leaves aside.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/pass_options.h"
#include "lockstep/graph/pass_registry.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

struct StrategyInfo {
  std::string name;     // kebab-case
  std::string summary;  // one line
  std::vector<OptionSpec> options = {};
};
// Throws InvalidArgument (BadOptionValue) for a value it refuses.
using StrategyFactory =
    std::function<std::unique_ptr<Strategy>(const PassOptions& options, const StrategyOptions& base)>;

class LOCKSTEP_API StrategyRegistry {
 public:
  // The one registry that make_strategy and tools use, with the strategies of this folder in it.
  static StrategyRegistry& global();

  StrategyRegistry();  // an empty one
  ~StrategyRegistry();
  StrategyRegistry(const StrategyRegistry&) = delete;
  StrategyRegistry& operator=(const StrategyRegistry&) = delete;

  // Throws InvalidArgument for a taken or malformed name, or no factory.
  void add(StrategyInfo info, StrategyFactory factory);
  bool contains(std::string_view name) const;
  std::vector<StrategyInfo> strategies() const;  // by name

  // One strategy from "name" or "name(option=value,...)". Throws NotFound for an unknown name, UnknownOption,
  // BadOptionValue or PipelineSyntaxError for the rest.
  std::unique_ptr<Strategy> make(std::string_view text, const StrategyOptions& base = {}) const;

  // Passes and strategies, separated by commas: a strategy stands for enter-replicas and the passes of its pipeline.
  PassPipeline parse_pipeline(std::string_view text,
                              const PassRegistry& passes = PassRegistry::global()) const;

 private:
  struct Entry {
    StrategyInfo info;
    StrategyFactory factory;
  };
  mutable std::shared_mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_;
};

// The option that most strategies have: a list, empty by default.
LOCKSTEP_API OptionSpec devices_option();

// Called once by StrategyRegistry::global(); adds the strategies of this folder to any registry.
LOCKSTEP_API void register_strategies(StrategyRegistry& registry);

}  // namespace lockstep
