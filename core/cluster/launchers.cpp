// core/cluster/launchers.cpp - a reader for each launcher.
#include "lockstep/core/cluster/internal/launchers.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/cluster/internal/address.h"
#include "lockstep/core/cluster/internal/node_list.h"
#include "lockstep/core/cluster/internal/tf_config.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

// Ports for coordinators of which the launcher tells no port: 61440 to 65535, which no system gives to others by itself.
constexpr std::uint32_t kFirstPort = 61440, kPorts = 4096;

std::uint32_t port_from(std::uint64_t number) {
  return kFirstPort + static_cast<std::uint32_t>(number % kPorts);
}

// The same on all workers, which may run different builds: FNV-1a.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return hash ^ (hash >> 32U);
}

std::string address(std::string_view host, std::uint32_t port) {
  const bool is_v6 = host.find(':') != std::string_view::npos && !host.starts_with('[');
  return is_v6 ? str('[', host, "]:", port) : str(host, ':', port);
}

// A coordinator that variables name, checked.
std::string coordinator_at(std::string_view host, std::uint32_t port, std::string_view variables) {
  std::string at = address(host, port);
  check_address(at, variables);
  return at;
}

// Throws unless the text of the variable is a number from 0, and fits.
template <class Number>
Number number_in(std::string_view name, std::string_view digits) {
  Number value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.starts_with('-'))
    throw InvalidArgument(str(name, " is '", printable(digits.substr(0, 80)),
                              "', and must be a whole number that is not negative"));
  return value;
}

WorkerSpec numbered(int rank, int count) { return {.index = rank, .rank = rank, .count = count}; }

std::uint32_t port_of(Variables& variables, std::string_view name, std::string_view because) {
  return static_cast<std::uint32_t>(variables.number_with(name, because));
}

// A user's coordinator counts, whatever the launcher says of one.
bool has_coordinator(const Variables& variables) { return variables.is_set("LOCKSTEP_COORDINATOR"); }

// Does torchrun number this process? Several launchers set LOCAL_RANK alone.
bool is_of_torchrun(const Variables& variables) {
  return variables.is_set("RANK") && (variables.is_set("LOCAL_RANK") || variables.is_set("GROUP_RANK"));
}

// --- readers: nothing if their launcher did not start this process

std::optional<Reading> read_tf(Variables& variables) {
  const std::string* const text = variables.even_empty("TF_CONFIG");
  if (text == nullptr) return {};
  Reading reading{.worker = read_tf_config(*text)};
  reading.is_of_no_cluster = reading.worker.addresses.empty();
  return reading;
}

// Where rank 0 of a job of PyTorch listens. Newer launchers keep a store of their own at the port that they tell.
std::string torch_coordinator(Variables& variables, std::string_view host_name, std::string_view port_name) {
  if (has_coordinator(variables)) return {};
  const std::string* const host = variables.text(host_name);
  if (host == nullptr) return {};
  std::uint32_t port = port_of(variables, port_name, host_name);
  const std::string* const agents = variables.text("TORCHELASTIC_USE_AGENT_STORE");
  if (agents != nullptr && *agents == "True") {
    const std::string* const run = variables.text("TORCHELASTIC_RUN_ID");
    port = port_from(port + hash_of(run == nullptr ? std::string_view() : std::string_view(*run)));
  }
  return coordinator_at(*host, port, str(host_name, " and ", port_name));
}

// The name of a job of torchrun; "none" is what it is called without one.
std::string torch_job(Variables& variables, std::string_view name) {
  const std::string* const run = variables.text(name);
  return run == nullptr || *run == "none" ? std::string() : *run;
}

std::optional<Reading> read_torchrun(Variables& variables) {
  if (!is_of_torchrun(variables)) {
    if (!variables.is_set("LOCAL_RANK") || variables.number("WORLD_SIZE").value_or(1) < 2) return {};
    return Reading{.refusal = str("WORLD_SIZE is ", *variables.text("WORLD_SIZE"), " and LOCAL_RANK is ",
                                  *variables.text("LOCAL_RANK"),
                                  ", and RANK, which tells the process among all, is not set")};
  }
  static_cast<void>(variables.has("LOCAL_RANK") || variables.has("GROUP_RANK"));
  const int rank = variables.number_with("RANK", "LOCAL_RANK");
  Reading reading{.worker = numbered(rank, variables.number_with("WORLD_SIZE", "RANK"))};
  reading.worker.coordinator = torch_coordinator(variables, "MASTER_ADDR", "MASTER_PORT");
  reading.worker.job_id = torch_job(variables, "TORCHELASTIC_RUN_ID");
  return reading;
}

// The number of machines: PET_NNODES, which may be a range. Then the user tells.
std::optional<int> nodes_of(Variables& variables) {
  const std::string* const nodes = variables.text("PET_NNODES");
  if (nodes == nullptr) return variables.world();
  const std::size_t colon = nodes->find(':');
  if (colon == std::string::npos) return variables.number("PET_NNODES");
  const int least = number_in<int>("PET_NNODES", nodes->substr(0, colon));
  const int most = number_in<int>("PET_NNODES", nodes->substr(colon + 1));
  if (least == most) return least;
  const std::optional<int> world = variables.world();
  if (world && (*world < least || *world > most))
    throw InvalidArgument(str("LOCKSTEP_WORLD is ", *world, ", and PET_NNODES is the range '",
                              printable(nodes->substr(0, 40)), "': the number of machines lies in it"));
  return world;
}

// What Kubernetes operators set for torchrun, in a program that they start without it: numbers of machines.
std::optional<Reading> read_pytorch_job(Variables& variables) {
  if (is_of_torchrun(variables)) return {};
  const bool in_pet = variables.has("PET_NODE_RANK");
  const std::optional<int> rank = variables.number(in_pet ? "PET_NODE_RANK" : "RANK");
  if (!rank) {
    const std::string* const nodes = variables.text("PET_NNODES");
    if (nodes == nullptr || *nodes == "1" || *nodes == "1:1") return {};
    return Reading{
        .of_machines = true,
        .refusal = str("PET_NNODES is '", printable(nodes->substr(0, 40)),
                       "', and neither PET_NODE_RANK nor RANK tells which machine this is: start the "
                       "program with torchrun")};
  }
  const bool counts_machines =
      in_pet || variables.has("PET_NPROC_PER_NODE") || variables.has("NPROC_PER_NODE");
  std::optional<int> count = counts_machines ? nodes_of(variables) : variables.world();
  if (!count && !counts_machines) {
    const int size = variables.number_with("WORLD_SIZE", "RANK");
    // One of one is the same in both readings.
    if (size != 1)
      return Reading{
          .refusal = str(
              "RANK=", *rank, " and WORLD_SIZE=", size,
              " without LOCAL_RANK, GROUP_RANK or PET_NPROC_PER_NODE can be read in two ways: as process ",
              *rank, " of ", size, ", or as machine ", *rank, " of some that run ", size,
              " processes together. Start the program with torchrun, or set LOCKSTEP_WORLD to the number "
              "of processes")};
    count = size;
  }
  if (!count) {
    const std::string* const nodes = variables.text("PET_NNODES");
    return Reading{
        .of_machines = true,
        .refusal =
            str(in_pet ? "PET_NODE_RANK" : "RANK", " numbers machines, and ",
                nodes == nullptr ? "PET_NNODES is not set"
                                 : str("PET_NNODES is the range '", printable(nodes->substr(0, 40)), "'"),
                ": set LOCKSTEP_WORLD to the number of machines, or start the program with torchrun")};
  }
  Reading reading{.of_machines = true, .worker = numbered(*rank, *count)};
  const bool has_pet_address = variables.has("PET_MASTER_ADDR");
  reading.worker.coordinator =
      torch_coordinator(variables, has_pet_address ? "PET_MASTER_ADDR" : "MASTER_ADDR",
                        has_pet_address ? "PET_MASTER_PORT" : "MASTER_PORT");
  for (const char* name : {"PET_RDZV_ID", "TORCHELASTIC_RUN_ID"}) {
    if (reading.worker.job_id.empty()) reading.worker.job_id = torch_job(variables, name);
  }
  return reading;
}

std::optional<Reading> read_jax(Variables& variables) {
  const std::optional<int> rank = variables.number("JAX_PROCESS_ID");
  if (!rank) {
    const int count = variables.number("JAX_NUM_PROCESSES").value_or(1);
    if (count < 2) return {};
    return Reading{.refusal = str("JAX_NUM_PROCESSES is ", count, ", and JAX_PROCESS_ID is not set")};
  }
  Reading reading{.worker = numbered(*rank, variables.number_with("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))};
  const std::string* const at = variables.text("JAX_COORDINATOR_ADDRESS");
  if (at != nullptr && !has_coordinator(variables)) {
    check_address(*at, "JAX_COORDINATOR_ADDRESS");
    reading.worker.coordinator = *at;
  }
  return reading;
}

// Steps from this number on are none of srun's own: the shell of an allocation, a batch script, and the like.
constexpr std::uint64_t kSpecialSteps = 4'294'967'280;

// Only what srun has started: inside an allocation the numbers of the job are there without any step.
std::optional<Reading> read_slurm(Variables& variables) {
  const std::optional<int> rank = variables.number("SLURM_PROCID");
  if (!rank || !variables.has("SLURM_STEP_ID") || !variables.has("SLURM_STEP_NUM_TASKS")) return {};
  const auto step = number_in<std::uint64_t>("SLURM_STEP_ID", *variables.text("SLURM_STEP_ID"));
  if (step >= kSpecialSteps) return {};
  const int count = variables.number_with("SLURM_STEP_NUM_TASKS", "SLURM_PROCID");
  const std::optional<int> nodes = variables.number("SLURM_STEP_NUM_NODES");
  Reading reading{.of_machines = nodes && *nodes == count, .worker = numbered(*rank, count)};
  const std::string* const name = variables.text("SLURM_JOB_ID");
  if (name == nullptr)
    throw InvalidArgument("SLURM_PROCID is set, and SLURM_JOB_ID is not: set both, or neither");
  const auto job = number_in<std::uint64_t>("SLURM_JOB_ID", *name);
  reading.worker.job_id = str(job, '.', step);
  // Steps of one job may run side by side.
  const std::uint32_t port = port_from(job + 1021 * step);
  if (has_coordinator(variables)) return reading;
  if (nodes && *nodes == 1) {
    reading.worker.coordinator = address("127.0.0.1", port);
  } else if (const std::string* const list = variables.text("SLURM_STEP_NODELIST")) {
    const std::vector<std::string> hosts = expand_node_list(*list, "SLURM_STEP_NODELIST");
    if (nodes && hosts.size() != static_cast<std::size_t>(*nodes))
      throw InvalidArgument(str("SLURM_STEP_NODELIST lists ", counted(hosts.size(), "host"),
                                ", and SLURM_STEP_NUM_NODES is ", *nodes));
    reading.worker.coordinator = coordinator_at(hosts.front(), port, "the first host of SLURM_STEP_NODELIST");
  }
  return reading;
}

// The host in "123.0;tcp://10.0.0.5,172.17.0.1:40713" or "123.0;tcp6://[fe80::1,fd00::5]:40713"; empty if there is none. An
// address of one link alone is of no use to others.
std::string host_of_launcher(std::string_view uri) {
  const std::size_t begin = uri.find("://");
  if (begin == std::string_view::npos) return {};
  uri.remove_prefix(begin + 3);
  const bool is_v6 = uri.starts_with('[');
  if (!is_v6) return std::string(uri.substr(0, uri.find_first_of(",:;")));
  uri = uri.substr(1, std::min(uri.find(']'), uri.size()) - 1);
  while (uri.starts_with("fe80")) uri.remove_prefix(std::min(uri.find(','), uri.size() - 1) + 1);
  uri = uri.substr(0, uri.find(','));
  return uri.empty() ? std::string() : str('[', uri, ']');
}

std::optional<Reading> read_open_mpi(Variables& variables) {
  const std::optional<int> rank = variables.number("OMPI_COMM_WORLD_RANK");
  if (!rank) return {};
  const int count = variables.number_with("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  const std::optional<int> local = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE");
  // mpirun may start torchrun, once a machine.
  Reading reading{.of_machines = local == 1 && is_of_torchrun(variables), .worker = numbered(*rank, count)};
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    const std::string* const id = variables.text(name);
    if (id != nullptr && reading.worker.job_id.empty()) reading.worker.job_id = *id;
  }
  if (has_coordinator(variables) || reading.worker.job_id.empty()) return reading;
  const std::uint32_t port = port_from(hash_of(reading.worker.job_id));
  // With a list of hosts mpirun itself need not run where rank 0 does.
  const bool is_elsewhere = variables.is_set("OMPI_MCA_orte_default_hostfile") ||
                            variables.is_set("OMPI_MCA_orte_keep_fqdn_hostnames");
  if (local && *local == count) {
    reading.worker.coordinator = address("127.0.0.1", port);
  } else if (const std::string* const uri = variables.text("OMPI_MCA_orte_hnp_uri");
             uri != nullptr && !is_elsewhere) {
    const std::string host = host_of_launcher(*uri);
    if (!host.empty())
      reading.worker.coordinator = coordinator_at(host, port, "the host in OMPI_MCA_orte_hnp_uri");
  }
  return reading;
}

// MPICH and Intel MPI.
std::optional<Reading> read_pmi(Variables& variables) {
  const std::optional<int> rank = variables.number("PMI_RANK");
  if (!rank) return {};
  const std::optional<int> local = variables.number("MPI_LOCALNRANKS");
  // Slurm sets these, too, beside variables of its own, which tell more.
  if (!local && !variables.is_set("MPI_LOCALRANKID") && variables.is_set("SLURM_STEP_NUM_TASKS")) return {};
  return Reading{.of_machines = local == 1 && is_of_torchrun(variables),
                 .worker = numbered(*rank, variables.number_with("PMI_SIZE", "PMI_RANK"))};
}

std::optional<Reading> read_pmix(Variables& variables) {
  const std::optional<int> rank = variables.number("PMIX_RANK");
  if (!rank) return {};
  const std::string* const name = variables.text("PMIX_NAMESPACE");
  // Open MPI and Slurm set these beside variables of their own, which tell more.
  if (variables.is_set("OMPI_COMM_WORLD_RANK") || (name != nullptr && name->starts_with("slurm.pmix.")))
    return {};
  const std::optional<int> count = variables.world();
  if (!count)
    return Reading{.refusal = str("PMIX_RANK is ", *rank,
                                  ", and no variable tells the number of processes: set LOCKSTEP_WORLD")};
  Reading reading{.worker = numbered(*rank, *count)};
  if (name != nullptr) reading.worker.job_id = *name;
  return reading;
}

std::optional<Reading> read_horovod(Variables& variables) {
  const std::optional<int> rank = variables.number("HOROVOD_RANK");
  if (!rank) return {};
  const int count = variables.number_with("HOROVOD_SIZE", "HOROVOD_RANK");
  Reading reading{.worker = numbered(*rank, count)};
  const std::optional<int> local = variables.number("HOROVOD_LOCAL_SIZE");
  const std::optional<int> port = variables.number("HOROVOD_GLOO_RENDEZVOUS_PORT");
  if (local && *local == count && port && !has_coordinator(variables))
    reading.worker.coordinator = address("127.0.0.1", port_from(static_cast<std::uint64_t>(*port)));
  return reading;
}

std::optional<Reading> read_kubernetes(Variables& variables) {
  const std::optional<int> rank = variables.number("JOB_COMPLETION_INDEX");
  if (!rank) return {};
  const std::optional<int> count = variables.world();
  if (!count)
    return Reading{
        .of_machines = true,
        .refusal = str("JOB_COMPLETION_INDEX is ", *rank,
                       ", and Kubernetes sets no variable for the number of pods: set LOCKSTEP_WORLD to it "
                       "in the pod's template, unless pods start several workers each, with a launcher")};
  Reading reading{.of_machines = true, .worker = numbered(*rank, *count)};
  // <job>-<index>[.<subdomain>]; of a JobSet <jobset>-<job>-<i>-<index>.
  if (const std::string* const host = variables.text("HOSTNAME")) {
    const std::size_t dot = std::min(host->find('.'), host->size());
    const std::string ending = str('-', *rank);
    const std::string name = host->substr(0, dot);
    if (name.size() > ending.size() && name.ends_with(ending)) {
      const std::string job = name.substr(0, name.size() - ending.size());
      reading.worker.job_id = job;
      // Other pods find no name without its service.
      if (dot < host->size() && !has_coordinator(variables))
        reading.worker.coordinator = coordinator_at(
            str(job, "-0", host->substr(dot)), port_from(hash_of(job)), "the pod of index 0 by HOSTNAME");
    }
  }
  return reading;
}

using Reader = std::optional<Reading> (*)(Variables&);
struct Launcher {
  const char* name;
  Reader read;
};
// Those that tell more come first: of several that agree, the first one's coordinator counts.
constexpr Launcher kLaunchers[] = {
    {"TF_CONFIG", read_tf},
    {"torchrun", read_torchrun},
    {"PyTorchJob", read_pytorch_job},
    {"JAX", read_jax},
    {"Open MPI", read_open_mpi},
    {"MPICH", read_pmi},
    {"Slurm", read_slurm},
    {"PMIx", read_pmix},
    {"Horovod", read_horovod},
    {"Kubernetes", read_kubernetes},
};

}  // namespace

// --- variables

bool Variables::is_set(std::string_view name) const {
  const auto found = all_.find(name);
  return found != all_.end() && !found->second.empty();
}

const std::string* Variables::text(std::string_view name) {
  const std::string* const text = even_empty(name);
  return text == nullptr || text->empty() ? nullptr : text;
}

const std::string* Variables::even_empty(std::string_view name) {
  const auto found = all_.find(name);
  if (found == all_.end()) return nullptr;
  if (std::ranges::find(used_, name) == used_.end()) used_.emplace_back(name);
  return &found->second;
}

std::optional<int> Variables::number(std::string_view name) {
  const std::string* const digits = text(name);
  if (digits == nullptr) return {};
  return number_in<int>(name, *digits);
}

int Variables::number_with(std::string_view name, std::string_view because) {
  const std::optional<int> value = number(name);
  if (!value) throw InvalidArgument(str(because, " is set, and ", name, " is not: set both, or neither"));
  return *value;
}

std::optional<int> Variables::world() {
  const std::optional<int> count = number("LOCKSTEP_WORLD");
  if (count && *count < 1)
    throw InvalidArgument("LOCKSTEP_WORLD is 0, and must be the number of workers, at least 1");
  return count;
}

// --- launchers

std::vector<std::string> launcher_names() {
  std::vector<std::string> names;
  for (const Launcher& launcher : kLaunchers) names.emplace_back(launcher.name);
  return names;
}

std::vector<Reading> read_launchers(const Environment& environment, std::string_view only) {
  std::vector<Reading> readings;
  for (const Launcher& launcher : kLaunchers) {
    if (!only.empty() && only != launcher.name) continue;
    Variables variables(environment);
    std::optional<Reading> reading = launcher.read(variables);
    if (!reading) continue;
    reading->launcher = launcher.name;
    reading->used = variables.used();
    readings.push_back(std::move(*reading));
  }
  return readings;
}

}  // namespace lockstep::internal
