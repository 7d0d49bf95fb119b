// core/cluster/cluster_from_environment.cpp - makes one worker of what all launchers say.
#include "lockstep/core/cluster/cluster_from_environment.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/cluster/internal/address.h"
#include "lockstep/core/cluster/internal/launchers.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += str(text.empty() ? "" : ", ", name);
  return text;
}

// "torchrun says rank 1 of 2 (RANK, WORLD_SIZE)"
std::string told(const internal::Reading& reading) {
  return str(reading.launcher, " says rank ", reading.worker.rank, " of ", reading.worker.count, " (",
             joined(reading.used), ")");
}

void add_names(std::vector<std::string>& names, const std::vector<std::string>& more) {
  for (const std::string& name : more) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
}

// One that tells too little is no matter beside one that tells all: of processes, or of machines if it numbers machines itself.
void drop_what_others_tell(std::vector<internal::Reading>& readings) {
  bool tells_processes = false, tells_all = false, tells_anything = false;
  for (const internal::Reading& reading : readings) {
    const bool is_whole = reading.refusal.empty() && !reading.is_of_no_cluster;
    tells_all = tells_all || is_whole;
    tells_processes = tells_processes || (is_whole && !reading.of_machines);
    tells_anything = tells_anything || is_whole || !reading.refusal.empty();
  }
  std::erase_if(readings, [&](const internal::Reading& reading) {
    if (reading.is_of_no_cluster) return tells_anything;
    return !reading.refusal.empty() && (tells_processes || (reading.of_machines && tells_all));
  });
  for (const internal::Reading& reading : readings) {
    if (!reading.refusal.empty()) throw InvalidArgument(reading.refusal);
  }
}

void check_launcher(const std::string& launcher) {
  const std::vector<std::string> names = internal::launcher_names();
  if (launcher.empty() || std::ranges::find(names, launcher) != names.end()) return;
  throw InvalidArgument(
      str("there is no launcher '", printable(launcher.substr(0, 80)), "'; there are ", joined(names)));
}

}  // namespace

std::string ClusterFromEnvironment::to_string() const {
  if (launcher.empty()) return "one worker: no launcher has set its variables";
  return str(worker.task(), ", rank ", worker.rank, " of ", worker.count, ", coordinator ",
             worker.coordinator.empty() ? "not told" : printable(worker.coordinator), " (", launcher, ": ",
             joined(used), ")");
}

ClusterFromEnvironment cluster_from_environment(const Environment& environment, const std::string& launcher) {
  check_launcher(launcher);
  std::vector<internal::Reading> readings = internal::read_launchers(environment, launcher);
  internal::Variables own(environment);
  const std::optional<int> world = own.world();
  const std::string* const coordinator = own.text("LOCKSTEP_COORDINATOR");
  if (coordinator != nullptr) internal::check_address(*coordinator, "LOCKSTEP_COORDINATOR");
  if (readings.empty()) {
    if (!launcher.empty())
      throw InvalidArgument(
          str(launcher, " has set none of its variables: was the program started with it?"));
    if (world && *world > 1)
      throw InvalidArgument(str("LOCKSTEP_WORLD is ", *world,
                                ", and no variable tells which worker this is: start it with a launcher"));
    return {};
  }
  for (const internal::Reading& reading : readings) {  // a world of its own
    if (reading.worker.job == "evaluator")
      return {.worker = reading.worker, .launcher = reading.launcher, .used = reading.used};
  }
  drop_what_others_tell(readings);
  // Processes, if anything numbers them; else machines.
  const bool of_machines =
      std::ranges::all_of(readings, [](const auto& reading) { return reading.of_machines; });
  const internal::Reading* first = nullptr;
  for (const internal::Reading& reading : readings) {
    if (reading.of_machines != of_machines) continue;
    const WorkerSpec& said = reading.worker;
    if (said.rank >= said.count)
      throw InvalidArgument(str(
          told(reading), ": ranks begin at 0 and are less than the number of workers, which is at least 1"));
    if (world && said.count != *world)
      throw InvalidArgument(
          str("LOCKSTEP_WORLD is ", *world, ", and ", told(reading), ": unset one of them"));
    if (first == nullptr) {
      first = &reading;
    } else if (said.rank != first->worker.rank || said.count != first->worker.count) {
      throw InvalidArgument(str(told(*first), ", and ", told(reading),
                                ": unset the variables of one of them, or name the launcher that counts"));
    }
  }
  ClusterFromEnvironment found{.worker = first->worker, .launcher = first->launcher, .used = first->used};
  for (const internal::Reading& reading : readings) {
    if (&reading == first || reading.of_machines != of_machines) continue;
    bool counts = false;
    for (auto [to, from] : {std::pair(&found.worker.coordinator, &reading.worker.coordinator),
                            std::pair(&found.worker.job_id, &reading.worker.job_id)}) {
      if (!to->empty() || from->empty()) continue;
      *to = *from;
      counts = true;
    }
    if (counts) add_names(found.used, reading.used);
  }
  if (coordinator != nullptr) found.worker.coordinator = *coordinator;
  add_names(found.used, own.used());
  return found;
}

}  // namespace lockstep
