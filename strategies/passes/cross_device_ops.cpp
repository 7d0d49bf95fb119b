// strategies/passes/cross_device_ops.cpp - how the values of several devices become one: what an all-reduce
// is lowered to.
#include "lockstep/strategies/passes/cross_device_ops.h"

#include <algorithm>

#include "lockstep/core/device.h"
#include "lockstep/graph/ir/placement.h"
#include "lockstep/graph/ir/replica_nodes.h"

namespace lockstep {

namespace {

bool same_memory(std::span<const std::string> devices, const Topology* topology) {
  Memories memories(topology);
  return std::ranges::all_of(devices,
                             [&](const std::string& device) { return memories.same(device, devices[0]); });
}

}  // namespace

// --- what lower() sees

LowerContext::LowerContext(Rewriter& edit, NodeId node, std::vector<bool> is_read, const Topology* topology)
    : edit_(edit), node_(node), topology_(topology), is_read_(std::move(is_read)) {
  const Node& all_reduce = edit.graph().node(node);
  replicas_ = joined_replicas(all_reduce);
  tensors_ = all_reduce.inputs().size() / replicas_;
  reduce_ = parse_reduce_op(*all_reduce.find<std::string>("reduce"));
  for (std::size_t r = 0; r < replicas_; ++r) devices_.push_back(device_of(edit.graph(), input(r, 0)));
  given_.resize(replicas_ * tensors_);
  in_one_memory_ = same_memory(devices_, topology);
}

bool LowerContext::in_one_memory() const { return in_one_memory_; }

std::size_t LowerContext::slot(std::size_t replica, std::size_t tensor) const {
  if (replica >= replicas_ || tensor >= tensors_) {
    throw InvalidArgument(
        str("tensor ", tensor, " of replica ", replica, " is asked for, and the all-reduce has ", tensors_,
            " tensors of ", replicas_, " replicas, each counted from 0"),
        place_of(edit_.graph().node(node_)));
  }
  return replica * tensors_ + tensor;
}

const std::string& LowerContext::device(std::size_t replica) const {
  if (replica >= replicas_) {
    throw InvalidArgument(str("the device of replica ", replica, " is asked for, and the all-reduce has ",
                              replicas_, " replicas, counted from 0"),
                          place_of(edit_.graph().node(node_)));
  }
  return devices_[replica];
}

ValueId LowerContext::input(std::size_t replica, std::size_t tensor) const {
  return edit_.graph().node(node_).inputs()[slot(replica, tensor)];
}

bool LowerContext::is_read(std::size_t replica, std::size_t tensor) const {
  return is_read_[slot(replica, tensor)];
}

void LowerContext::give(std::size_t replica, std::size_t tensor, ValueId value) {
  given_[slot(replica, tensor)] = value;
}

std::span<const ValueId> LowerContext::given() const { return given_; }

std::vector<std::size_t> LowerContext::readers(std::size_t tensor) const {
  std::vector<std::size_t> replicas;
  for (std::size_t r = 0; r < replicas_; ++r) {
    if (is_read(r, tensor)) replicas.push_back(r);
  }
  return replicas;
}

std::vector<std::size_t> LowerContext::read_tensors() const {
  std::vector<std::size_t> tensors;
  for (std::size_t t = 0; t < tensors_; ++t) {
    if (!readers(t).empty()) tensors.push_back(t);
  }
  return tensors;
}

std::vector<ValueId> LowerContext::reduce_on(const std::string& device, ReduceOp op,
                                             std::span<const ValueId> values, std::size_t replicas,
                                             std::int32_t replica) const {
  const std::string base = edit_.graph().node(node_).name() + "/reduce";
  const NodeId made = edit_.insert({.op = "reduce_replicas",
                                    .name = base,
                                    .inputs = {values.begin(), values.end()},
                                    .attributes = {{"reduce", std::string(to_string(op))},
                                                   {"replicas", static_cast<std::int64_t>(replicas)}},
                                    .origin = node_,
                                    .replica = replica,
                                    .device = device,
                                    .why = why_});
  std::vector<ValueId> results;
  for (std::uint32_t i = 0; i < values.size() / replicas; ++i) results.push_back({made, i});
  return results;
}

ValueId LowerContext::divide_on(const std::string& device, ValueId sum, std::int32_t replica) const {
  const DType dtype = edit_.graph().spec(sum).dtype;
  const std::string name = edit_.graph().node(node_).name();
  const NodeId count =
      edit_.insert({.op = "constant",
                    .name = name + "/replicas",
                    .attributes = {{"value", Tensor::full(dtype, Shape{}, static_cast<double>(replicas_))}},
                    .origin = node_,
                    .replica = replica,
                    .device = device});
  return {edit_.insert({.op = "div",
                        .name = name + "/mean",
                        .inputs = {sum, {count, 0}},
                        .origin = node_,
                        .replica = replica,
                        .device = device}),
          0};
}

ValueId LowerContext::cast_on(const std::string& device, ValueId value, DType dtype,
                              std::int32_t replica) const {
  return {edit_.insert({.op = "cast",
                        .name = edit_.graph().node(node_).name() + "/cast",
                        .inputs = {value},
                        .attributes = {{"dtype", dtype}},
                        .origin = node_,
                        .replica = replica,
                        .device = device}),
          0};
}

ValueId LowerContext::copy(const std::string& device, ValueId value, std::int32_t replica) const {
  const std::string base = edit_.graph().node(node_).name() + "/copy";
  return {edit_.insert({.op = "copy",
                        .name = base,
                        .inputs = {value},
                        .origin = node_,
                        .replica = replica,
                        .device = device}),
          0};
}

ValueId LowerContext::copy_to(const std::string& device, ValueId value, std::int32_t replica) const {
  if (device_of(edit_.graph(), value) == device) return value;
  return copy(device, value, replica);
}

void LowerContext::give_all(std::size_t tensor, ValueId value, const std::string& device) {
  // The first reader on the value's own device gets the value itself instead of a copy.
  bool taken = false;
  const std::vector<std::size_t> all = readers(tensor);
  const auto here =
      std::ranges::find(all, device, [&](std::size_t r) -> const std::string& { return devices_[r]; });
  for (const std::size_t r : all) {
    const bool keeps = !taken && here != all.end() && r == *here;
    give(r, tensor, keeps ? value : copy(devices_[r], value, static_cast<std::int32_t>(r)));
    taken = taken || keeps;
  }
}

CrossDeviceOps::CrossDeviceOps() = default;
CrossDeviceOps::~CrossDeviceOps() = default;

namespace {

// The inputs of some tensors, replica by replica.
std::vector<ValueId> inputs_of(const LowerContext& c, std::span<const std::size_t> tensors, std::size_t first,
                               std::size_t last) {
  std::vector<ValueId> values;
  for (std::size_t r = first; r < last; ++r) {
    for (const std::size_t t : tensors) values.push_back(c.input(r, t));
  }
  return values;
}

DType dtype_of(const LowerContext& c, ValueId value) { return c.edit().graph().spec(value).dtype; }

// What steps of a reduction are computed in: one step rounds once by itself.
DType step_dtype(DType dtype, ReduceOp op) {
  const bool rounds = op == ReduceOp::kSum || op == ReduceOp::kMean || op == ReduceOp::kProd;
  return rounds && (dtype == DType::kF16 || dtype == DType::kBF16) ? DType::kF32 : dtype;
}

class SharedMemory final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "shared_memory"; }
  void lower(LowerContext& c) const override {
    const std::vector<std::size_t> tensors = c.read_tensors();
    if (tensors.empty()) return;
    const std::vector<ValueId> sums =
        c.reduce_on(c.device(0), c.reduce(), inputs_of(c, tensors, 0, c.replicas()), c.replicas());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::vector<std::size_t> readers = c.readers(tensors[i]);
      for (const std::size_t r : readers) {
        const bool first = r == readers[0];
        c.give(r, tensors[i], first ? sums[i] : c.copy(c.device(r), sums[i], static_cast<std::int32_t>(r)));
      }
    }
  }
};

class ReductionToOneDevice final : public CrossDeviceOps {
 public:
  explicit ReductionToOneDevice(std::string_view device)
      : device_(device.empty() ? std::string() : Device::parse(device).to_string()) {}
  std::string_view name() const override { return "reduction_to_one_device"; }
  void lower(LowerContext& c) const override {
    const std::vector<std::size_t> tensors = c.read_tensors();
    if (tensors.empty()) return;
    const std::string& device = device_.empty() ? c.device(0) : device_;
    std::vector<ValueId> values = inputs_of(c, tensors, 0, c.replicas());
    for (ValueId& value : values) value = c.copy_to(device, value);
    const std::vector<ValueId> sums = c.reduce_on(device, c.reduce(), values, c.replicas());
    for (std::size_t i = 0; i < tensors.size(); ++i) c.give_all(tensors[i], sums[i], device);
  }

 private:
  std::string device_;
};

class HierarchicalCopy final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "hierarchical_copy"; }
  void lower(LowerContext& c) const override {
    const std::vector<std::size_t> tensors = c.read_tensors();
    if (tensors.empty()) return;
    const std::size_t middle = (c.replicas() + 1) / 2;  // replicas 0 to middle - 1, and the others
    // A mean is the sum of everything, divided once: with groups, at the very end.
    const bool divides = c.reduce() == ReduceOp::kMean && c.replicas() > 2;
    const ReduceOp op = divides ? ReduceOp::kSum : c.reduce();
    std::vector<ValueId> halves = gather(c, op, tensors, 0, middle);
    const std::vector<ValueId> second = gather(c, op, tensors, middle, c.replicas());
    halves.insert(halves.end(), second.begin(), second.end());
    for (ValueId& value : halves) value = c.copy_to(c.device(0), value);
    std::vector<ValueId> sums = c.reduce_on(c.device(0), op, halves, 2);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (divides) sums[i] = c.divide_on(c.device(0), sums[i]);
      const DType dtype = dtype_of(c, c.input(0, tensors[i]));
      if (dtype_of(c, sums[i]) != dtype) sums[i] = c.cast_on(c.device(0), sums[i], dtype);
      scatter(c, tensors[i], sums[i], middle);
    }
  }

 private:
  // The values of a group combined on its first device.
  static std::vector<ValueId> gather(LowerContext& c, ReduceOp op, std::span<const std::size_t> tensors,
                                     std::size_t first, std::size_t last) {
    std::vector<ValueId> values = inputs_of(c, tensors, first, last);
    for (ValueId& value : values) {
      value = c.copy_to(c.device(first), value);
      const DType dtype = dtype_of(c, value), wide = step_dtype(dtype, op);
      if (c.replicas() > 2 && wide != dtype) value = c.cast_on(c.device(first), value, wide);
    }
    if (last - first == 1) return values;
    return c.reduce_on(c.device(first), op, values, last - first);
  }

  // Sends the sum by way of the first device of each group to the others of the group.
  static void scatter(LowerContext& c, std::size_t tensor, ValueId sum, std::size_t middle) {
    ValueId from[2] = {sum, sum};
    bool taken[2] = {false, false};
    for (const std::size_t r : c.readers(tensor)) {
      const std::size_t group = r < middle ? 0 : 1;
      const std::size_t leader = group == 0 ? 0 : middle;
      if (!taken[group] && group == 1)
        from[1] = c.copy(c.device(leader), sum, static_cast<std::int32_t>(leader));
      const bool keeps = !taken[group] && (r == leader || c.device(r) == c.device(leader));
      taken[group] = true;
      c.give(r, tensor, keeps ? from[group] : c.copy(c.device(r), from[group], static_cast<std::int32_t>(r)));
    }
  }
};

class Ring final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "ring"; }
  void lower(LowerContext& c) const override {
    const std::vector<std::size_t> tensors = c.read_tensors();
    if (tensors.empty()) return;
    const auto chunks = static_cast<std::int64_t>(c.replicas());
    const std::string base = c.edit().graph().node(c.node()).name();
    const bool one_memory = c.in_one_memory();
    std::vector<ValueId> parts;  // chunk by chunk
    for (std::size_t owner = 0; owner < c.replicas(); ++owner) {
      const std::vector<ValueId> own = one_memory ? chunk(c, "/chunk", owner, owner, tensors, 0, c.replicas())
                                                  : gathered_chunk(c, owner, tensors);
      parts.insert(parts.end(), own.begin(), own.end());
    }
    for (std::size_t r = 0; r < c.replicas(); ++r) join(c, r, tensors, parts, chunks, base);
  }

 private:
  // A part of the values of replicas [first, last), combined where replica `at` is.
  static std::vector<ValueId> chunk(LowerContext& c, std::string_view name, std::size_t index, std::size_t at,
                                    std::span<const std::size_t> tensors, std::size_t first,
                                    std::size_t last) {
    const NodeId made =
        c.edit().insert({.op = "reduce_chunk",
                         .name = str(c.edit().graph().node(c.node()).name(), name),
                         .inputs = inputs_of(c, tensors, first, last),
                         .attributes = {{"chunk", static_cast<std::int64_t>(index)},
                                        {"chunks", static_cast<std::int64_t>(c.replicas())},
                                        {"reduce", std::string(to_string(c.reduce()))},
                                        {"replicas", static_cast<std::int64_t>(last - first)}},
                         .origin = c.node(),
                         .replica = static_cast<std::int32_t>(at),
                         .device = c.device(at)});
    std::vector<ValueId> outputs;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) outputs.push_back({made, i});
    return outputs;
  }

  // Between memories a part is cut out where the value lies (the chunk of one replica), so that only parts
  // are copied.
  static std::vector<ValueId> gathered_chunk(LowerContext& c, std::size_t owner,
                                             std::span<const std::size_t> tensors) {
    std::vector<ValueId> slices;  // replica by replica
    for (std::size_t r = 0; r < c.replicas(); ++r) {
      const std::vector<ValueId> own = chunk(c, "/slice", owner, r, tensors, r, r + 1);
      slices.insert(slices.end(), own.begin(), own.end());
    }
    return c.reduce_on(c.device(owner), c.reduce(), slices, c.replicas(), static_cast<std::int32_t>(owner));
  }

  static void join(LowerContext& c, std::size_t replica, std::span<const std::size_t> tensors,
                   std::span<const ValueId> parts, std::int64_t chunks, const std::string& base) {
    std::vector<std::size_t> wanted;  // of `tensors`
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (c.is_read(replica, tensors[i])) wanted.push_back(i);
    }
    if (wanted.empty()) return;
    std::vector<ValueId> inputs;
    for (std::size_t chunk = 0; chunk < c.replicas(); ++chunk) {
      for (const std::size_t i : wanted) inputs.push_back(parts[chunk * tensors.size() + i]);
    }
    for (const std::size_t i : wanted) inputs.push_back(c.input(replica, tensors[i]));  // for the shape
    const NodeId made = c.edit().insert({.op = "join_chunks",
                                         .name = base + "/join",
                                         .inputs = inputs,
                                         .attributes = {{"chunks", chunks}},
                                         .origin = c.node(),
                                         .replica = static_cast<std::int32_t>(replica),
                                         .device = c.device(replica)});
    for (std::uint32_t i = 0; i < wanted.size(); ++i) c.give(replica, tensors[wanted[i]], {made, i});
  }
};

// What connects the devices: the reason of a no says which of them it does not.
Decision is_connected(std::span<const std::string> devices, const Topology* topology) {
  if (topology == nullptr) return Decision::no("nothing is known about the devices");
  const auto facts_of = [&](const std::string& device) -> const DeviceFacts* {
    if (!device.empty()) return topology->find(Device::parse(device));
    return topology->devices().empty() ? nullptr : &topology->devices().front();
  };
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceFacts* const facts = facts_of(devices[i]);
    if (facts == nullptr || facts->collectives != "nccl")
      return Decision::no(
          str("NCCL does not connect ", devices[i].empty() ? "the first device" : devices[i]));
    const Device &first = facts_of(devices[0])->device, &own = facts->device;
    if (own.job != first.job || own.task != first.task)
      return Decision::no(str(devices[0], " and ", devices[i], " are of different processes"));
    for (std::size_t j = 0; j < i; ++j) {
      if (facts_of(devices[j])->memory == facts->memory)
        return Decision::no(
            str(devices[j], " and ", devices[i], " are one card, and NCCL wants one for each replica"));
    }
  }
  return Decision::yes();
}

class Nccl final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "nccl"; }
  void lower(LowerContext& c) const override {
    const std::vector<std::size_t> tensors = c.read_tensors();
    if (tensors.empty()) return;
    std::vector<std::string> devices;
    for (std::size_t r = 0; r < c.replicas(); ++r) devices.push_back(c.device(r));
    const CrossDeviceChoice choice = choose_cross_device_ops(name(), devices, c.topology());
    const bool mean = c.reduce() == ReduceOp::kMean;
    if (choice.name != name()) {
      c.because(choice.reason);
      cross_device_ops(choice.name)->lower(c);
      return;
    }
    std::vector<ValueId> values;  // replica by replica
    for (std::size_t r = 0; r < c.replicas(); ++r) {
      for (const std::size_t t : tensors) {
        const ValueId own = c.input(r, t);
        const DType dtype = dtype_of(c, own), wide = step_dtype(dtype, c.reduce());
        values.push_back(wide == dtype ? own
                                       : c.cast_on(c.device(r), own, wide, static_cast<std::int32_t>(r)));
      }
    }
    const NodeId made = c.edit().insert(
        {.op = "all_reduce",
         .name = str(c.edit().graph().node(c.node()).name(), "/nccl"),
         .inputs = values,
         .attributes = {{"by", std::string(name())},
                        {"reduce", std::string(to_string(mean ? ReduceOp::kSum : c.reduce()))},
                        {"replicas", static_cast<std::int64_t>(c.replicas())}},
         .origin = c.node(),
         .device = c.device(0),
         .why = choice.reason});
    c.set_heir(made);
    for (std::size_t r = 0; r < c.replicas(); ++r) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (!c.is_read(r, tensors[i])) continue;
        const auto replica = static_cast<std::int32_t>(r);
        ValueId value{made, static_cast<std::uint32_t>(r * tensors.size() + i)};
        if (mean) value = c.divide_on(c.device(r), value, replica);
        const DType dtype = dtype_of(c, c.input(r, tensors[i]));
        if (dtype_of(c, value) != dtype) value = c.cast_on(c.device(r), value, dtype, replica);
        c.give(r, tensors[i], value);
      }
    }
  }
};

}  // namespace

CrossDeviceOpsPtr shared_memory() { return std::make_shared<SharedMemory>(); }
CrossDeviceOpsPtr reduction_to_one_device(std::string_view device) {
  return std::make_shared<ReductionToOneDevice>(device);
}
CrossDeviceOpsPtr hierarchical_copy() { return std::make_shared<HierarchicalCopy>(); }
CrossDeviceOpsPtr ring() { return std::make_shared<Ring>(); }
CrossDeviceOpsPtr nccl() { return std::make_shared<Nccl>(); }

CrossDeviceOpsPtr cross_device_ops(std::string_view name, std::string_view device) {
  if (name == "reduction_to_one_device") return reduction_to_one_device(device);
  if (!device.empty())
    throw InvalidArgument(
        str("a device is for reduction_to_one_device; ", name, " uses those of the replicas"));
  if (name == "shared_memory") return shared_memory();
  if (name == "hierarchical_copy") return hierarchical_copy();
  if (name == "ring") return ring();
  if (name == "nccl") return nccl();
  throw InvalidArgument(
      str("there are no cross-device ops '", name.substr(0, 60),
          "'; expected shared_memory, reduction_to_one_device, hierarchical_copy, ring or nccl; ",
          "as an option of a strategy or of lower-collectives also auto"));
}

std::ostream& operator<<(std::ostream& out, const CrossDeviceChoice& choice) {
  return out << choice.to_string();
}

CrossDeviceChoice choose_cross_device_ops(std::span<const std::string> devices, std::int64_t bytes,
                                          const Topology* topology) {
  constexpr std::int64_t kSmall = 64 << 10;
  const bool one_memory = same_memory(devices, topology);
  bool one_kind = true;
  for (const std::string& device : devices) {
    const auto kind = [](const std::string& text) {
      return text.empty() ? DeviceKind::kCpu : Device::parse(text).kind;
    };
    one_kind = one_kind && kind(device) == kind(devices[0]);
  }
  if (devices.size() < 2) return {"shared_memory", "there is one replica"};
  if (one_memory) return {"shared_memory", "all replicas lie in one memory"};
  if (!one_kind) return {"reduction_to_one_device", "the devices are of different kinds"};
  if (is_connected(devices, topology))
    return {"nccl", str("NCCL connects all ", devices.size(), " of them, each on a card of its own")};
  if (bytes >= 0 && bytes < kSmall)
    return {"reduction_to_one_device", str(bytes, " bytes are too few to be worth cutting; below ", kSmall)};
  if (devices.size() == 2)
    return {"reduction_to_one_device", "between two devices every way moves the same bytes"};
  return {"ring", str("each of ", devices.size(), " devices moves its part only")};
}

CrossDeviceChoice choose_cross_device_ops(std::string_view named, std::span<const std::string> devices,
                                          const Topology* topology) {
  if (named == "nccl") {
    if (devices.size() < 2) return {"shared_memory", "nccl was asked for, and there is one replica"};
    if (same_memory(devices, topology))
      return {"shared_memory", "nccl was asked for, and all replicas lie in one memory"};
    if (const Decision connected = is_connected(devices, topology); !connected)
      return {"reduction_to_one_device", str("nccl was asked for: ", connected.reason())};
  }
  return {std::string(named), "the options name it"};
}

std::string CrossDeviceChoice::to_string() const { return name + ": " + reason; }

}  // namespace lockstep
