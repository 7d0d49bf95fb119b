// core/cluster/cluster_spec.h - the tasks of a cluster and their addresses.
//
//   ClusterSpec cluster({{"chief", {"10.0.0.1:2222"}}, {"worker", {"10.0.0.2:2222", "10.0.0.3:2222"}}});
//   WorkerSpec me = cluster.worker("worker", 1);      // rank 2 of 3
//
// Jobs are "chief" (at most one task), "worker", "evaluator" (at most one) and "ps". The chief and the workers are the world of a
// synchronous strategy; an evaluator is a world of its own and need not be listed; parameter servers take no part.
//
//   failure   InvalidArgument, which names the job and the task
//
// Thread safety: as for any value.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/cluster/worker_spec.h"

namespace lockstep {

class LOCKSTEP_API ClusterSpec {
 public:
  ClusterSpec() = default;
  // The addresses of each job's tasks, by index.
  explicit ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs);

  // One task more. Refuses a job that is none, a task or an address that is there already, and an address that is not "host:port":
  // a name, an IPv4 address or an IPv6 address in brackets, and a port from 1 to 65535.
  void add(std::string_view job, int index, std::string_view address);

  bool empty() const { return jobs_.empty(); }
  bool has(std::string_view job) const { return jobs_.contains(job); }
  // By index; throws if there is no such job.
  const std::map<int, std::string>& tasks(std::string_view job) const;
  // The world: the chief and the workers.
  int num_workers() const;

  // That task as a worker of the world. Refuses a parameter server, a task that is not there, and a world whose indices have gaps.
  // A cluster without tasks has one worker: "worker", 0.
  WorkerSpec worker(std::string_view job, int index) const;

  // "chief 10.0.0.1:2222; worker 10.0.0.2:2222, 10.0.0.3:2222"
  std::string to_string() const;

 private:
  std::map<std::string, std::map<int, std::string>, std::less<>> jobs_;
  std::map<std::string, std::string, std::less<>> owners_;  // of addresses: "worker 1"
};

}  // namespace lockstep
