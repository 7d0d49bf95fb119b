// strategies/multi_worker.h - the same program on several machines, or processes, that train one model in step.
//
//   MultiWorkerMirroredStrategy strategy;                       // who this worker is: cluster_from_environment()
//   auto step = strategy.function(...);                         // as with MirroredStrategy, on this worker's replicas
//
// A launcher starts the program once per worker: `lockstep launch -n 4 -- ./app`, torchrun, srun, mpirun, a TF_CONFIG set by hand
// (core/cluster/cluster_from_environment.h). Each worker has the same number of replicas. All workers make the same variables and
// functions and run the same steps, in the same order.
//
//   bits     those of one process with all of the replicas, whatever the number of workers: values are combined in the order of the
//            replicas' numbers, unless CommunicationOptions say otherwise. Over NCCL sums have an order of their own, the same each
//            time, and those of f16 and bf16 round at each step
//   devices  CPUs, or cards: values go from card to card over NCCL, else through the host
//   checked  before a function is first run, all workers compare what they are about to run; a difference is refused on all of
//            them, and the error shows the first line that differs
//   from the first worker   initial values of variables, tensors that are assigned, shared inputs, the seed
//   failure  A worker that dies, freezes or is cut off is named to all others within MembershipSpec::lost: their runs end with
//            Unavailable, and their variables are those of a committed step. Afterwards the strategy can run no more; save what
//            is to be kept, and leave with exit code 42, after which `lockstep launch --restarts` starts all workers again.
//            A run that throws on one worker throws on all of them, with the first one's reason, and none of them commits it.
//            The next run is as good as if it had not been.
//   slow     A worker that is slow is waited for. Those who wait say for whom, and in which node; so does `lockstep status`.
//   stop     want_stop(), on any worker and from a handler of SIGTERM too: from the end of the same run on, is_stop_wanted() is
//            true on all workers, so that all save the same state and leave.
//
// One worker is a MirroredStrategy. Not yet: reduce_scatter, slices for copies of variables.
//
// Thread safety: as Strategy; steps are run by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/cluster/worker_spec.h"
#include "lockstep/strategies/mirrored.h"

namespace lockstep {

class Membership;

// How workers exchange values: tf.distribute's names. It never changes a result beyond its rounding.
enum class CollectiveCommunication : std::uint8_t {
  kAuto,  // kNccl where all replicas of all workers are on cards and NCCL is there, else kRing
  kRing,  // over Gloo's connections: each worker combines a part of an array, and sends it to the others; small arrays go to all.
          // Values of cards go through the host
  kNccl   // from card to card; refused where kAuto would not choose it
};
LOCKSTEP_API std::string_view to_string(CollectiveCommunication communication);  // "auto", "ring", "nccl"

// tf.distribute's CommunicationOptions.
struct CommunicationOptions {
  CollectiveCommunication implementation = CollectiveCommunication::kAuto;
  // Gradients are packed into buckets of about so many bytes; 0: one bucket. Absent: MirroredOptions::bytes_per_pack.
  std::optional<std::int64_t> bytes_per_pack = std::nullopt;
  // Values are combined in the order of the replicas' numbers, so that results do not depend on how replicas are spread over
  // workers. False: each worker combines those of its own replicas first, and arrays of more than 64 KiB go round in a ring; fewer
  // bytes travel where workers have several replicas, and the last bits depend on the number of workers and on bytes_per_pack. Over
  // NCCL it is always so.
  bool in_replica_order = true;
  // If another worker has not come to an exchange after this time, the group ends: DeadlineExceeded names it. 0: it is waited for.
  std::chrono::milliseconds timeout{0};
};

struct MultiWorkerOptions {
  // Absent: cluster_from_environment().
  std::optional<WorkerSpec> worker = std::nullopt;
  CommunicationOptions communication = {};
  // A name or address of this machine, without a port, at which the others reach it. Empty: that of this worker's address, else
  // 127.0.0.1.
  std::string host = {};
  // Where the first worker leaves word of its address, if the launcher does not tell; a folder that all see.
  std::string folder = {};
  // Proves that a worker belongs to the job (core/membership/membership.h). Empty: LOCKSTEP_SECRET of the environment, or none, and
  // then only addresses of one machine are accepted, unless `is_open`.
  std::string secret = {};
  bool is_open = false;
  // After this time all workers must have come.
  std::chrono::milliseconds start = std::chrono::minutes(5);
  // A worker that is silent for so long is lost.
  std::chrono::milliseconds lost = std::chrono::seconds(1);
  // A worker that waits for another one for so long says so, and again whenever the time has doubled: "worker:0 waits since 10.0 s
  // for worker:2 (10.0.0.3:2222): group_all_reduce 'grads' at train.cpp:41". 0: never. Without `tell`, on std::clog; `tell` is called
  // on a thread of the strategy, and must not throw.
  std::chrono::milliseconds slow = std::chrono::seconds(10);
  std::function<void(const std::string& line)> tell = {};
  // Of the runtime that the strategy makes. Its group "world" and its worker are the strategy's.
  RuntimeOptions runtime = {};
  // As of MirroredStrategy, on this worker's devices. Unspecified: the GPUs of this machine, in equal shares if several workers are
  // on it, as their addresses say or what the launcher has set (LOCAL_RANK and the like); cpu:0 where there is none. Its base has
  // no runtime.
  MirroredOptions mirrored = {};
};

class LOCKSTEP_API MultiWorkerMirroredStrategy : public MirroredStrategy {
 public:
  // Waits for all workers. Throws Error: kDeadlineExceeded names who has not come, kInvalidArgument what does not fit together.
  explicit MultiWorkerMirroredStrategy(MultiWorkerOptions options = {},
                                       SourceSite site = SourceSite::current());
  ~MultiWorkerMirroredStrategy() override;  // leaves
  std::string_view name() const override { return "MultiWorkerMirroredStrategy"; }

  // Who this worker is and why, and how it exchanges values: "worker:1, rank 1 of 2, ...; over Gloo: ...".
  const std::string& description() const;
  std::int64_t last_step() const;  // steps of functions that this worker has committed; 0: none
  void want_stop() noexcept;
  bool is_stop_wanted() const noexcept;
  // Null for one worker.
  Membership* membership() const;

 protected:
  void after_run(std::uint64_t steps, const Error* failure) const override;

 private:
  struct World;
  MultiWorkerMirroredStrategy(const std::shared_ptr<World>& world, const SourceSite& site);
  std::shared_ptr<World> world_;
};

// The older name.
using CollectiveAllReduceStrategy = MultiWorkerMirroredStrategy;

}  // namespace lockstep
