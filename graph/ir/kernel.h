// graph/ir/kernel.h - the context in which a kernel runs, and how it declares that its work can be split.
//
// A kernel computes all outputs of one node, or one shard of them. It reads inputs and writes outputs in
// place: the memory is planned, aligned and allocated before the call. It does not allocate per call if that
// can be avoided, keeps no state between calls, and reports a failure by throwing (an infallible kernel never
// throws).
//
// Splitting: a Split says how many independent shards the work of one node has. It follows from shapes alone,
// never from the number of threads, so that results do not depend on that number. Shard i of n computes its
// part; if `finish` is set, one more call with is_finish() follows after all shards (to combine partial
// results kept in scratch()). Thread safety: several threads call one kernel at once, each with a
// KernelContext of its own.
//
// Deferring: a kernel whose KernelDef says `deferred` may return before its work is done:
//
//   [&engine](KernelContext& c) {
//     engine.read_into(c.output(0), c.defer());   // the engine signals the Completion when it is done
//   };
//
// Nodes that need the outputs wait until then, without keeping a thread; others run meanwhile. Until the
// signal the memory of inputs, outputs and scratch stays as it is, even if the run has failed by then and its
// program is gone. The KernelContext itself and run() may only be used before the kernel returns: copy the
// deadline, for example. A kernel that throws after defer() has failed, and its Completion is not signalled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/steady_time.h"
#include "lockstep/core/completion.h"
#include "lockstep/core/error.h"
#include "lockstep/core/random.h"
#include "lockstep/core/shape.h"

namespace lockstep {

class Observer;
class Stream;

namespace internal {
class Deferral;
class Flights;
class GroupRounds;
}  // namespace internal

struct Split {
  std::int64_t shards = 1;
  std::size_t scratch_bytes = 0;  // one block shared by all shards of a run of the node
  bool finish = false;
};

// The memory of a tensor, and its known spec.
struct TensorArg {
  void* data = nullptr;
  const TensorSpec* spec = nullptr;
};

// Shared by all kernels during one run of a program.
struct RunInfo {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  // These may end the run early; null: nothing does.
  const std::stop_token* cancel = nullptr;
  const SteadyTime* deadline = nullptr;
  bool synchronous = false;  // each call of a device is waited for (RunOptions::synchronous)
  // Told of the nodes that run; null: no observer.
  Observer* observer = nullptr;
  // For the library only: the deferred calls of the run around this one; its rounds of groups, and whether it votes for them at
  // its gate, which a run inside a node does not.
  internal::Flights* flights = nullptr;
  internal::GroupRounds* rounds = nullptr;
  bool votes = false;

  // Long-running kernels call this between two pieces of work: throws Error (kCancelled, kDeadlineExceeded)
  // if the run is to end early.
  LOCKSTEP_API void check_stop() const;
};

// What a kernel of a device with streams is given besides its arguments, in the memory of the device.
struct DeviceBlocks {
  // Seed and step of the run, two std::uint64_t: they change from run to run, and a recorded call keeps its
  // arguments. Null: no kernel of the plan draws random numbers.
  const void* run = nullptr;
  // A std::uint64_t. A kernel there cannot throw: one that finds data which it refuses, such as an index out
  // of range, writes the smallest refused(position) of all positions that it refuses, by atomic minimum, and
  // goes on. Then the run throws before its commit. Null: no op of the plan refuses data (OpTraits::refuses).
  void* refusal = nullptr;
  std::uint32_t number = 0;  // of the call
  // Of a call that commits, a std::uint64_t: the kernel does nothing unless it is all ones. Null: it commits.
  const void* decision = nullptr;
  std::uint64_t refused(std::uint32_t position) const { return (std::uint64_t{number} << 32U) | position; }
};

class LOCKSTEP_API KernelContext {
 public:
  KernelContext() = default;
  KernelContext(std::span<const TensorArg> inputs, std::span<const TensorArg> outputs, const RunInfo* run)
      : inputs_(inputs), outputs_(outputs), run_(run) {}

  std::size_t num_inputs() const { return inputs_.size(); }
  std::size_t num_outputs() const { return outputs_.size(); }
  const TensorSpec& input_spec(std::size_t i) const { return *inputs_[i].spec; }
  const TensorSpec& output_spec(std::size_t i) const { return *outputs_[i].spec; }
  const void* input(std::size_t i) const { return inputs_[i].data; }
  void* output(std::size_t i) const { return outputs_[i].data; }
  // Typed contents; throw InvalidArgument if T is not the dtype.
  template <class T>
  std::span<const T> input(std::size_t i) const {
    check_dtype(inputs_[i], dtype_of<T>);
    return {static_cast<const T*>(inputs_[i].data),
            static_cast<std::size_t>(inputs_[i].spec->shape.num_elements())};
  }
  template <class T>
  std::span<T> output(std::size_t i) const {
    check_dtype(outputs_[i], dtype_of<T>);
    return {static_cast<T*>(outputs_[i].data),
            static_cast<std::size_t>(outputs_[i].spec->shape.num_elements())};
  }

  std::int64_t shard() const { return shard_; }
  std::int64_t num_shards() const { return shards_; }
  bool is_finish() const { return shard_ == shards_; }
  void* scratch() const { return scratch_; }
  // This shard's part [begin, end) of `total` items cut as evenly as possible. Long parts begin at multiples
  // of kUnit items, so that in an array that begins on a cache line no two shards share a line and vectors do
  // not straddle lines.
  static constexpr std::int64_t kUnit = 64;
  std::pair<std::int64_t, std::int64_t> range(std::int64_t total) const {
    if (shards_ == 1) return {0, total};  // saves divisions, which small tensors would notice
    const bool is_long = total / shards_ >= kLongPart;
    const auto start = [&](std::int64_t shard) {
      const std::int64_t even = total * shard / shards_;
      return is_long && shard < shards_ ? even - even % kUnit : even;
    };
    return {start(shard_), start(shard_ + 1)};
  }

  int replica() const { return replica_; }  // 0 if nothing is replicated
  const RunInfo& run() const { return *run_; }
  RandomStream random(std::uint64_t key) const {
    return {run_->seed, key, static_cast<std::uint32_t>(replica_), run_->step};
  }

  // This call goes on after the kernel has returned, until the Completion is signalled. At most once a call.
  // Throws FailedPrecondition if the kernel's KernelDef does not say `deferred`, and if it is called twice.
  Completion& defer();
  // Where a kernel of a device with streams puts its work (core/compute_device.h); null on other devices.
  // Such a kernel returns at once: what it was given stays as it is until the work is done.
  Stream* stream() const { return stream_; }
  // What such a kernel reads and writes there besides its arguments.
  const DeviceBlocks& blocks() const { return blocks_; }

  void set_shard(std::int64_t shard, std::int64_t shards, void* scratch) {
    shard_ = shard;
    shards_ = shards;
    scratch_ = scratch;
  }
  void set_replica(int replica) { replica_ = replica; }
  void set_deferral(internal::Deferral* deferral) { deferral_ = deferral; }
  void set_stream(Stream* stream, const DeviceBlocks& blocks) {
    stream_ = stream;
    blocks_ = blocks;
  }

 private:
  static void check_dtype(const TensorArg& arg, DType wanted);

  static constexpr std::int64_t kLongPart = 1024;  // items

  std::span<const TensorArg> inputs_;
  std::span<const TensorArg> outputs_;
  const RunInfo* run_ = nullptr;
  void* scratch_ = nullptr;
  std::int64_t shard_ = 0;
  std::int64_t shards_ = 1;
  int replica_ = 0;
  internal::Deferral* deferral_ = nullptr;  // null: it may not defer
  Stream* stream_ = nullptr;
  DeviceBlocks blocks_;
};

}  // namespace lockstep
