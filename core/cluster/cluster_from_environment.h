// core/cluster/cluster_from_environment.h - who this process is, by what the launcher that started it has set.
//
//   const ClusterFromEnvironment found = cluster_from_environment();
//   std::clog << found.to_string() << '\n';  // "worker:1, rank 1 of 2, coordinator node-1:29500 (torchrun: RANK, WORLD_SIZE, ...)"
//   const WorkerSpec& me = found.worker;
//
//   launcher    rank and size                                    coordinator
//   TF_CONFIG   the task among chief and workers                 the address of rank 0
//   torchrun    RANK, WORLD_SIZE, with LOCAL_RANK or GROUP_RANK  MASTER_ADDR, MASTER_PORT; another port if torchrun uses it itself
//   PyTorchJob  RANK or PET_NODE_RANK, PET_NNODES (machines)     MASTER_ADDR, MASTER_PORT or PET_MASTER_ADDR, PET_MASTER_PORT
//   JAX         JAX_PROCESS_ID, JAX_NUM_PROCESSES                JAX_COORDINATOR_ADDRESS
//   Open MPI    OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE       on one host: that; else mpirun's host, if it is told
//   MPICH       PMI_RANK, PMI_SIZE; Intel MPI too                not told
//   Slurm       SLURM_PROCID, SLURM_STEP_NUM_TASKS (srun)        first host of the step, a port from the job's number
//   PMIx        PMIX_RANK, LOCKSTEP_WORLD                        not told
//   Horovod     HOROVOD_RANK, HOROVOD_SIZE                       on one host: that
//   Kubernetes  JOB_COMPLETION_INDEX, LOCKSTEP_WORLD (pods)      the pod of index 0, if HOSTNAME has its service
//
// LOCKSTEP_WORLD is the number of workers, for launchers that do not tell it; LOCKSTEP_COORDINATOR is the coordinator's host:port,
// and counts more than what a launcher says. Without any of these variables there is one worker.
//
// Launchers nest: mpirun starts its daemons through srun, a pod may start torchrun. What numbers processes is believed before
// what numbers machines (pods, nodes, daemons). Two that number the same and disagree are refused, with what both say; `launcher`
// chooses. One that tells too little, such as a pod's index without the number of pods, is refused unless another one tells all.
// An evaluator of TF_CONFIG is one of one, whatever the variables of its cluster say.
//
//   failure   InvalidArgument, which names the variable, what it says, and what to do
//
// Thread safety: while no thread changes the environment.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/cluster/environment.h"
#include "lockstep/core/cluster/worker_spec.h"

namespace lockstep {

struct LOCKSTEP_API ClusterFromEnvironment {
  WorkerSpec worker = {};
  std::string launcher = {};           // as in the table; empty: there is none
  std::vector<std::string> used = {};  // the variables that were read
  std::string to_string() const;
};

// `launcher`: believe this one alone, a name of the table; empty: all of them.
LOCKSTEP_API ClusterFromEnvironment cluster_from_environment(
    const Environment& environment = process_environment(), const std::string& launcher = {});

}  // namespace lockstep
