// strategies/multi_worker.cpp - workers that find each other, and MirroredStrategy over all of them.
#include "lockstep/strategies/multi_worker.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "lockstep/core/cluster/cluster_from_environment.h"
#include "lockstep/core/communicators/group.h"
#include "lockstep/core/device.h"
#include "lockstep/core/membership/membership.h"
#include "lockstep/strategies/passes/internal/over_workers.h"
#if __has_include("lockstep/core/gloo/gloo_group.h")
#include "lockstep/core/gloo/gloo_group.h"
#define LOCKSTEP_WITH_GLOO
#endif

namespace lockstep {

namespace {

std::string of_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

// "10.0.0.2" of "10.0.0.2:2222".
std::string host_of(const WorkerSpec& worker) {
  const auto rank = static_cast<std::size_t>(worker.rank);
  if (rank >= worker.addresses.size()) return "127.0.0.1";
  const std::string& address = worker.addresses[rank];
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host.empty() ? "127.0.0.1" : host;
}

int generation_of_environment() {
  const std::string text = of_environment("LOCKSTEP_GENERATION");
  if (text.empty()) return 0;
  char* end = nullptr;
  const long generation = std::strtol(text.c_str(), &end, 10);
  if (*end != '\0' || generation < 0 || generation > 1'000'000)
    throw InvalidArgument(str("LOCKSTEP_GENERATION is '", text.substr(0, 40),
                              "'; it is how often the job was started before, 0 and on"));
  return static_cast<int>(generation);
}

void check_communication(CollectiveCommunication communication) {
  if (communication == CollectiveCommunication::kNccl)
    throw InvalidArgument(
        "communication nccl exchanges values of cards, and the replicas of several workers are on CPUs: "
        "leave it out");
}

}  // namespace

std::string_view to_string(CollectiveCommunication communication) {
  switch (communication) {
    case CollectiveCommunication::kAuto: return "auto";
    case CollectiveCommunication::kRing: return "ring";
    case CollectiveCommunication::kNccl: return "nccl";
  }
  return "?";
}

struct MultiWorkerMirroredStrategy::World {
  WorkerSpec worker;
  std::string description;
  std::unique_ptr<Membership> membership;  // null: one worker
  std::shared_ptr<Group> group;
  std::atomic<std::int64_t> last_step{0};
  std::atomic<bool> wants_stop{false};
  std::chrono::milliseconds lost{0};  // MultiWorkerOptions::lost
  MirroredOptions mirrored;           // until the strategy is made

  // Makes the runtime of all, too.
  explicit World(MultiWorkerOptions options) {
    if (options.mirrored.base.runtime)
      throw InvalidArgument(
          "the strategy makes the runtime, which has the group of the workers: give its options, "
          "MultiWorkerOptions::runtime");
    check_communication(options.communication);
    if (options.worker) {
      worker = *options.worker;
      description = str(worker.task(), ", rank ", worker.rank, " of ", worker.count);
    } else {
      const ClusterFromEnvironment found = cluster_from_environment();
      worker = found.worker;
      worker.generation = generation_of_environment();
      description = found.to_string();
    }
    if (!options.mirrored.devices.names() && !options.mirrored.num_gpus) options.mirrored.devices = {"cpu:0"};
    const std::size_t replicas =
        options.mirrored.devices.names()
            ? options.mirrored.devices.names()->size()
            : static_cast<std::size_t>(std::max<std::int64_t>(*options.mirrored.num_gpus, 1));
    for (const std::string& name : options.mirrored.devices.names().value_or(std::vector<std::string>())) {
      const Device device = Device::parse(name);
      if (device.kind == DeviceKind::kCpu && device.index >= 0)
        options.runtime.cpu_devices =
            std::max(options.runtime.cpu_devices, static_cast<std::size_t>(device.index) + 1);
    }
    if (worker.count > 1) connect(options, replicas);
    mirrored = std::move(options.mirrored);
    mirrored.base.runtime = Runtime(options.runtime);
    mirrored.base.worker = worker;
  }

  // Throws it, with the place of the failure; returns if there is none.
  void expect_verdict(const Error& failure) const {
    const auto end = std::chrono::steady_clock::now() + lost + lost / 2;
    while (std::chrono::steady_clock::now() < end) {
      try {
        membership->check();
      } catch (const Error& verdict) {
        group->abort(verdict);
        throw Error(verdict.code(), with_steps(verdict.message()), failure.place());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  std::string name_of(int rank) const {
    const Participant& who = membership->participant(rank);
    return str(who.task, " (", who.address, ")");
  }
  std::string with_steps(const std::string& message) const {
    return str(message, "; this worker has committed ",
               counted(static_cast<std::size_t>(last_step.load()), "step"));
  }

  void connect(MultiWorkerOptions& options, std::size_t replicas) {
#ifdef LOCKSTEP_WITH_GLOO
    if (options.host.empty()) options.host = host_of(worker);
    lost = options.lost;
    if (options.secret.empty()) options.secret = of_environment("LOCKSTEP_SECRET");
    const Deadline deadline = deadline_in(options.start);
    membership = Membership::join({.worker = worker,
                                   .host = options.host,
                                   .folder = options.folder,
                                   .replicas = static_cast<int>(replicas),
                                   .generation = worker.generation,
                                   .secret = options.secret,
                                   .is_open = options.is_open,
                                   .beat = options.lost / 5,
                                   .lost = options.lost},
                                  deadline);
    if (worker.rank == 0) membership->set("strategy/seed", std::to_string(options.runtime.seed));
    options.runtime.seed = std::stoull(membership->get("strategy/seed", deadline));
    group = std::make_shared<Group>(connect_gloo(
        {.rank = worker.rank, .size = worker.count, .host = options.host, .generation = worker.generation},
        *membership, deadline));
    // So that nothing waits for it.
    membership->when_lost([ended = std::weak_ptr<Group>(group)](const LostMember& lost_one) {
      if (const std::shared_ptr<Group> own = ended.lock()) own->abort(lost_one.error());
    });
    if (!options.runtime.groups.emplace(internal::kWorkersGroup, group).second)
      throw InvalidArgument(
          str("the group '", internal::kWorkersGroup, "' is the strategy's: give yours another name"));
    options.runtime.worker = {worker.job, worker.index};
    description += str("; over Gloo at ", options.host, ": replicas are on CPUs");
#else
    static_cast<void>(options);
    static_cast<void>(replicas);
    throw Error(ErrorCode::kUnimplemented,
                "several workers exchange values over Gloo, which this Lockstep was built without");
#endif
  }
};

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(MultiWorkerOptions options, SourceSite site) try
    : MultiWorkerMirroredStrategy(std::make_shared<World>(std::move(options)), site) {
} catch (Error& error) {
  error.add_call("MultiWorkerMirroredStrategy", site);
  throw;
}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const std::shared_ptr<World>& world,
                                                         const SourceSite& site)
    : MirroredStrategy(
          [&] {
            MirroredOptions options = std::move(world->mirrored);
            if (world->membership != nullptr)
              options.base.membership = std::shared_ptr<Membership>(world, world->membership.get());
            return options;
          }(),
          site),
      world_(world) {}

MultiWorkerMirroredStrategy::~MultiWorkerMirroredStrategy() {
  if (world_->membership != nullptr) world_->membership->leave();
}

const std::string& MultiWorkerMirroredStrategy::description() const { return world_->description; }
std::int64_t MultiWorkerMirroredStrategy::last_step() const { return world_->last_step; }
Membership* MultiWorkerMirroredStrategy::membership() const { return world_->membership.get(); }

void MultiWorkerMirroredStrategy::want_stop() noexcept {
  world_->wants_stop.store(true, std::memory_order_relaxed);
  if (world_->group != nullptr) world_->group->want_stop();
}
bool MultiWorkerMirroredStrategy::is_stop_wanted() const noexcept {
  return world_->group != nullptr ? world_->group->is_stop_wanted()
                                  : world_->wants_stop.load(std::memory_order_relaxed);
}

void MultiWorkerMirroredStrategy::after_run(std::uint64_t steps, const Error* failure) const {
  const std::int64_t last = world_->last_step += static_cast<std::int64_t>(steps);
  if (world_->membership == nullptr) return;
  if (steps > 0) world_->membership->report({.step = last});
  if (failure == nullptr) return;
  if (const auto declined = find_declined(std::current_exception()))
    throw Error(declined->code(),
                world_->with_steps(
                    str(world_->name_of(declined->participant()),
                        " could not run the step, so no worker has committed it: ", declined->reason())));
  // Who is lost, the membership knows; an exchange that breaks may blame a worker that has only seen it earlier.
  if (failure->code() == ErrorCode::kUnavailable) world_->expect_verdict(*failure);
}

}  // namespace lockstep
