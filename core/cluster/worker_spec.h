// core/cluster/worker_spec.h - which worker of the world this process is.
//
//   WorkerSpec me = cluster_from_environment().worker;     // from what a launcher has set
//   WorkerSpec me = cluster.worker("worker", 1);           // from a ClusterSpec
//   WorkerSpec alone;                                      // one of one
//
// The world is the chief, if the cluster has one, and the workers by index. A worker's rank is its place in that order; what a
// job and an index say is for people and for device names.
//
// Thread safety: a plain value.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/base/export.h"

namespace lockstep {

struct LOCKSTEP_API WorkerSpec {
  std::string job = "worker";  // "worker", "chief" or "evaluator"; an evaluator is a world of its own
  int index = 0;               // among the tasks of its job
  int rank = 0;                // in the world
  int count = 1;               // workers in the world
  // "host:port" of each worker, by rank. Empty: the launcher does not tell.
  std::vector<std::string> addresses = {};
  // "host:port" at which the worker of rank 0 waits for the others. Empty: the launcher does not tell, and the worker of rank 0
  // leaves word in a folder that all see.
  std::string coordinator = {};
  // The same on all workers of a job, and different from that of another job on the same machines, where the launcher tells.
  std::string job_id = {};
  int generation = 0;  // how often the job was started before

  // The one that writes checkpoints and summaries, and whose initial values count.
  bool is_chief() const { return rank == 0; }
  // "worker:2", as errors name it.
  std::string task() const;

  bool operator==(const WorkerSpec&) const = default;
};

}  // namespace lockstep
