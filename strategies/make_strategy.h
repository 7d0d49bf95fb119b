// strategies/make_strategy.h - strategies from text, for command lines and configuration files.
//
//   std::unique_ptr<Strategy> s = make_strategy("mirrored(devices=[cpu:0,cpu:1],cross_device_ops=ring)");
//   make_strategy("one-device(device=cpu:0)");
//   make_strategy("central-storage(devices=[cpu:0,cpu:1],parameter_device=cpu:0)");
//
// Options are written as those of passes (graph/transform/pass_options.h), and have the names of the
// strategies' own options. To add strategies of your own, see strategies/strategy_registry.h. Thread safety:
// any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

// Throws NotFound for an unknown name, InvalidArgument (UnknownOption, BadOptionValue, PipelineSyntaxError)
// for the rest. `base` holds what the text cannot express: runtime, store and checks.
LOCKSTEP_API std::unique_ptr<Strategy> make_strategy(std::string_view text, const StrategyOptions& base = {},
                                                     SourceSite site = SourceSite::current());
LOCKSTEP_API std::vector<std::string> strategy_names();  // by name

}  // namespace lockstep
