// tools/main.cpp - the `lockstep` command: docs/cli.md.
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <type_traits>
#include <variant>

#include "commands.h"
#include "graph_input.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/transform/plugin.h"
#include "lockstep/strategies/passes/register.h"
#include "terminal.h"

namespace lockstep::tools {

namespace {

// Prints the message, and those of nested exceptions that say something new.
void print_error(const std::exception& error, const std::string& said = {}) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  const std::string message = ours != nullptr ? ours->message() : error.what();
  if (said.empty()) {
    std::cerr << "lockstep: " << error.what() << '\n';
  } else if (said.find(message) == std::string::npos) {
    std::cerr << "  caused by: " << error.what() << '\n';
  }
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    print_error(cause, said + message);
  }
}

int run(const CommandLine& line) {
  set_input_limits(line.limits);
  register_strategy_passes();
  for (const std::string& plugin : line.plugins) load_plugin(plugin);
  return std::visit(
      [](const auto& command) {
        if constexpr (std::is_same_v<std::decay_t<decltype(command)>, NoCommand>) {
          return kSuccess;
        } else {
          const int status = run_command(command);
          // A full disk or a closed pipe shows when the last byte is written.
          if (!std::cout.flush()) throw Error(ErrorCode::kUnavailable, "standard output cannot be written");
          return status;
        }
      },
      line.command);
}

}  // namespace

}  // namespace lockstep::tools

int main(int argc, char** argv) {
  using namespace lockstep::tools;
  const SafeOutput safe;
  bool comparing = false;
  try {
    const CommandLine line = parse_command_line(argc, argv);
    comparing = std::holds_alternative<DiffCommand>(line.command);
    return run(line);
  } catch (const UsageError& error) {
    std::cerr << "lockstep: " << error.what() << '\n';
    return kWrongUsage;
  } catch (const std::bad_alloc&) {
    std::cerr << "lockstep: there is not enough memory\n";
    return comparing ? kWrongUsage : kFailure;
  } catch (const std::exception& error) {
    print_error(error);
    return comparing ? kWrongUsage : kFailure;
  }
}
