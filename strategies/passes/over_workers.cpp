// strategies/passes/over_workers.cpp - collectives over the replicas of all workers become calls of the workers' group.
#include "lockstep/strategies/passes/internal/over_workers.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "lockstep/graph/ir/placement.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep::internal {

namespace {

class OverWorkers {
 public:
  OverWorkers(Rewriter& edit, NodeId id, const WorkersExchange& exchange)
      : edit_(edit),
        id_(id),
        joins_first_(exchange.joins_first),
        name_(node().name()),
        range_(joined_range(node())),
        replicas_(static_cast<std::size_t>(range_.local)),
        tensors_(node().inputs().size() / replicas_),
        home_(device_of(edit.graph(), node().inputs()[0])),
        device_(exchange.device.empty() ? home_ : exchange.device) {
    if (range_.world % range_.local != 0)
      fail(str("workers need as many replicas each; this has ", range_.local, " of ", range_.world));
  }

  std::vector<ValueId> run(const std::vector<bool>& is_read) {
    std::vector<std::size_t> wanted;  // tensors
    for (std::size_t t = 0; t < tensors_; ++t) {
      for (std::size_t r = 0; r < replicas_; ++r) {
        if (!is_read[r * tensors_ + t]) continue;
        wanted.push_back(t);
        break;
      }
    }
    std::vector<ValueId> by_tensor(tensors_);
    if (node().op().name == "all_reduce") {
      all_reduce(wanted, by_tensor);
    } else if (node().op().name == "broadcast_replica") {
      for (const std::size_t t : wanted) by_tensor[t] = broadcast(t);
    } else if (node().op().name == "all_gather") {
      for (const std::size_t t : wanted) by_tensor[t] = all_gather(t);
    } else {
      fail("has no form for several workers yet");
    }
    std::vector<ValueId> values;
    for (std::size_t r = 0; r < replicas_; ++r) {
      for (std::size_t t = 0; t < tensors_; ++t)
        values.push_back(by_tensor[t].node.valid() ? by_tensor[t] : input(r, t));  // which nobody reads
    }
    return values;
  }

  NodeId heir() const { return heir_; }

 private:
  const Node& node() const { return edit_.graph().node(id_); }
  const TensorSpec& spec(ValueId value) const { return edit_.graph().spec(value); }
  std::int64_t workers() const { return range_.world / range_.local; }
  ValueId input(std::size_t replica, std::size_t tensor) const {
    return node().inputs()[replica * tensors_ + tensor];
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw PassError("lower-collectives", str("'", name_, "' (", node().op().name, "): ", why),
                    place_of(node()), ErrorCode::kUnimplemented);
  }

  NodeId make(std::string_view op, std::vector<ValueId> inputs, std::vector<Attribute> attributes,
              const std::string& device) {
    const std::string name = str(name_, "/", op);
    return edit_.insert({.op = op,
                         .name = name,
                         .inputs = std::move(inputs),
                         .attributes = std::move(attributes),
                         .origin = id_,
                         .device = device});
  }
  ValueId make1(std::string_view op, ValueId input, std::vector<Attribute> attributes,
                const std::string& device) {
    return {make(op, {input}, std::move(attributes), device), 0};
  }
  // Calls of the group keep the place of the collective.
  ValueId call(std::string_view op, ValueId input, std::vector<Attribute> attributes) {
    attributes.push_back({"group", std::string(kWorkersGroup)});
    const ValueId made = make1(op, input, std::move(attributes), device_);
    if (!heir_.valid()) heir_ = made.node;
    return made;
  }
  std::vector<ValueId> pieces(ValueId whole, std::vector<std::int64_t> sizes) {
    std::vector<ValueId> made;
    const std::size_t count = sizes.size();
    const NodeId id = make("split", {whole}, {{"axis", std::int64_t{0}}, {"sizes", std::move(sizes)}}, home_);
    for (std::uint32_t i = 0; i < count; ++i) made.push_back({id, i});
    return made;
  }
  ValueId joined(std::vector<ValueId> parts, std::int64_t axis, const std::string& device) {
    return parts.size() == 1 ? parts[0]
                             : ValueId{make("concat", std::move(parts), {{"axis", axis}}, device), 0};
  }
  ValueId as_row(ValueId value) {
    return make1("expand_dims", value, {{"axes", std::vector<std::int64_t>{0}}}, device_);
  }
  ValueId of_row(ValueId value) {
    return make1("squeeze", value, {{"axes", std::vector<std::int64_t>{0}}}, home_);
  }

  std::vector<ValueId> rows_of(ValueId all, std::int64_t count) {
    std::vector<ValueId> rows = pieces(all, std::vector<std::int64_t>(static_cast<std::size_t>(count), 1));
    for (ValueId& row : rows) row = of_row(row);
    return rows;
  }

  // --- all_reduce

  void all_reduce(std::span<const std::size_t> wanted, std::vector<ValueId>& by_tensor) {
    bool is_known = true;
    for (const std::size_t t : wanted) is_known = is_known && spec(input(0, t)).shape.is_known();
    if (wanted.size() < 2 || !is_known) {
      for (const std::size_t t : wanted) {
        std::vector<ValueId> parts;
        for (std::size_t r = 0; r < replicas_; ++r) parts.push_back(input(r, t));
        by_tensor[t] = combined(parts);
      }
      return;
    }
    std::vector<ValueId> packs;  // by replica
    std::vector<std::int64_t> sizes;
    for (std::size_t r = 0; r < replicas_; ++r) {
      const std::string there = device_of(edit_.graph(), input(r, wanted[0]));
      std::vector<ValueId> flat;
      for (const std::size_t t : wanted)
        flat.push_back(
            make1("reshape", input(r, t), {{"shape", Shape{spec(input(r, t)).shape.num_elements()}}}, there));
      packs.push_back(joined(std::move(flat), 0, there));
    }
    for (const std::size_t t : wanted) sizes.push_back(spec(input(0, t)).shape.num_elements());
    const std::vector<ValueId> parts = pieces(combined(packs), sizes);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      by_tensor[wanted[i]] = make1("reshape", parts[i], {{"shape", spec(input(0, wanted[i])).shape}}, home_);
  }

  ValueId combined(const std::vector<ValueId>& parts) {
    const Attribute reduce{"reduce", *node().find<std::string>("reduce")};
    if (parts.size() == 1) return call("group_all_reduce", parts[0], {reduce});
    if (joins_first_)
      return call("group_all_reduce",
                  {make("reduce_replicas", parts, {reduce, {"replicas", range_.local}}, home_), 0}, {reduce});
    std::vector<ValueId> rows;
    rows.reserve(parts.size());
    for (const ValueId part : parts) rows.push_back(as_row(part));
    // Unsummed, so that the sum is one fold over all replicas.
    return call("group_all_reduce", joined(std::move(rows), 0, device_), {reduce, {"parts", range_.local}});
  }

  // --- others

  ValueId broadcast(std::size_t tensor) {
    const auto* given = node().find<std::int64_t>("root");
    const std::int64_t root = given == nullptr ? 0 : *given;
    return call("group_broadcast", input(static_cast<std::size_t>(root % range_.local), tensor),
                {{"root", root / range_.local}});
  }

  ValueId all_gather(std::size_t tensor) {
    const auto* given = node().find<std::int64_t>("axis");
    std::vector<ValueId> parts;
    for (std::size_t r = 0; r < replicas_; ++r) parts.push_back(input(r, tensor));
    const auto rank = static_cast<std::int64_t>(spec(parts[0]).shape.rank());
    const std::int64_t axis = given == nullptr ? 0 : *given < 0 ? *given + rank : *given;
    const ValueId mine = joined(std::move(parts), axis, home_);
    if (axis == 0) return call("group_all_gather", mine, {{"members", workers()}});
    const ValueId all = call("group_all_gather", as_row(mine), {{"members", workers()}});
    return joined(rows_of(all, workers()), axis, home_);
  }

  Rewriter& edit_;
  NodeId id_;
  const bool joins_first_;
  std::string name_;
  ReplicaRange range_;
  std::size_t replicas_, tensors_;
  const std::string home_, device_;  // of replica 0's value; of the calls
  NodeId heir_;
};

}  // namespace

std::vector<ValueId> lower_over_workers(Rewriter& edit, NodeId collective, const std::vector<bool>& is_read,
                                        NodeId& heir, const WorkersExchange& exchange) {
  OverWorkers lowering(edit, collective, exchange);
  std::vector<ValueId> values = lowering.run(is_read);
  heir = lowering.heir();
  return values;
}

}  // namespace lockstep::internal
