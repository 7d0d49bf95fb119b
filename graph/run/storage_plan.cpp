// graph/run/storage_plan.cpp - which memory every value of a plan has, while the plan is made.
#include "lockstep/graph/run/internal/storage_plan.h"

#include <algorithm>
#include <unordered_map>

namespace lockstep::internal {

std::uint32_t StoragePlan::arena_of(const std::string& device) {
  if (!arenas_.empty() && device == last_name_) return last_arena_;
  const auto [found, fresh] = arenas_.try_emplace(device, 0);
  if (fresh) {
    const Topology& topology = runtime_.topology();
    const DeviceFacts* facts =
        device.empty() ? &topology.devices().front() : &topology.facts(Device::parse(device));
    const auto known = std::ranges::find(facts_, facts);
    found->second = static_cast<std::uint32_t>(known - facts_.begin());
    if (known == facts_.end()) {
      facts_.push_back(facts);
      plan_.arenas.push_back(facts->device);
    }
  }
  last_name_ = device;
  last_arena_ = found->second;
  return last_arena_;
}

std::uint32_t StoragePlan::arena_in(MemoryId memory) {
  const auto known = std::ranges::find(facts_, memory, &DeviceFacts::memory);
  if (known != facts_.end()) return static_cast<std::uint32_t>(known - facts_.begin());
  const auto& devices = runtime_.topology().devices();
  const auto device = std::ranges::find(devices, memory, &DeviceFacts::memory);
  LOCKSTEP_CHECK(device != devices.end(), "no device computes in memory ", memory.value);
  return arena_of(device->device.to_string());
}

std::uint32_t StoragePlan::add_room(std::int64_t bytes, std::uint32_t arena, std::uint32_t writer) {
  Interval interval;
  interval.bytes = bytes;
  interval.arena = arena;
  interval.writer = writer;
  intervals_.push_back(std::move(interval));
  return add({.location = {Location::Kind::kArena, arena, 0},
              .bytes = bytes,
              .memory = memory_of(arena),
              .interval = static_cast<std::int64_t>(intervals_.size() - 1)});
}

std::uint32_t StoragePlan::add_constant(const Tensor& value) {
  plan_.constants.push_back(value);
  const auto index = static_cast<std::uint32_t>(plan_.constants.size() - 1);
  return add({.location = {Location::Kind::kConstant, index, 0},
              .bytes = num_bytes(value.spec()),
              .memory = value.memory()});
}

std::uint32_t StoragePlan::constant_in(std::uint32_t constant, MemoryId memory) {
  const auto [found, fresh] = constants_.try_emplace({constant, memory}, 0);
  if (fresh) {
    const Tensor& value = plan_.constants[storages_[constant].location.index];
    const Device& device = plan_.arenas[arena_in(memory)];
    found->second = add_constant(value.to(runtime_.pool(device)));
  }
  return found->second;
}

std::int64_t StoragePlan::add_scratch(std::int64_t bytes, std::uint32_t arena, std::uint32_t first,
                                      std::uint32_t last) {
  Interval scratch;
  scratch.bytes = bytes;
  scratch.arena = arena;
  scratch.writer = first;
  scratch.readers.push_back(last);
  intervals_.push_back(std::move(scratch));
  return static_cast<std::int64_t>(intervals_.size() - 1);
}

void StoragePlan::offer_in_place(const Node& node, std::span<const StorageUse> inputs,
                                 std::span<const StorageUse> outputs) {
  if (outputs.size() > 1 && node.regions().empty()) {
    // Output i over input i, if no other input has the same memory: that input might be read after output i is
    // written.
    std::unordered_map<std::uint32_t, std::size_t> uses;
    for (const StorageUse& input : inputs) ++uses[input.storage];
    for (std::size_t i = 0; i < std::min(inputs.size(), outputs.size()); ++i) {
      if (uses[inputs[i].storage] == 1) offer(inputs[i], outputs[i]);
    }
    return;
  }
  // An update by rows reads its rows in another order than it writes them: it may only write over the variable.
  const auto& update = node.op().traits.updates_variable;
  const std::size_t count = update && update->indices ? 1 : inputs.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (offer(inputs[i], outputs[0])) return;
  }
}

// Only room in the same arena can be taken over.
bool StoragePlan::offer(const StorageUse& input, const StorageUse& output) {
  const std::int64_t interval = storages_[input.storage].interval;
  if (interval < 0 || !(*input.spec == *output.spec)) return false;
  intervals_[static_cast<std::size_t>(storages_[output.storage].interval)].in_place_of = interval;
  return true;
}

// Rooms that one stream alone uses go to arenas of their own. What a run puts on that stream comes after all that the run before
// put there, so contexts can share them: if a run has put everything on its streams before the next one begins, since it
// holds a lock that the other waits for.
void StoragePlan::share_rooms(std::span<Interval> rooms) {
  plan_.first_shared_arena = plan_.arenas.size();
  const bool one_by_one =
      plan_.draws_random || std::ranges::any_of(plan_.variables, &PlannedVariable::written);
  if (!plan_.runs_ahead || !one_by_one) return;
  std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> shared;  // by arena and stream
  for (Interval& room : rooms) {
    const std::int32_t stream = plan_.phases[room.writer].stream;
    const auto is_on_it = [&](std::uint32_t reader) { return plan_.phases[reader].stream == stream; };
    if (stream < 0 || !std::ranges::all_of(room.readers, is_on_it)) continue;
    const auto [found, fresh] =
        shared.try_emplace({room.arena, stream}, static_cast<std::uint32_t>(plan_.arenas.size()));
    if (fresh) plan_.arenas.push_back(Device(plan_.arenas[room.arena]));
    room.arena = found->second;
  }
}

void StoragePlan::lay_out(const DeviceOrder& order) {
  if (plan_.arenas.empty()) arena_of({});
  // Values that lie in results need no memory of the plan.
  std::vector<std::int64_t> used(intervals_.size(), -1);
  std::vector<Interval> needed;
  const auto need = [&](std::int64_t interval) {
    std::int64_t& number = used[static_cast<std::size_t>(interval)];
    if (number >= 0) return;
    number = static_cast<std::int64_t>(needed.size());
    needed.push_back(intervals_[static_cast<std::size_t>(interval)]);
  };
  for (const Storage& storage : storages_) {
    if (storage.interval >= 0 && storage.location.kind == Location::Kind::kArena) need(storage.interval);
  }
  for (const PlannedPhase& call : plan_.phases) {
    if (call.scratch >= 0) need(call.scratch);
  }
  for (Interval& interval : needed) {
    if (interval.in_place_of >= 0)
      interval.in_place_of = used[static_cast<std::size_t>(interval.in_place_of)];
  }
  share_rooms(needed);
  plan_.memory = plan_memory(needed, plan_.phases.size(), plan_.clusters, plan_.arenas.size(), order);
  const auto placed = [&](std::int64_t interval) -> const Interval& {
    return needed[static_cast<std::size_t>(used[static_cast<std::size_t>(interval)])];
  };
  for (std::size_t i = 0; i < plan_.args.size(); ++i) {
    const Storage& storage = storages_[arg_storage_[i]];
    Location& location = plan_.args[i].location = storage.location;
    if (location.kind != Location::Kind::kArena) continue;
    location.index = placed(storage.interval).arena;
    location.offset = placed(storage.interval).offset;
  }
  plan_.scratch.resize(plan_.phases.size());
  for (std::size_t i = 0; i < plan_.phases.size(); ++i) {
    if (plan_.phases[i].scratch < 0) continue;
    const Interval& room = placed(plan_.phases[i].scratch);
    plan_.scratch[i] = {room.arena, room.offset};
  }
}

}  // namespace lockstep::internal
