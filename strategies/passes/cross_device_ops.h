// strategies/passes/cross_device_ops.h - how the values of several devices become one: what an all-reduce is
// lowered to.
//
//   lower-collectives(ops=ring)                            // by name, from text
//   class MyOps : public CrossDeviceOps { ... lower(LowerContext& c) const override { ... } };
//   MirroredStrategy s({.custom_cross_device_ops = std::make_shared<MyOps>()});      // or make_lower_collectives({.custom = ...})
//
// lower() gets one all-reduce of P replicas and T tensors and makes nodes that say what each replica reads
// instead. All of them are ordinary nodes: seen in dumps, placed, copied between memories by insert-copies,
// planned like others.
//
//   name                      nodes, for each all-reduce                                    bytes read and written, of N each
//   shared_memory             one reduce_replicas; a copy for each further replica that     P N read, N written; 2 N per copy
//                             still reads a value of its own
//   reduction_to_one_device   the values copied to one device, reduced there, copied back   all over one device: 2 (P-1) N
//   hierarchical_copy         two groups, each reduced on its first device; both sums       half of that over each of the two
//                             combined; copied back the same way
//   ring                      each device reduces its 1/P of every tensor (reduce_chunk),   2 (P-1)/P N over each device
//                             then the parts are joined on each (join_chunks); between
//                             memories parts are cut first, so that nothing else travels
//   nccl                      one all_reduce[by="nccl"], whose values stay where they     as NCCL does it; of 16-bit sums
//                             are; a division for each value if it is a mean              twice the bytes
//
// All give the bits of the all-reduce: elements are combined in the order of the replicas; a mean is their
// sum and one division. The exceptions are hierarchical_copy with three or more replicas, which sums the
// groups' sums: ((0 + 1) + (2 + 3)); the same on every replica and in every run, but rounded at other places;
// and nccl, which has an order of its own: equal on all replicas, and the same in every run. Both combine sums, means and
// products of f16 and bf16 in f32, between casts, so that these overflow nowhere else and round once.
//
// nccl is for replicas on cards that NCCL connects (DeviceFacts::collectives), each on one of its own. For
// others it falls back to reduction_to_one_device, or to shared_memory where all replicas are in one memory;
// nodes say why. The tensors of one all-reduce are the pack: bucket-all-reduce, or the
// options bytes_per_pack and num_packs of a strategy, decide how many there are.
//
// Thread safety: stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/topology.h"
#include "lockstep/graph/ops/collectives.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {

// One joined all-reduce. Valid during lower().
class LOCKSTEP_API LowerContext {
 public:
  // `is_read` says for each output of the node whether anything reads it.
  // `topology`: of the machine the graph is for; null: not known.
  LowerContext(Rewriter& edit, NodeId node, std::vector<bool> is_read, const Topology* topology = nullptr);

  Rewriter& edit() const { return edit_; }
  NodeId node() const { return node_; }
  std::size_t replicas() const { return replicas_; }
  std::size_t tensors() const { return tensors_; }  // of each replica
  ReduceOp reduce() const { return reduce_; }
  // Here and below a replica or tensor that does not exist is InvalidArgument.
  const std::string& device(std::size_t replica) const;  // empty: not placed
  bool in_one_memory() const;                            // do all replicas compute in one?
  const Topology* topology() const { return topology_; }
  ValueId input(std::size_t replica, std::size_t tensor) const;
  // Does anything read what the all-reduce gives this replica? If not, give() need not be called.
  bool is_read(std::size_t replica, std::size_t tensor) const;
  std::vector<std::size_t> readers(std::size_t tensor) const;  // replicas
  std::vector<std::size_t> read_tensors() const;               // tensors that any replica reads

  // --- nodes that stem from the all-reduce
  // Combines the values, which are listed replica by replica; one output for each tensor. `replica` is the
  // one the node belongs to; -1: none.
  std::vector<ValueId> reduce_on(const std::string& device, ReduceOp op, std::span<const ValueId> values,
                                 std::size_t replicas, std::int32_t replica = -1) const;
  // Divides by the number of replicas.
  ValueId divide_on(const std::string& device, ValueId sum, std::int32_t replica = -1) const;
  // As another dtype, where it lies.
  ValueId cast_on(const std::string& device, ValueId value, DType dtype, std::int32_t replica = -1) const;
  // The value on another device; the value itself if it is there already.
  ValueId copy_to(const std::string& device, ValueId value, std::int32_t replica = -1) const;
  ValueId copy(const std::string& device, ValueId value, std::int32_t replica) const;  // in any case

  // Nodes that combine values from now on say this in their provenance.
  void because(std::string why) { why_ = std::move(why); }

  // A collective that was made has the place of the all-reduce in the order of all of them (order-collectives).
  void set_heir(NodeId collective) { heir_ = collective; }
  NodeId heir() const { return heir_; }

  // Sets what the replica reads from now on.
  void give(std::size_t replica, std::size_t tensor, ValueId value);
  // The value itself goes to the first replica on `device` that reads it; the others get copies on their
  // devices.
  void give_all(std::size_t tensor, ValueId value, const std::string& device);
  std::span<const ValueId> given() const;  // replica by replica

 private:
  std::size_t slot(std::size_t replica, std::size_t tensor) const;  // replica by replica

  Rewriter& edit_;
  NodeId node_;
  std::size_t replicas_, tensors_;
  ReduceOp reduce_;
  const Topology* topology_;
  std::vector<bool> is_read_;
  std::vector<std::string> devices_;
  bool in_one_memory_ = false;
  std::vector<ValueId> given_;
  std::string why_;
  NodeId heir_;
};

class LOCKSTEP_API CrossDeviceOps {
 public:
  CrossDeviceOps();
  virtual ~CrossDeviceOps();
  CrossDeviceOps(const CrossDeviceOps&) = delete;
  CrossDeviceOps& operator=(const CrossDeviceOps&) = delete;
  virtual std::string_view name() const = 0;
  // Makes the nodes and gives each replica that reads a tensor its value. All replicas must get equal bits: a
  // second prove-sync checks that.
  virtual void lower(LowerContext& context) const = 0;
};

using CrossDeviceOpsPtr = std::shared_ptr<const CrossDeviceOps>;
LOCKSTEP_API CrossDeviceOpsPtr shared_memory();
LOCKSTEP_API CrossDeviceOpsPtr
reduction_to_one_device(std::string_view device = {});  // empty: that of replica 0
LOCKSTEP_API CrossDeviceOpsPtr hierarchical_copy();
LOCKSTEP_API CrossDeviceOpsPtr ring();
LOCKSTEP_API CrossDeviceOpsPtr nccl();
// By one of the names above; throws InvalidArgument that lists them. `device` is for reduction_to_one_device.
LOCKSTEP_API CrossDeviceOpsPtr cross_device_ops(std::string_view name, std::string_view device = {});

// What "auto" chooses, and why. Depends on the devices, their memories and the size alone. `bytes`: of all
// tensors; -1: not known. `topology`: as for LowerContext.
struct CrossDeviceChoice {
  std::string name;
  std::string reason;
  LOCKSTEP_API std::string to_string() const;
};
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const CrossDeviceChoice& choice);  // as to_string()
LOCKSTEP_API CrossDeviceChoice choose_cross_device_ops(std::span<const std::string> devices,
                                                       std::int64_t bytes,
                                                       const Topology* topology = nullptr);
// What becomes of ops that were named: the same name, or what they fall back to.
LOCKSTEP_API CrossDeviceChoice choose_cross_device_ops(std::string_view named,
                                                       std::span<const std::string> devices,
                                                       const Topology* topology = nullptr);

}  // namespace lockstep
