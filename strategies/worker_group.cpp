// strategies/worker_group.cpp - what a worker computes on, and how it exchanges values with the others.
#include "lockstep/strategies/internal/worker_group.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <variant>

#include "lockstep/core/communicators/host_and_cards.h"
#include "lockstep/core/error.h"
#include "lockstep/core/topology.h"
#if __has_include("lockstep/core/gloo/gloo_group.h")
#include "lockstep/core/gloo/gloo_group.h"
#define LOCKSTEP_WITH_GLOO
#endif
#if __has_include("lockstep/core/nccl/nccl_group.h")
#include "lockstep/core/nccl/nccl_group.h"
#define LOCKSTEP_WITH_NCCL
#endif

namespace lockstep::internal {

namespace {

// This worker among those of its machine.
struct Place {
  int index = 0, count = 1;
};

std::optional<int> number_of_environment(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (*end != '\0' || number < 0 || number > 1'000'000) return std::nullopt;
  return static_cast<int>(number);
}

std::string host_in(const std::string& address) { return address.substr(0, address.rfind(':')); }

Place place_on_machine(const WorkerSpec& worker) {
  const auto rank = static_cast<std::size_t>(worker.rank);
  if (rank < worker.addresses.size()) {
    Place place{.index = 0, .count = 0};
    for (std::size_t other = 0; other < worker.addresses.size(); ++other) {
      if (host_in(worker.addresses[other]) != host_in(worker.addresses[rank])) continue;
      if (other < rank) ++place.index;
      ++place.count;
    }
    return place;
  }
  constexpr const char* kNames[][2] = {{"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                       {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
                                       {"SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"}};
  for (const auto& [index_name, count_name] : kNames) {
    const std::optional<int> index = number_of_environment(index_name),
                             count = number_of_environment(count_name);
    if (index && count && *index < *count) return {.index = *index, .count = *count};
  }
  return {};
}

bool is_on_card(const std::vector<std::string>& devices) {
  return std::ranges::any_of(
      devices, [](const std::string& name) { return Device::parse(name).kind == DeviceKind::kGpu; });
}

// The devices that a runtime with these options has; it starts next to nothing.
std::vector<DeviceFacts> devices_of(RuntimeOptions options) {
  options.threads = options.scheduler == nullptr ? 1 : 0;
  options.groups = {};
  return Runtime(std::move(options)).topology().devices();
}

#if defined(LOCKSTEP_WITH_GLOO)
// The number of the card, or why NCCL cannot exchange the values of these devices.
std::variant<int, std::string> card_for_nccl(const WorkerGroupSpec& spec) {
#if defined(LOCKSTEP_WITH_NCCL)
  if (const Decision found = has_nccl(); !found) return found.reason();
  const std::vector<DeviceFacts> facts = devices_of(spec.runtime);
  for (const std::string& name : spec.devices) {
    const Device wanted = Device::parse(name);
    const auto found = std::ranges::find(facts, wanted, &DeviceFacts::device);
    if (found == facts.end() || found->kernels != "cuda" || found->card < 0)
      return str(name, " is no card of CUDA");
  }
  return std::ranges::find(facts, Device::parse(spec.devices[0]), &DeviceFacts::device)->card;
#else
  static_cast<void>(spec);
  return std::string("this Lockstep was built without NCCL");
#endif
}

// Why not all workers can; empty: they can. One that cannot knows enough.
std::string reason_against_nccl(const std::string& own, const WorkerGroupSpec& spec, Membership& membership,
                                Deadline deadline) {
  membership.set(str("strategy/nccl/", spec.worker.rank), own.empty() ? "yes" : str("no: ", own));
  if (!own.empty()) return own;
  for (int rank = 0; rank < membership.size(); ++rank) {
    const std::string answer = membership.get(str("strategy/nccl/", rank), deadline);
    if (answer != "yes") return str(membership.participant(rank).task, " says ", answer);
  }
  return {};
}
#endif

}  // namespace

std::vector<std::string> devices_of_worker(const RuntimeOptions& runtime, const WorkerSpec& worker) {
  std::vector<std::string> cards;
  for (const DeviceFacts& facts : devices_of(runtime)) {
    if (facts.device.kind == DeviceKind::kGpu) cards.push_back(facts.device.to_string());
  }
  if (cards.empty()) return {"cpu:0"};
  const Place place = place_on_machine(worker);
  const auto index = static_cast<std::size_t>(place.index), count = static_cast<std::size_t>(place.count);
  if (cards.size() < count) return {cards[index % cards.size()]};
  const std::size_t each = cards.size() / count;  // as many for all
  return {cards.begin() + static_cast<std::ptrdiff_t>(index * each),
          cards.begin() + static_cast<std::ptrdiff_t>((index + 1) * each)};
}

void check_communication(const CommunicationOptions& communication, const std::vector<std::string>& devices) {
  if (communication.timeout < std::chrono::milliseconds(0))
    throw InvalidArgument(
        str("CommunicationOptions: the timeout of ", communication.timeout.count(), " ms is negative"));
  if (communication.implementation == CollectiveCommunication::kNccl && !is_on_card(devices))
    throw InvalidArgument(
        "communication nccl exchanges values of cards, and the replicas are on CPUs: leave it out");
}

WorkerGroup make_worker_group([[maybe_unused]] const WorkerGroupSpec& spec,
                              [[maybe_unused]] Membership& membership, [[maybe_unused]] Deadline deadline,
                              [[maybe_unused]] const std::stop_token& stop) {
#if defined(LOCKSTEP_WITH_GLOO)
  const CommunicationOptions& wanted = spec.communication;
  membership.agree("CommunicationOptions",
                   str("implementation ", to_string(wanted.implementation), "\nin_replica_order ",
                       wanted.in_replica_order ? "true" : "false"),
                   deadline);
  WorkerGroup made;
  std::string reason = "it was asked for";
  bool over_nccl = false;
  [[maybe_unused]] int card = -1;
  if (const bool on_cards = is_on_card(spec.devices);
      wanted.implementation != CollectiveCommunication::kRing) {
    const std::variant<int, std::string> own =
        on_cards ? card_for_nccl(spec) : std::variant<int, std::string>("replicas are on CPUs");
    if (own.index() == 0) card = std::get<int>(own);
    reason = reason_against_nccl(own.index() == 0 ? std::string() : std::get<std::string>(own), spec,
                                 membership, deadline);
    over_nccl = reason.empty();
    if (!over_nccl && wanted.implementation == CollectiveCommunication::kNccl)
      throw InvalidArgument(
          str("communication nccl exchanges values of cards of all workers, and ", reason, ": leave it out"));
  }
  std::unique_ptr<Communicator> communicator = connect_gloo({.rank = spec.worker.rank,
                                                             .size = spec.worker.count,
                                                             .host = spec.host,
                                                             .generation = spec.worker.generation,
                                                             .ring = !wanted.in_replica_order},
                                                            membership, deadline, stop);
#if defined(LOCKSTEP_WITH_NCCL)
  if (over_nccl)
    communicator =
        host_and_cards(std::move(communicator), connect_nccl({.name = "cards",
                                                              .rank = spec.worker.rank,
                                                              .size = spec.worker.count,
                                                              .card = card,
                                                              .generation = spec.worker.generation},
                                                             membership, deadline, stop));
#endif
  made.group = std::make_shared<Group>(std::move(communicator));
  made.group->set_timeout(wanted.timeout);
  made.exchange.joins_first = over_nccl || !wanted.in_replica_order;
  if (over_nccl) {
    made.description = str("over NCCL from card ", card, ", and Gloo at ", spec.host);
  } else {
    if (is_on_card(spec.devices)) made.exchange.device = "cpu:0";
    made.description =
        str("over Gloo at ", spec.host, wanted.in_replica_order ? "" : ", in a ring", ": ", reason);
  }
  return made;
#else
  throw Error(ErrorCode::kUnimplemented,
              "several workers exchange values over Gloo, which this Lockstep was built without");
#endif
}

}  // namespace lockstep::internal
