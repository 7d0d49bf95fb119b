// tools/run.cpp - lockstep run: a graph on given feeds.
#include <iostream>
#include <map>
#include <string>
#include <utility>

#include "commands.h"
#include "graph_input.h"
#include "lockstep/core/error.h"
#include "lockstep/io/files/npy.h"
#include "lockstep/io/files/npz.h"
#include "lockstep/io/state/snapshot.h"
#include "lockstep/io/traces/trace.h"
#include "progress.h"
#include "runner.h"

namespace lockstep::tools {

namespace {

// A replica's value is named like a replica's copy of a variable; if another result has that name, a number
// is appended.
std::map<std::string, Tensor> by_name(const std::vector<Runner::Result>& results) {
  std::map<std::string, Tensor> tensors;
  for (const Runner::Result& result : results) tensors.emplace(result.name, result.value[0]);
  for (const Runner::Result& result : results) {
    for (std::size_t r = 1; r < result.value.size(); ++r) {
      const std::string name = copy_name(result.name, static_cast<std::int64_t>(r));
      std::string unique = name;
      for (std::size_t i = 1; !tensors.emplace(unique, result.value.values()[r]).second; ++i)
        unique = str(name, "_", i);
    }
  }
  return tensors;
}

void write_results(const std::string& path, const std::vector<Runner::Result>& results) {
  const std::map<std::string, Tensor> tensors = by_name(results);
  write_output(path, extension_of(path) == "npy" ? write_npy(tensors.begin()->second) : write_npz(tensors));
}

// One value for each variable, or its copies if they are each replica's own.
void write_variables(const std::string& path, VariableStore& store) {
  Snapshot snapshot;
  snapshot.take(store);
  std::map<std::string, Tensor> values;
  for (const Snapshot::Item& item : snapshot.variables()) {
    if (item.copies.empty()) values.emplace(item.name, item.value);
    for (std::size_t r = 0; r < item.copies.size(); ++r)
      values.emplace(copy_name(item.name, static_cast<std::int64_t>(r)), item.copies[r]);
  }
  write_output(path, write_npz(values));
}

void check_extension(const char* option, const std::string& path, bool npy) {
  const std::string extension = extension_of(path);
  if (path.empty() || path == "-" || extension == "npz" || (npy && extension == "npy")) return;
  throw UsageError(str(option, ": '", path, "' must end in .npz", npy ? " or .npy" : ""));
}

// Refuses two outputs in one place: the second would replace the first, or follow it with nothing to separate
// them.
void check_outputs(const RunCommand& command) {
  const std::pair<const char*, std::string> outputs[] = {
      {"the results", command.output.empty() ? "-" : command.output},
      {"the variables (--variables)", command.variables},
      {"the trace (--trace)", command.settings.trace}};
  std::map<std::string, const char*> taken;
  for (const auto& [what, path] : outputs) {
    const auto [first, fresh] = taken.emplace(path, what);
    if (fresh || path.empty()) continue;
    throw UsageError(str("run: ", first->second, " and ", what, " would both go to ",
                         path == "-" ? "standard output" : path, ": name another file for one of them"));
  }
}

}  // namespace

int run_command(const RunCommand& command) {
  check_extension("--output", command.output, true);
  check_extension("--variables", command.variables, false);
  check_outputs(command);
  const Runner runner(command.settings);
  if (extension_of(command.output) == "npy" && runner.num_tensors() != 1) {
    throw InvalidArgument(str("an .npy file holds one tensor, and there are ", runner.num_tensors(),
                              "; write them to an .npz file"));
  }
  // Variables that cannot be written are refused now, not when the work is done.
  if (!command.variables.empty()) Snapshot().take(runner.variables());
  std::vector<Runner::Result> results;
  const bool traced = !command.settings.trace.empty();
  TraceRecorder recorder;
  {
    Progress progress("step", command.steps);
    for (std::uint64_t i = 0; i < command.steps; ++i) {
      progress.at(i + 1);
      results = runner.run(traced ? &recorder : nullptr);
    }
  }
  if (traced) write_output(command.settings.trace, to_chrome_trace(recorder.trace()));
  if (!command.variables.empty()) write_variables(command.variables, runner.variables());
  if (!command.output.empty()) {
    write_results(command.output, results);
  } else {
    for (const Runner::Result& result : results) {
      std::cout << result.name << ": ";
      if (result.value.is_single()) {
        std::cout << result.value[0] << '\n';
      } else {
        std::cout << result.value << '\n';
      }
    }
  }
  return kSuccess;
}

}  // namespace lockstep::tools
