// core/membership/membership.h - the workers of a job, who know of each other: who they are, who is lost, and whether they agree.
//
//   const WorkerSpec me = cluster_from_environment().worker;
//   const auto membership = Membership::join({.worker = me, .host = "10.0.0.2", .secret = secret}, deadline_in(5min));
//   auto comm = connect_gloo({.rank = me.rank, .size = me.count, .host = "10.0.0.2"}, *membership);   // it is a Rendezvous
//   membership->when_lost([&](const LostMember& lost) { comm->abort(lost.error()); });
//
// Each worker has one connection to the worker of rank 0, beside those that carry data. Both sides send signs of life. A worker is
// lost if its connection ends, or if it was silent for MembershipSpec::lost. The worker of rank 0 tells all others; each of them
// calls when_lost() and ends what waits here. One that leaves by leave() is not lost. If the worker of rank 0 is lost, or if one is
// cut off from it, each finds that by itself.
//
//   order     join() returns after all workers have come together. A worker that ends before that may come again. Afterwards nobody
//             may join; a new generation of the job can, after this one has ended.
//   secret    proves that a worker belongs to the job, and seals every message (HMAC-SHA256); nothing is encrypted. Without one
//             only addresses of this machine are accepted, unless `is_open`.
//   failure   Error. kUnavailable: somebody is lost or has left, or this process stood still and the others went on without it;
//             kInvalidArgument: it may not join, or members differ; kDeadlineExceeded: names who has not come.
//
// Several jobs on one machine need different ports. A child that fork() makes has no part in the membership of its parent.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/cluster/worker_spec.h"
#include "lockstep/core/communicators/rendezvous.h"
#include "lockstep/core/error.h"

namespace lockstep {

struct Participant {
  std::string task;     // "worker:2"
  std::string address;  // where it is reached, for people
};

// What a worker does, for the status of the job.
struct MemberProgress {
  std::int64_t step = -1;  // the last one it has committed
  int waits_for = -1;      // a rank, or nobody
  std::chrono::milliseconds since{0};
  std::string what = {};  // "all_reduce 'grads' at train.cpp:41"
};

struct LOCKSTEP_API LostMember {
  int rank = 0;
  Participant who = {};
  std::string why = {};
  std::int64_t last_step = -1;    // that it has told of
  std::string to_string() const;  // "worker:2 (10.0.0.3:2222) is lost: silent for 1.0 s"
  Error error() const;            // kUnavailable
};

struct MembershipSpec {
  WorkerSpec worker = {};  // its coordinator is where the worker of rank 0 listens
  // A name or address of this machine, which the others see in messages. The worker of rank 0 listens there if no coordinator is
  // given.
  std::string host = "127.0.0.1";
  // Where the worker of rank 0 leaves word of its address, if no coordinator is given; a folder that all see.
  std::filesystem::path folder = {};
  int replicas = 1;    // of this worker: all must have as many
  int generation = 0;  // of the job: 1 after all have ended once, and so on
  std::string secret = {};
  bool is_open = false;  // no secret is needed, whatever the address
  std::chrono::milliseconds beat{200};
  std::chrono::milliseconds lost{1000};  // at least three beats
};

class LOCKSTEP_API Membership final : public Rendezvous {
 public:
  // Waits for all workers.
  static std::unique_ptr<Membership> join(const MembershipSpec& spec, Deadline deadline = {},
                                          const std::stop_token& stop = {});
  ~Membership() override;  // leaves

  int rank() const;
  int size() const;
  const Participant& participant(int rank) const;

  // At most one function. It is called once, on a thread of the membership; or at once, if somebody is lost already. It must
  // neither throw nor call leave().
  void when_lost(std::function<void(const LostMember&)> call);
  // Throws what has ended the membership, if something has.
  void check() const;

  // Whether all workers claim the same `text` of a subject, such as the schedule of a program. All have to ask, in any order, and
  // once about a subject. Throws InvalidArgument on all workers that ask; it shows the first line that differs, and whose it is.
  void agree(const std::string& subject, std::string text, Deadline deadline = {});

  void report(const MemberProgress& progress);
  // The same, asked for before each sign of life, on a thread of the membership. It must not call the membership. Null: no more.
  void report_by(std::function<MemberProgress()> ask);
  // Lines for people about all workers, from the worker of rank 0.
  static std::string status(const MembershipSpec& spec, Deadline deadline);

  // In order: the others do not take it for lost. The worker of rank 0 waits up to two seconds for the others to leave.
  void leave() noexcept;

 private:
  class State;
  explicit Membership(std::shared_ptr<State> state);
  bool put(const std::string& key, std::string_view bytes) override;
  bool look(const std::string& key, std::string* bytes) override;
  void wait_for(const std::string& key, Deadline deadline) override;

  std::shared_ptr<State> state_;
};

}  // namespace lockstep
