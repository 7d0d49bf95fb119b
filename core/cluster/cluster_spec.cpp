// core/cluster/cluster_spec.cpp - what a cluster may look like, and its ranks.
#include "lockstep/core/cluster/cluster_spec.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/cluster/internal/address.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kJobs[] = {"chief", "worker", "evaluator", "ps"};

void check_job(std::string_view job) {
  if (std::ranges::find(kJobs, job) != std::end(kJobs)) return;
  throw InvalidArgument(str("there is no job '", printable(job.substr(0, 80)),
                            "' in a cluster; the jobs are chief, worker, evaluator and ps",
                            job == "master" ? ". What older programs call 'master' is 'chief'" : ""));
}

constexpr std::size_t kMostShown = 8;  // tasks of a job, in messages

// "0, 2, 5", or "0, 2, ... and 14 more"
template <class Show>
std::string listed(const std::map<int, std::string>& tasks, std::size_t most, const Show& show) {
  std::string text;
  std::size_t shown = 0;
  for (const auto& task : tasks) {
    if (shown == most) return str(text, ", ... and ", tasks.size() - most, " more");
    text += str(shown++ == 0 ? "" : ", ", show(task));
  }
  return text;
}

std::string described(const ClusterSpec& cluster, std::size_t most) {
  std::string text;
  for (const std::string_view job : kJobs) {
    if (!cluster.has(job)) continue;
    text += str(text.empty() ? "" : "; ", job, ' ',
                listed(cluster.tasks(job), most, [](const auto& task) { return task.second; }));
  }
  return text.empty() ? "no tasks" : text;
}

}  // namespace

ClusterSpec::ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs) {
  for (const auto& [job, addresses] : jobs) {
    check_job(job);
    int index = 0;
    for (const std::string& address : addresses) add(job, index++, address);
  }
}

void ClusterSpec::add(std::string_view job, int index, std::string_view address) {
  check_job(job);
  if (index < 0) throw InvalidArgument(str(job, " ", index, ": the index of a task is not negative"));
  if (index > 0 && (job == "chief" || job == "evaluator"))
    throw InvalidArgument(str(job, " ", index, ": a cluster has at most one ", job, ", whose index is 0"));
  internal::check_address(address, str("the address of ", job, " ", index));
  const std::string name = str(job, " ", index);
  if (has(job) && tasks(job).contains(index)) throw InvalidArgument(str(name, " is given twice"));
  const auto [owner, is_new] = owners_.try_emplace(std::string(address), name);
  if (!is_new)
    throw InvalidArgument(str("the address ", address, " belongs to ", owner->second, " and to ", name,
                              "; each task has its own"));
  jobs_[std::string(job)].emplace(index, address);
}

const std::map<int, std::string>& ClusterSpec::tasks(std::string_view job) const {
  const auto found = jobs_.find(job);
  if (found == jobs_.end())
    throw InvalidArgument(
        str("the cluster has no job '", printable(job.substr(0, 80)), "': ", described(*this, kMostShown)));
  return found->second;
}

int ClusterSpec::num_workers() const {
  std::size_t count = 0;
  for (const std::string_view job : {"chief", "worker"}) {
    if (has(job)) count += tasks(job).size();
  }
  return static_cast<int>(count);
}

WorkerSpec ClusterSpec::worker(std::string_view job, int index) const {
  check_job(job);
  if (index < 0) throw InvalidArgument(str(job, " ", index, ": the index of a task is not negative"));
  if (job == "ps")
    throw InvalidArgument(
        str("ps ", index,
            " is a parameter server, which takes no part in a synchronous strategy: start it with another "
            "program, or leave the job 'ps' away"));
  WorkerSpec spec{.job = std::string(job), .index = index};
  if (job == "evaluator") {
    if (index > 0)
      throw InvalidArgument(str(job, " ", index, ": a cluster has at most one evaluator, whose index is 0"));
    return spec;
  }
  if (empty()) {
    if (job == "worker" && index == 0) return spec;
    throw InvalidArgument(
        str(job, " ", index, ": the cluster has no tasks; without any there is one worker, worker 0"));
  }
  if (!tasks(job).contains(index))
    throw InvalidArgument(str("the cluster has no ", job, " ", index, ": ", described(*this, kMostShown)));
  for (const std::string_view of_world : {"chief", "worker"}) {
    if (!has(of_world)) continue;
    const auto& there = tasks(of_world);
    if (there.rbegin()->first >= static_cast<int>(there.size()))
      throw InvalidArgument(
          str("the indices of job '", of_world, "' are ",
              listed(there, kMostShown, [](const auto& task) { return task.first; }),
              ", and all workers of a synchronous strategy take part: they begin at 0 and have no gaps"));
    for (const auto& [at, address] : there) {
      if (of_world == job && at == index) spec.rank = static_cast<int>(spec.addresses.size());
      spec.addresses.push_back(address);
    }
  }
  spec.count = static_cast<int>(spec.addresses.size());
  spec.coordinator = spec.addresses.front();
  return spec;
}

std::string ClusterSpec::to_string() const { return described(*this, owners_.size()); }

}  // namespace lockstep
