// tools/commands.h - the subcommands: each takes the parsed command and returns the exit status.
//
// Results go to standard output; messages, timings and progress go to standard error. Errors are thrown.
#pragma once

#include "command_line.h"

namespace lockstep::tools {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;     // also: the graphs differ
inline constexpr int kWrongUsage = 2;  // also: diff could not compare

int run_command(const OptCommand& command);
int run_command(const DumpCommand& command);
int run_command(const DiffCommand& command);
int run_command(const RunCommand& command);
int run_command(const ProfileCommand& command);
int run_command(const DataCommand& command);
int run_command(const InfoCommand& command);
int run_command(const LaunchCommand& command);
int run_command(const StatusCommand& command);
int run_command(const OpsCommand& command);
int run_command(const PassesCommand& command);
int run_command(const CompletionCommand& command);

}  // namespace lockstep::tools
