// tools/passes.cpp - lockstep passes: the available passes and strategies, from the registries themselves.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "commands.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/strategies/strategy_registry.h"

namespace lockstep::tools {

namespace {

std::string default_text(const OptionSpec& option) {
  if (!option.fallback) return "must be given";
  const std::string text = print_option(*option.fallback);
  return text.empty() ? "\"\"" : text;
}

void print_one(std::string_view kind, const std::string& name, const std::string& summary,
               const std::vector<OptionSpec>& options) {
  std::cout << name << " (" << kind << "): " << summary << '\n';
  std::size_t longest_name = 0, longest_default = 0;
  for (const OptionSpec& option : options) {
    longest_name = std::max(longest_name, option.name.size());
    longest_default = std::max(longest_default, default_text(option).size());
  }
  const auto column = [](std::size_t longest) { return std::setw(static_cast<int>(longest) + 2); };
  for (const OptionSpec& option : options) {
    std::cout << "  " << std::left << column(longest_name) << option.name << std::setw(8)
              << to_string(option.type) << column(longest_default) << default_text(option) << option.summary
              << '\n';
  }
}

template <class Infos>
void print_table(std::string_view kind, const Infos& infos) {
  std::cout << "| " << kind << " | what | options |\n| --- | --- | --- |\n";
  for (const auto& info : infos) {
    std::cout << "| `" << info.name << "` | " << info.summary << " | ";
    std::string_view separator;
    for (const OptionSpec& option : info.options) {
      std::cout << separator << '`' << option.name << "` " << to_string(option.type) << ", "
                << (option.fallback ? "`" + default_text(option) + "`" : default_text(option)) << ": "
                << option.summary;
      separator = "<br>";
    }
    std::cout << " |\n";
  }
}

}  // namespace

int run_command(const PassesCommand& command) {
  const std::vector<PassInfo> passes = PassRegistry::global().passes();
  const std::vector<StrategyInfo> strategies = StrategyRegistry::global().strategies();
  if (!command.name.empty()) {
    if (command.markdown)
      throw UsageError("passes: --markdown writes the page of all passes: leave out the name");
    for (const PassInfo& info : passes) {
      if (info.name != command.name) continue;
      print_one("pass", info.name, info.summary, info.options);
      return kSuccess;
    }
    for (const StrategyInfo& info : strategies) {
      if (info.name != command.name) continue;
      print_one("strategy", info.name, info.summary, info.options);
      return kSuccess;
    }
    PassRegistry::global().make(command.name);  // throws, with the closest names
  }
  if (command.markdown) {
    std::cout << "# Reference of passes and strategies\n\n"
                 "Everything that `lockstep opt --passes` takes, as the registries know it, written by "
                 "`lockstep passes\n"
                 "--markdown`. An option has a type and a default; how values read is in "
                 "`graph/transform/pass_options.h`.\n\n"
                 "## Passes\n\n";
    print_table("pass", passes);
    std::cout
        << "\n## Strategies\n\nA strategy stands for `enter-replicas` and the passes of its pipeline.\n\n";
    print_table("strategy", strategies);
    return kSuccess;
  }
  for (const PassInfo& info : passes)
    std::cout << std::left << std::setw(34) << info.name << ' ' << info.summary << '\n';
  std::cout << "\nstrategies:\n";
  for (const StrategyInfo& info : strategies)
    std::cout << std::left << std::setw(34) << info.name << ' ' << info.summary << '\n';
  return kSuccess;
}

}  // namespace lockstep::tools
