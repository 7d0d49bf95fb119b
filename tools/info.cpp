// tools/info.cpp - lockstep info: what this build is, and what it found on this machine.
#include <iomanip>
#include <iostream>
#include <string>
#include <thread>

#include "commands.h"
#include "lockstep/core/runtime.h"
#include "lockstep/core/version.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/graph/transform/plugin.h"
#include "lockstep/io/drawings/svg.h"
#include "lockstep/strategies/strategy_registry.h"

namespace lockstep::tools {

int run_command(const InfoCommand& /*command*/) {
  const auto row = [](const char* name, const auto& value) {
    std::cout << std::left << std::setw(14) << name << value << '\n';
  };
  row("lockstep", kVersion);
  row("plugins", std::string("those built for ") + kPluginBuild);
#if defined(__clang__)
  row("compiler", "clang " __clang_version__);
#else
  row("compiler", "g++ " __VERSION__);
#endif
  row("built as", LOCKSTEP_BUILD_TYPE);
  for (const auto& [name, version] :
       {std::pair{"Taskflow", LOCKSTEP_TASKFLOW_VERSION}, std::pair{"oneTBB", LOCKSTEP_TBB_VERSION},
        std::pair{"Highway", LOCKSTEP_HIGHWAY_VERSION}, std::pair{"BLAS", LOCKSTEP_BLAS},
        std::pair{"Cereal", LOCKSTEP_CEREAL_VERSION}, std::pair{"zlib", LOCKSTEP_ZLIB_VERSION},
        std::pair{"CLI11", LOCKSTEP_CLI11_VERSION}}) {
    row(name, version);
  }
  const Decision graphviz = has_graphviz();
  row("Graphviz", graphviz ? "found: drawings and pages can be made" : graphviz.reason());
  row("CUDA", "not built in");
  row("threads", std::thread::hardware_concurrency());
  const Runtime runtime;
  std::string devices;
  for (const Device& device : runtime.devices())
    devices += (devices.empty() ? "" : ", ") + device.to_string();
  row("devices", devices + " (more logical ones as asked for)");
  row("ops", OpRegistry::global().names().size());
  row("passes", PassRegistry::global().passes().size());
  std::string strategies;
  for (const StrategyInfo& info : StrategyRegistry::global().strategies())
    strategies += (strategies.empty() ? "" : ", ") + info.name;
  row("strategies", strategies);
  return kSuccess;
}

}  // namespace lockstep::tools
