// graph/run/internal/storage_plan.h - which memory every value of a plan has, while the plan is made.
//
// A Storage is a piece of memory: a feed, a result, a variable, a constant, or room in an arena, which is one
// block of a device's memory. Several values may have one storage (aliases). lay_out() decides which rooms of
// an arena share bytes. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/run/internal/memory_plan.h"
#include "lockstep/graph/run/internal/plan.h"

namespace lockstep::internal {

struct Storage {
  Location location;
  std::int64_t bytes = 0;
  MemoryId memory = kHostMemory;
  std::int64_t interval = -1;  // the number of its Interval, if it lies in an arena; else -1
  bool deferred = false;       // a call that may outlive the run writes it
  std::int32_t copy_of = -1;   // as PlannedArg::copy_of
};

// What a call reads or writes.
struct StorageUse {
  std::uint32_t storage;
  const TensorSpec* spec;
};

class StoragePlan {
 public:
  // The arenas, constants and arguments go into the plan.
  StoragePlan(const Runtime& runtime, Plan& plan) : runtime_(runtime), plan_(plan) {}

  // --- places
  // The arena of a device; empty: the first one.
  std::uint32_t arena_of(const std::string& device);
  const DeviceFacts& facts(std::uint32_t arena) const { return *facts_[arena]; }
  MemoryId memory_of(std::uint32_t arena) const { return facts_[arena]->memory; }
  MemoryId memory_of(const std::string& device) { return memory_of(arena_of(device)); }
  std::uint32_t arena_in(MemoryId memory);

  // --- storage
  const Storage& operator[](std::uint32_t storage) const { return storages_[storage]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(storages_.size()); }
  void reserve(std::size_t storages) {
    storages_.reserve(storages);
    intervals_.reserve(storages);
  }
  std::uint32_t add(const Storage& storage) {
    storages_.push_back(storage);
    return size() - 1;
  }
  // Room of its own, written by the phase `writer`.
  std::uint32_t add_room(std::int64_t bytes, std::uint32_t arena, std::uint32_t writer);
  std::uint32_t add_constant(const Tensor& value);
  // The constant in another memory: put there now, once.
  std::uint32_t constant_in(std::uint32_t constant, MemoryId memory);
  // The call that writes it may outlive the run.
  void set_deferred(std::uint32_t storage) { storages_[storage].deferred = true; }
  // Its room takes a copy of the feed, and nothing else.
  void set_copy_of(std::uint32_t storage, std::uint32_t feed) {
    storages_[storage].copy_of = static_cast<std::int32_t>(feed);
  }
  // What is written into its room is written right into the result.
  void turn_into(std::uint32_t storage, const Location& result) { storages_[storage].location = result; }
  // Tells the arguments where their storages are by now; rooms in arenas have no offsets yet.
  void place_arguments() {
    for (std::size_t i = 0; i < plan_.args.size(); ++i) {
      plan_.args[i].location = storages_[arg_storage_[i]].location;
      plan_.args[i].copy_of = storages_[arg_storage_[i]].copy_of;
    }
  }
  std::span<const std::uint32_t> readers_of(std::uint32_t storage) const {
    const std::int64_t interval = storages_[storage].interval;
    if (interval < 0) return {};
    const auto& readers = intervals_[static_cast<std::size_t>(interval)].readers;
    return {readers.begin(), readers.end()};
  }

  // --- lifetimes
  void add_reader(std::uint32_t storage, std::uint32_t phase) {
    const std::int64_t interval = storages_[storage].interval;
    if (interval < 0) return;
    auto& readers = intervals_[static_cast<std::size_t>(interval)].readers;
    if (readers.empty() || readers.back() != phase) readers.push_back(phase);
  }
  // Room that only the phases from `first` to `last` need; returns its interval.
  std::int64_t add_scratch(std::int64_t bytes, std::uint32_t arena, std::uint32_t first, std::uint32_t last);
  void add_argument(const StorageUse& use) {
    plan_.args.push_back({storages_[use.storage].location, use.spec});
    arg_storage_.push_back(use.storage);
  }
  // Lets the call write an output over an input that ends there, as the node's op allows: see
  // OpTraits::in_place. Kernels of nodes with regions allow output 0 over any input.
  void offer_in_place(const Node& node, std::span<const StorageUse> inputs,
                      std::span<const StorageUse> outputs);

  // Once the plan has its clusters: gives every room its bytes.
  void lay_out(const DeviceOrder& order);

 private:
  bool offer(const StorageUse& input, const StorageUse& output);
  void share_rooms(std::span<Interval> rooms);

  const Runtime& runtime_;
  Plan& plan_;
  NameMap<std::uint32_t> arenas_;  // by name of a device
  std::string last_name_;          // that was asked for: nodes of one device come one after another
  std::uint32_t last_arena_ = 0;
  std::vector<const DeviceFacts*> facts_;                                  // by arena
  std::map<std::pair<std::uint32_t, MemoryId>, std::uint32_t> constants_;  // elsewhere: by storage
  std::vector<Storage> storages_;
  std::vector<Interval> intervals_;
  std::vector<std::uint32_t> arg_storage_;  // by argument
};

}  // namespace lockstep::internal
