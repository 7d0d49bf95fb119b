// Tests: core/cluster/cluster_from_environment.cpp, core/cluster/launchers.cpp
// Environments as launchers set them, without what does not concern the question.
#include "lockstep/core/cluster/cluster_from_environment.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/cluster/internal/launchers.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

struct Started {
  std::string name;
  Environment environment;
  std::string launcher;
  int rank, count;
  std::string coordinator;
  std::string job_id;
};

Environment operator+(Environment first, const Environment& more) {
  first.insert(more.begin(), more.end());
  return first;
}

const Environment kTorchrun = {{"LOCAL_RANK", "1"},
                               {"RANK", "3"},
                               {"GROUP_RANK", "1"},
                               {"ROLE_RANK", "3"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node-1"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RESTART_COUNT", "0"},
                               {"TORCHELASTIC_RUN_ID", "none"}};
const Environment kPet = {{"PET_NNODES", "2"},
                          {"PET_NPROC_PER_NODE", "1"},
                          {"PET_NODE_RANK", "1"},
                          {"PET_MASTER_ADDR", "job-node-0-0.job"},
                          {"PET_MASTER_PORT", "29400"}};
const Environment kSlurm = {{"SLURM_JOB_ID", "70000"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_PROCID", "5"},
                            {"SLURM_NTASKS", "8"},
                            {"SLURM_STEP_NUM_TASKS", "8"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_STEP_NODELIST", "gpu[003,007]"},
                            {"SLURM_STEP_NUM_NODES", "2"},
                            {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"OMPI_MCA_ess_base_jobid", "4039442433"},
                              {"OMPI_MCA_orte_hnp_uri", "4039442432.0;tcp://10.0.0.5,172.17.0.1:40713"},
                              {"PMIX_RANK", "2"},
                              {"PMIX_NAMESPACE", "4039442433"}};
const Environment kMpich = {{"PMI_RANK", "1"},
                            {"PMI_SIZE", "2"},
                            {"PMI_FD", "6"},
                            {"MPI_LOCALRANKID", "1"},
                            {"MPI_LOCALNRANKS", "2"}};
const Environment kDaemonOfSrun = {{"SLURM_JOB_ID", "9"},         {"SLURM_STEP_ID", "0"},
                                   {"SLURM_PROCID", "1"},         {"SLURM_STEP_NUM_TASKS", "2"},
                                   {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "n[1-2]"}};
const Environment kKubernetes = {
    {"JOB_COMPLETION_INDEX", "2"}, {"HOSTNAME", "digits-2"}, {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
const char* const kTfConfig =
    R"({"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 1}})";

std::vector<Started> all_started() {
  std::vector<Started> all = {
      {"nothing", {{"PATH", "/bin"}, {"HOSTNAME", "box"}}, "", 0, 1, "", ""},
      {"TF_CONFIG", {{"TF_CONFIG", kTfConfig}}, "TF_CONFIG", 1, 2, "a:2222", ""},
      {"TF_CONFIG without a cluster", {{"TF_CONFIG", "{}"}}, "TF_CONFIG", 0, 1, "", ""},
      {"TF_CONFIG of an evaluator",
       {{"TF_CONFIG",
         R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}})"}},
       "TF_CONFIG",
       0,
       1,
       "",
       ""},
      {"a TFJob's pod, which Kubernetes numbers too", Environment{{"TF_CONFIG", kTfConfig}} + kKubernetes,
       "TF_CONFIG", 1, 2, "a:2222", ""},
      {"a cloud's TF_CONFIG, which says nothing of a cluster, beside torchrun",
       Environment{{"TF_CONFIG", R"({"environment": "cloud"})"}} + kTorchrun, "torchrun", 3, 4,
       "node-1:29500", ""},
      {"an evaluator, with the variables that its cluster has",
       Environment{{"TF_CONFIG",
                    R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}})"},
                   {"LOCKSTEP_WORLD", "2"},
                   {"LOCKSTEP_COORDINATOR", "a:7000"}} +
           kDaemonOfSrun,
       "TF_CONFIG", 0, 1, "", ""},
      {"torchrun with a store of the first worker", kTorchrun, "torchrun", 3, 4, "node-1:29500", ""},
      {"torchrun with a name for the job", Environment{{"TORCHELASTIC_RUN_ID", "job-3"}} + kTorchrun,
       "torchrun", 3, 4, "node-1:29500", "job-3"},
      {"torchrun with half a coordinator, and the user's",
       {{"LOCAL_RANK", "0"},
        {"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "a"},
        {"LOCKSTEP_COORDINATOR", "b:1"}},
       "torchrun",
       0,
       2,
       "b:1",
       ""},
      {"torchrun, started by mpirun once a machine",
       kTorchrun + Environment{{"OMPI_COMM_WORLD_RANK", "1"},
                               {"OMPI_COMM_WORLD_SIZE", "2"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}},
       "torchrun", 3, 4, "node-1:29500", ""},
      {"torchrun, started by mpiexec once a machine",
       kTorchrun + Environment{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "1"}}, "torchrun", 3,
       4, "node-1:29500", ""},
      {"torchrun in a pod of a PyTorchJob", kTorchrun + kPet, "torchrun", 3, 4, "node-1:29500", ""},
      {"torchrun with LOCAL_RANK alone",
       {{"LOCAL_RANK", "0"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}},
       "torchrun",
       0,
       2,
       "",
       ""},
      {"torchrun over IPv6",
       {{"LOCAL_RANK", "0"},
        {"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "fd00::1"},
        {"MASTER_PORT", "29500"}},
       "torchrun",
       0,
       2,
       "[fd00::1]:29500",
       ""},
      {"torchrun, started by srun once a machine", kTorchrun + kDaemonOfSrun, "torchrun", 3, 4,
       "node-1:29500", ""},
      {"the same, where srun brings up PMI2",
       kTorchrun + kDaemonOfSrun + Environment{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, "torchrun", 3, 4,
       "node-1:29500", ""},
      {"torchrun, started by srun on one machine",
       Environment{{"LOCAL_RANK", "1"},
                   {"RANK", "1"},
                   {"WORLD_SIZE", "4"},
                   {"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", "29500"},
                   {"SLURM_JOB_ID", "9"},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_PROCID", "0"},
                   {"SLURM_STEP_NUM_TASKS", "1"},
                   {"SLURM_STEP_NUM_NODES", "1"},
                   {"SLURM_STEP_NODELIST", "n1"}},
       "torchrun", 1, 4, "127.0.0.1:29500", ""},
      {"torchrun in a pod of an indexed job", kTorchrun + kKubernetes, "torchrun", 3, 4, "node-1:29500", ""},
      {"a PyTorchJob of one process a machine",
       {{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "job-master-0"},
        {"MASTER_PORT", "23456"},
        {"PET_NNODES", "2"},
        {"PET_NPROC_PER_NODE", "1"}},
       "PyTorchJob",
       1,
       2,
       "job-master-0:23456",
       ""},
      {"a PyTorchJob of eight, started without torchrun",
       {{"RANK", "1"},
        {"WORLD_SIZE", "16"},
        {"MASTER_ADDR", "job-master-0"},
        {"MASTER_PORT", "23456"},
        {"PET_NNODES", "2"},
        {"PET_NPROC_PER_NODE", "8"}},
       "PyTorchJob",
       1,
       2,
       "job-master-0:23456",
       ""},
      {"the same where both numbers count machines",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PET_NNODES", "2"}, {"PET_NPROC_PER_NODE", "8"}},
       "PyTorchJob",
       1,
       2,
       "",
       ""},
      {"an elastic PyTorchJob of a fixed size",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PET_NNODES", "2:2"}, {"PET_NPROC_PER_NODE", "1"}},
       "PyTorchJob",
       1,
       2,
       "",
       ""},
      {"an elastic PyTorchJob with its size in another variable",
       {{"RANK", "2"},
        {"WORLD_SIZE", "4"},
        {"PET_NNODES", "1:4"},
        {"PET_NPROC_PER_NODE", "1"},
        {"LOCKSTEP_WORLD", "3"}},
       "PyTorchJob",
       2,
       3,
       "",
       ""},
      {"a TrainJob, whose pods Kubernetes numbers too",
       kPet + Environment{{"PET_RDZV_ID", "job-7"}, {"JOB_COMPLETION_INDEX", "1"}}, "PyTorchJob", 1, 2,
       "job-node-0-0.job:29400", "job-7"},
      {"numbers of machines by a bare name",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"NPROC_PER_NODE", "8"}, {"PET_NNODES", "2"}},
       "PyTorchJob",
       1,
       2,
       "",
       ""},
      {"an elastic PyTorchJob of one machine",
       {{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "1"}},
       "",
       0,
       1,
       "",
       ""},
      {"numbers that can be read in two ways, beside srun, which decides",
       Environment{{"RANK", "5"}, {"WORLD_SIZE", "8"}} + kSlurm, "Slurm", 5, 8, "gpu003:61808", "70000.0"},
      {"one of one, however it is read", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "PyTorchJob", 0, 1, "", ""},
      {"two numbers that can be read in two ways, and the world",
       {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCKSTEP_WORLD", "4"}},
       "PyTorchJob",
       1,
       4,
       "",
       ""},
      {"JAX in a pod of an indexed job",
       Environment{{"JAX_NUM_PROCESSES", "2"}, {"JAX_PROCESS_ID", "1"}, {"PMIX_RANK", "0"}} + kKubernetes,
       "JAX", 1, 2, "", ""},
      {"JAX",
       {{"JAX_NUM_PROCESSES", "4"},
        {"JAX_PROCESS_ID", "3"},
        {"JAX_COORDINATOR_ADDRESS", "job-node-0-0.job:1234"}},
       "JAX",
       3,
       4,
       "job-node-0-0.job:1234",
       ""},
      {"srun", kSlurm, "Slurm", 5, 8, "gpu003:61808", "70000.0"},
      {"the second step of a job", Environment{{"SLURM_STEP_ID", "1"}} + kSlurm, "Slurm", 5, 8,
       "gpu003:62829", "70000.1"},
      {"srun with a task a machine",
       Environment{{"SLURM_STEP_NUM_NODES", "8"}, {"SLURM_STEP_NODELIST", "n[1-8]"}} + kSlurm, "Slurm", 5, 8,
       "n1:61808", "70000.0"},
      {"srun on one machine",
       Environment{{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "gpu003"}} + kSlurm, "Slurm", 5, 8,
       "127.0.0.1:61808", "70000.0"},
      {"the shell of an allocation, which is a step",
       Environment{{"SLURM_STEP_ID", "4294967290"},
                   {"SLURM_PROCID", "0"},
                   {"SLURM_STEP_NUM_TASKS", "1"},
                   {"SLURM_STEP_NUM_NODES", "1"},
                   {"SLURM_STEP_NODELIST", "n1"}} +
           kSlurm,
       "", 0, 1, "", ""},
      {"a job with a large number", Environment{{"SLURM_JOB_ID", "4000000000"}} + kSlurm, "Slurm", 5, 8,
       "gpu003:63488", "4000000000.0"},
      {"salloc without srun",
       {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"}, {"SLURM_NODELIST", "n[1-2]"}},
       "",
       0,
       1,
       "",
       ""},
      {"a batch script without srun",
       {{"SLURM_JOB_ID", "7"},
        {"SLURM_NTASKS", "8"},
        {"SLURM_PROCID", "0"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_NODELIST", "n[1-2]"}},
       "",
       0,
       1,
       "",
       ""},
      {"srun that brings up PMIx",
       kSlurm + Environment{{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "slurm.pmix.70000.0"}}, "Slurm", 5, 8,
       "gpu003:61808", "70000.0"},
      {"srun that brings up PMI2", kSlurm + Environment{{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}, "Slurm", 5, 8,
       "gpu003:61808", "70000.0"},
      {"mpiexec of MPICH under Slurm, a daemon a machine", kMpich + kDaemonOfSrun, "MPICH", 1, 2, "", ""},
      {"PRRTE under Slurm, a daemon a machine",
       kDaemonOfSrun +
           Environment{{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "prterun-x"}, {"LOCKSTEP_WORLD", "8"}},
       "PMIx", 5, 8, "", "prterun-x"},
      {"Open MPI 4 over machines", kOpenMpi, "Open MPI", 2, 4, "10.0.0.5:64253", "4039442433"},
      {"Open MPI, whose daemons srun has started", kOpenMpi + kDaemonOfSrun, "Open MPI", 2, 4,
       "10.0.0.5:64253", "4039442433"},
      {"Open MPI 4 over IPv6, with an address of one link",
       Environment{{"OMPI_MCA_orte_hnp_uri", "4039442432.0;tcp6://[fe80::b9b,2620::5]:40713"}} + kOpenMpi,
       "Open MPI", 2, 4, "[2620::5]:64253", "4039442433"},
      {"Open MPI 4 with addresses of one link alone",
       Environment{{"OMPI_MCA_orte_hnp_uri", "4039442432.0;tcp6://[fe80::b9b]:40713"}} + kOpenMpi, "Open MPI",
       2, 4, "", "4039442433"},
      {"an MPIJob's worker",
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
        {"OMPI_MCA_ess_base_jobid", "77"},
        {"OMPI_MCA_orte_hnp_uri", "76.0;tcp://10.244.0.9:40713"},
        {"OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"},
        {"K_MPI_JOB_ROLE", "worker"}},
       "Open MPI",
       1,
       2,
       "",
       "77"},
      {"Open MPI 5 with a coordinator of the user's",
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
        {"PMIX_NAMESPACE", "prterun-box-77@1"},
        {"LOCKSTEP_COORDINATOR", "box:7000"}},
       "Open MPI",
       1,
       2,
       "box:7000",
       "prterun-box-77@1"},
      {"MPICH over machines",
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
       "MPICH",
       1,
       4,
       "",
       ""},
      {"PMIx alone",
       {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prte-5"}, {"LOCKSTEP_WORLD", "3"}},
       "PMIx",
       1,
       3,
       "",
       "prte-5"},
      {"Horovod over machines",
       {{"HOROVOD_RANK", "3"}, {"HOROVOD_SIZE", "4"}, {"HOROVOD_LOCAL_SIZE", "2"}},
       "Horovod",
       3,
       4,
       "",
       ""},
      {"variables that are empty",
       {{"RANK", ""}, {"WORLD_SIZE", ""}, {"PMI_RANK", ""}, {"JOB_COMPLETION_INDEX", ""}},
       "",
       0,
       1,
       "",
       ""},
  };
  return all;
}

TEST(ClusterFromEnvironment, ReadsWhatLaunchersSet) {
  for (const Started& started : all_started()) {
    const ClusterFromEnvironment found = cluster_from_environment(started.environment);
    EXPECT_EQ(found.launcher, started.launcher) << started.name;
    EXPECT_EQ(found.worker.rank, started.rank) << started.name;
    EXPECT_EQ(found.worker.count, started.count) << started.name;
    EXPECT_EQ(found.worker.coordinator, started.coordinator) << started.name;
    EXPECT_EQ(found.worker.job_id, started.job_id) << started.name;
    EXPECT_EQ(found.used.empty(), started.launcher.empty()) << started.name;
  }
}

TEST(ClusterFromEnvironment, KnowsTheTaskOfTfConfig) {
  const WorkerSpec worker = cluster_from_environment({{"TF_CONFIG", kTfConfig}}).worker;
  EXPECT_EQ(worker.task(), "worker:1");
  EXPECT_EQ(worker.addresses, (std::vector<std::string>{"a:2222", "b:2222"}));
  const WorkerSpec evaluator =
      cluster_from_environment(
          {{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}})"}})
          .worker;
  EXPECT_EQ(evaluator.task(), "evaluator:0");
  EXPECT_TRUE(evaluator.addresses.empty());
}

// Where a launcher tells no port it is made from what tells the job from others, and the same on all its workers.
TEST(ClusterFromEnvironment, MakesUpThePortOfOneMachine) {
  const auto at = [](const Environment& environment) {
    return cluster_from_environment(environment).worker.coordinator;
  };
  const Environment agents = Environment{{"TORCHELASTIC_USE_AGENT_STORE", "True"}} + kTorchrun;
  const Environment local = Environment{{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}} + kOpenMpi;
  const Environment horovod = {{"HOROVOD_RANK", "1"},
                               {"HOROVOD_SIZE", "2"},
                               {"HOROVOD_LOCAL_SIZE", "2"},
                               {"HOROVOD_GLOO_RENDEZVOUS_PORT", "40001"}};
  const Environment pods =
      Environment{{"LOCKSTEP_WORLD", "3"}, {"HOSTNAME", "digits-2.digits.default.svc"}} + kKubernetes;
  struct Case {
    Environment environment, other_worker, other_job;
    std::string host;
  };
  const Case cases[] = {
      {agents, Environment{{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"GROUP_RANK", "0"}} + agents,
       Environment{{"TORCHELASTIC_RUN_ID", "other"}} + agents, "node-1:"},
      {local, Environment{{"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "0"}} + local,
       Environment{{"PMIX_NAMESPACE", "4039442434"}} + local, "127.0.0.1:"},
      {horovod, Environment{{"HOROVOD_RANK", "0"}} + horovod,
       Environment{{"HOROVOD_GLOO_RENDEZVOUS_PORT", "40002"}} + horovod, "127.0.0.1:"},
      {pods, Environment{{"JOB_COMPLETION_INDEX", "0"}, {"HOSTNAME", "digits-0.digits.default.svc"}} + pods,
       Environment{{"HOSTNAME", "digits-new-2.digits.default.svc"}} + pods, "digits"},
  };
  for (const Case& each : cases) {
    const std::string coordinator = at(each.environment);
    ASSERT_TRUE(coordinator.starts_with(each.host)) << coordinator;
    const int port = std::stoi(coordinator.substr(coordinator.rfind(':') + 1));
    EXPECT_GE(port, 61440);
    EXPECT_LE(port, 65535);
    EXPECT_EQ(at(each.other_worker), coordinator);
    EXPECT_NE(at(each.other_job), coordinator);
  }
  const Environment in_set = {
      {"JOB_COMPLETION_INDEX", "1"}, {"HOSTNAME", "train-worker-0-1.train"}, {"LOCKSTEP_WORLD", "2"}};
  EXPECT_TRUE(at(in_set).starts_with("train-worker-0-0.train:")) << at(in_set);
  // Nobody would find these.
  EXPECT_EQ(at({{"JOB_COMPLETION_INDEX", "1"}, {"HOSTNAME", "elsewhere.net"}, {"LOCKSTEP_WORLD", "2"}}), "");
  EXPECT_EQ(at(kKubernetes + Environment{{"LOCKSTEP_WORLD", "3"}}), "");
  EXPECT_EQ(at(kMpich), "");
  EXPECT_EQ(at({{"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "2"}, {"HOROVOD_LOCAL_SIZE", "2"}}), "");
  EXPECT_EQ(
      at({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
      "");
}

struct Refused {
  Environment environment;
  std::string says;
};

TEST(ClusterFromEnvironment, RefusesByName) {
  const Refused all[] = {
      {{{"TF_CONFIG", ""}}, "TF_CONFIG: it is not JSON"},
      {{{"LOCAL_RANK", "0"}, {"RANK", "0"}}, "RANK is set, and WORLD_SIZE is not"},
      {{{"LOCAL_RANK", "0"}, {"RANK", "two"}, {"WORLD_SIZE", "2"}},
       "RANK is 'two', and must be a whole number"},
      {{{"LOCAL_RANK", "0"}, {"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK is '-1', and must be"},
      {{{"LOCAL_RANK", "0"}, {"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, "WORLD_SIZE is '99999999999'"},
      {{{"LOCAL_RANK", "0"}, {"RANK", "2"}, {"WORLD_SIZE", "2"}}, "torchrun says rank 2 of 2"},
      {{{"LOCAL_RANK", "0"}, {"RANK", "0"}, {"WORLD_SIZE", "0"}},
       "torchrun says rank 0 of 0 (LOCAL_RANK, RANK, WORLD_SIZE): ranks begin at 0 and are less than the "
       "number of "
       "workers"},
      {{{"LOCAL_RANK", "1"}, {"WORLD_SIZE", "4"}}, "WORLD_SIZE is 4 and LOCAL_RANK is 1, and RANK"},
      {{{"PET_NNODES", "1:4"}, {"PET_NPROC_PER_NODE", "1"}, {"PET_RDZV_BACKEND", "c10d"}},
       "PET_NNODES is '1:4', and neither PET_NODE_RANK nor RANK tells"},
      {kPet + Environment{{"LOCKSTEP_WORLD", "3"}}, "LOCKSTEP_WORLD is 3, and PyTorchJob says rank 1 of 2"},
      {{{"RANK", "1"}, {"PET_NNODES", "1:4"}, {"PET_NPROC_PER_NODE", "1"}, {"LOCKSTEP_WORLD", "9"}},
       "LOCKSTEP_WORLD is 9, and PET_NNODES is the range '1:4'"},
      {{{"RANK", "1"}, {"PET_NNODES", "1:x"}, {"PET_NPROC_PER_NODE", "1"}}, "PET_NNODES is 'x'"},
      {{{"JAX_NUM_PROCESSES", "4"}}, "JAX_NUM_PROCESSES is 4, and JAX_PROCESS_ID is not set"},
      {kDaemonOfSrun + Environment{{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "prterun-x"}},
       "PMIX_RANK is 5, and no variable tells the number of processes"},
      {kDaemonOfSrun + Environment{{"RANK", "5"}, {"WORLD_SIZE", "8"}}, "can be read in two ways"},
      {Environment{{"SLURM_STEP_ID", "one"}} + kSlurm, "SLURM_STEP_ID is 'one'"},
      {{{"LOCAL_RANK", "0"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}},
       "MASTER_ADDR is set, and MASTER_PORT is not"},
      {{{"LOCAL_RANK", "0"},
        {"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "a b"},
        {"MASTER_PORT", "1"}},
       "MASTER_ADDR and MASTER_PORT is 'a b:1'"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "16"}},
       "can be read in two ways: as process 1 of 16, or as machine 1 of some that run 16"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"PET_NNODES", "1:4"}, {"PET_NPROC_PER_NODE", "1"}},
       "PET_NNODES is the range '1:4'"},
      {{{"PET_NODE_RANK", "1"}}, "PET_NODE_RANK numbers machines, and PET_NNODES is not set"},
      {{{"JAX_PROCESS_ID", "1"}}, "JAX_PROCESS_ID is set, and JAX_NUM_PROCESSES is not"},
      {{{"JAX_PROCESS_ID", "1"}, {"JAX_NUM_PROCESSES", "2"}, {"JAX_COORDINATOR_ADDRESS", "host"}},
       "JAX_COORDINATOR_ADDRESS is 'host'"},
      {Environment{{"SLURM_STEP_NODELIST", "gpu[003"}} + kSlurm, "SLURM_STEP_NODELIST is 'gpu[003'"},
      {Environment{{"SLURM_STEP_NODELIST", "gpu[1-3]"}} + kSlurm,
       "SLURM_STEP_NODELIST lists 3 hosts, and SLURM_STEP_NUM_NODES is 2"},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_RANK is set, and OMPI_COMM_WORLD_SIZE is not"},
      {{{"PMIX_RANK", "0"}}, "no variable tells the number of processes: set LOCKSTEP_WORLD"},
      {kKubernetes,
       "JOB_COMPLETION_INDEX is 2, and Kubernetes sets no variable for the number of pods: set "
       "LOCKSTEP_WORLD"},
      {kKubernetes + Environment{{"LOCKSTEP_WORLD", "2"}}, "Kubernetes says rank 2 of 2"},
      {{{"LOCKSTEP_WORLD", "0"}}, "LOCKSTEP_WORLD is 0"},
      {{{"LOCKSTEP_WORLD", "2"}}, "LOCKSTEP_WORLD is 2, and no variable tells which worker this is"},
      {{{"LOCKSTEP_COORDINATOR", "host"}}, "LOCKSTEP_COORDINATOR is 'host'"},
      {kTorchrun + Environment{{"LOCKSTEP_WORLD", "8"}},
       "LOCKSTEP_WORLD is 8, and torchrun says rank 3 of 4"},
      {Environment{{"TF_CONFIG", kTfConfig}} + kTorchrun,
       "TF_CONFIG says rank 1 of 2 (TF_CONFIG), and torchrun says rank 3 of 4 (LOCAL_RANK, RANK, WORLD_SIZE"},
      {kOpenMpi + kSlurm, "Open MPI says rank 2 of 4"},
      {kPet + kKubernetes + Environment{{"LOCKSTEP_WORLD", "2"}}, "Kubernetes says rank 2 of 2"},
  };
  for (const Refused& refused : all) {
    try {
      const ClusterFromEnvironment found = cluster_from_environment(refused.environment);
      ADD_FAILURE() << refused.says << ": " << found.to_string();
    } catch (const InvalidArgument& error) {
      EXPECT_NE(error.message().find(refused.says), std::string::npos) << refused.says << "\n"
                                                                       << error.message();
    }
  }
}

TEST(ClusterFromEnvironment, BelievesTheLauncherThatIsNamed) {
  const Environment both = Environment{{"TF_CONFIG", kTfConfig}} + kTorchrun;
  EXPECT_EQ(cluster_from_environment(both, "torchrun").worker.rank, 3);
  EXPECT_EQ(cluster_from_environment(both, "TF_CONFIG").worker.rank, 1);
  try {
    cluster_from_environment(both, "Slurm");
    FAIL() << "it has not started this";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(error.message().find("Slurm has set none of its variables"), std::string::npos)
        << error.message();
  }
  try {
    cluster_from_environment(both, "slurm");
    FAIL() << "there is no such launcher";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(error.message().find("there is no launcher 'slurm'; there are TF_CONFIG, torchrun"),
              std::string::npos);
  }
}

// A launcher that tells no coordinator is helped by one that agrees with it and does.
TEST(ClusterFromEnvironment, PutsTogetherWhatAgrees) {
  const ClusterFromEnvironment found =
      cluster_from_environment(kSlurm + Environment{{"JAX_PROCESS_ID", "5"}, {"JAX_NUM_PROCESSES", "8"}});
  EXPECT_EQ(found.launcher, "JAX");
  EXPECT_EQ(found.worker.coordinator, "gpu003:61808");
  EXPECT_EQ(found.worker.job_id, "70000.0");
  const std::vector<std::string> used = {"JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "SLURM_PROCID"};
  ASSERT_GE(found.used.size(), used.size());
  EXPECT_EQ(std::vector<std::string>(found.used.begin(), found.used.begin() + 3), used);
}

TEST(ClusterFromEnvironment, SaysWhatItUsed) {
  EXPECT_EQ(cluster_from_environment(Environment()).to_string(),
            "one worker: no launcher has set its variables");
  EXPECT_EQ(cluster_from_environment(
                {{"JAX_PROCESS_ID", "1"}, {"JAX_NUM_PROCESSES", "2"}, {"LOCKSTEP_COORDINATOR", "a:1"}})
                .to_string(),
            "worker:1, rank 1 of 2, coordinator a:1 (JAX: JAX_PROCESS_ID, JAX_NUM_PROCESSES, "
            "LOCKSTEP_COORDINATOR)");
  EXPECT_EQ(cluster_from_environment({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).to_string(),
            "worker:0, rank 0 of 1, coordinator not told (MPICH: PMI_RANK, PMI_SIZE)");
}

}  // namespace
}  // namespace lockstep
