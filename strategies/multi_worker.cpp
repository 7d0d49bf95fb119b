// strategies/multi_worker.cpp - workers that find each other, and MirroredStrategy over all of them.
#include "lockstep/strategies/multi_worker.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/cluster/cluster_from_environment.h"
#include "lockstep/core/communicators/group.h"
#include "lockstep/core/device.h"
#include "lockstep/core/membership/membership.h"
#include "lockstep/strategies/internal/worker_group.h"
#include "lockstep/strategies/passes/internal/over_workers.h"

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

// What this worker does, for the others and for people. It is asked for by a thread of the membership, perhaps while the strategy
// is about to end.
class Progress {
 public:
  Progress(std::weak_ptr<Group> group, const Membership& membership, const MultiWorkerOptions& options)
      : group_(std::move(group)), slow_(options.slow), tell_(options.tell), next_(options.slow) {
    for (int rank = 0; rank < membership.size(); ++rank) {
      const Participant& who = membership.participant(rank);
      names_.push_back(rank == membership.rank() ? who.task : str(who.task, " (", who.address, ")"));
    }
    own_ = names_[static_cast<std::size_t>(membership.rank())];
  }

  void committed(std::int64_t step) { step_.store(step, std::memory_order_relaxed); }

  // On one thread.
  MemberProgress look() {
    MemberProgress progress{.step = step_.load(std::memory_order_relaxed)};
    const std::shared_ptr<Group> group = group_.lock();
    const std::optional<Group::Waiting> waiting = group == nullptr ? std::nullopt : group->waiting();
    if (!waiting) return progress;
    const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - waiting->since);
    if (since < kWorthTelling) return progress;
    progress.waits_for = waiting->for_member;
    progress.since = since;
    progress.what = waiting->what;
    if (waiting->since != told_of_) next_ = slow_;
    if (slow_ > std::chrono::milliseconds(0) && since >= next_) {
      told_of_ = waiting->since;
      next_ = 2 * since;
      say(progress);
    }
    return progress;
  }

 private:
  static constexpr std::chrono::milliseconds kWorthTelling{100};

  void say(const MemberProgress& progress) const {
    const std::string whom =
        progress.waits_for < 0 ? "others" : names_[static_cast<std::size_t>(progress.waits_for)];
    const std::int64_t tenths = progress.since.count() / 100;
    const std::string line =
        str(own_, " waits since ", static_cast<double>(tenths) / 10, " s for ", whom, ": ", progress.what);
    if (tell_) return tell_(line);
    std::clog << line + "\n";
  }

  const std::weak_ptr<Group> group_;
  const std::chrono::milliseconds slow_;
  const std::function<void(const std::string&)> tell_;
  std::vector<std::string> names_;
  std::string own_;
  std::atomic<std::int64_t> step_{0};
  std::chrono::milliseconds next_;
  std::chrono::steady_clock::time_point told_of_;
};

// What ends when a worker is lost: connecting to it, and later what is exchanged with it.
class Waits {
 public:
  std::stop_token token() const { return connecting_.get_token(); }
  void watch(const std::shared_ptr<Group>& group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    group_ = group;
    if (why_) group->abort(*why_);
  }
  void end(const Error& why) {
    connecting_.request_stop();
    const std::lock_guard<std::mutex> lock(mutex_);
    why_ = why;
    if (const std::shared_ptr<Group> group = group_.lock()) group->abort(why);
  }

 private:
  std::stop_source connecting_;
  std::mutex mutex_;  // of what follows
  std::weak_ptr<Group> group_;
  std::optional<Error> why_;
};

std::vector<std::string> devices_named_by(const MirroredOptions& options) {
  if (options.devices.names()) return *options.devices.names();
  std::vector<std::string> devices;
  for (std::int64_t card = 0; card < *options.num_gpus; ++card) devices.push_back(str("gpu:", card));
  return devices.empty() ? std::vector<std::string>{"cpu:0"} : devices;
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
  std::shared_ptr<Progress> progress;
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
    if (options.communication.bytes_per_pack)
      options.mirrored.bytes_per_pack = *options.communication.bytes_per_pack;
    if (options.worker) {
      worker = *options.worker;
      description = str(worker.task(), ", rank ", worker.rank, " of ", worker.count);
    } else {
      const ClusterFromEnvironment found = cluster_from_environment();
      worker = found.worker;
      worker.generation = generation_of_environment();
      description = found.to_string();
    }
    if (!options.mirrored.devices.names() && !options.mirrored.num_gpus)
      options.mirrored.devices = internal::devices_of_worker(options.runtime, worker);
    const std::vector<std::string> devices = devices_named_by(options.mirrored);
    internal::check_communication(options.communication, devices);
    for (const std::string& name : devices) {
      const Device device = Device::parse(name);
      if (device.kind == DeviceKind::kCpu && device.index >= 0)
        options.runtime.cpu_devices =
            std::max(options.runtime.cpu_devices, static_cast<std::size_t>(device.index) + 1);
    }
    if (worker.count > 1) connect(options, devices);
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

  void connect(MultiWorkerOptions& options, const std::vector<std::string>& devices) {
    if (options.host.empty()) options.host = host_of(worker);
    lost = options.lost;
    if (options.secret.empty()) options.secret = of_environment("LOCKSTEP_SECRET");
    const Deadline deadline = deadline_in(options.start);
    membership = Membership::join({.worker = worker,
                                   .host = options.host,
                                   .folder = options.folder,
                                   .replicas = static_cast<int>(devices.size()),
                                   .generation = worker.generation,
                                   .secret = options.secret,
                                   .is_open = options.is_open,
                                   .beat = options.lost / 5,
                                   .lost = options.lost},
                                  deadline);
    // So that nothing waits for a worker that is lost, neither here nor later.
    const auto waits = std::make_shared<Waits>();
    membership->when_lost([waits](const LostMember& lost_one) { waits->end(lost_one.error()); });
    if (worker.rank == 0) membership->set("strategy/seed", std::to_string(options.runtime.seed));
    options.runtime.seed = std::stoull(membership->get("strategy/seed", deadline));
    internal::WorkerGroup made = internal::make_worker_group({.worker = worker,
                                                              .host = options.host,
                                                              .communication = options.communication,
                                                              .devices = devices,
                                                              .runtime = options.runtime},
                                                             *membership, deadline, waits->token());
    group = std::move(made.group);
    waits->watch(group);
    options.mirrored.base.exchange = std::move(made.exchange);
    progress = std::make_shared<Progress>(group, *membership, options);
    membership->report_by([own = progress] { return own->look(); });
    if (!options.runtime.groups.emplace(internal::kWorkersGroup, group).second)
      throw InvalidArgument(
          str("the group '", internal::kWorkersGroup, "' is the strategy's: give yours another name"));
    options.runtime.worker = {worker.job, worker.index};
    description += "; " + made.description;
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
  world_->progress->committed(last);
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
