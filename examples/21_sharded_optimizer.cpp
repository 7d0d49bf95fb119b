// ZeRO-1 as a pass of one's own: each replica keeps the optimizer's slots for its rows alone.
//
//   mirrored:   g -> all_reduce -> adam on all rows of w          slots: all rows on every replica
//   sharded:    g -> reduce_scatter -> adam on my rows -> all_gather -> w
//                                                                 slots: all rows once, over all replicas
//
// The bits are those of mirrored training, and so are the checkpoints of slots: they are joined in the file, and
// cut again for any number of replicas.
#include <cmath>
#include <filesystem>
#include <iostream>

#include <unistd.h>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

class ShardOptimizer final : public Pass {
 public:
  std::string_view name() const override { return "shard-optimizer"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    bool changed = false;
    for (const NodeId owner : graph.region_owners()) {
      if (graph.node(owner).op().region_kind != RegionKind::kReplicated) continue;
      const std::int64_t replicas = *graph.node(owner).find<std::int64_t>("replicas");
      Graph& region = graph.region(owner, 0);
      std::vector<NodeId> updates;
      for (const Node& node : region.nodes()) {
        const auto& update = node.op().traits.updates_variable;
        if (!update || !update->gradient || update->indices || node.outputs()[0].shape.rank() == 0) continue;
        updates.push_back(node.id());
      }
      for (const NodeId update : updates) shard(graph, region, update, replicas);
      changed = changed || !updates.empty();
    }
    return outcome_of(changed);
  }

  void shard(Graph& graph, Graph& region, NodeId id, std::int64_t replicas) const {
    const auto names = updated_variables(region.node(id));  // the variable, then its slots
    VariableDecl mine = *graph.find_variable(names[0]);
    const Shape shape = mine.spec.shape;
    const std::int64_t extent = shape[0], rows = (extent + replicas - 1) / replicas;
    mine.name += "/shard";
    mine.trainable = false;
    graph.declare_variable(mine);
    declare_slices(graph, mine.name, replicas);
    for (std::size_t i = 1; i < names.size(); ++i) declare_slices(graph, names[i], replicas);

    Rewriter edit(region, name(), &graph);
    const Node& node = region.node(id);
    const OpTraits::Update& update = *node.op().traits.updates_variable;
    const auto step = [&](GraphBuilder& b, std::span<const Value> inputs) {
      const auto padded = [&](const Value& value) {
        std::vector<std::int64_t> none(shape.rank(), 0), behind(none);
        behind[0] = rows * replicas - extent;
        return pad(value, none, behind);
      };
      const VariableRef whole{names[0]}, shard{mine.name};
      b.assign(shard, slice_at(padded(b.read(whole)), cast(replica_id(b), DType::kI64) * rows, rows));
      std::vector<Value> own(inputs.begin(), inputs.end());
      own[update.operand] = reduce_scatter(ReduceOp::kSum, padded(inputs[update.operand]), replicas);
      std::vector<Attribute> attributes = node.attributes();
      for (Attribute& attribute : attributes) {
        if (attribute.name == update.attribute) attribute.value = shard;
      }
      const Value updated = b.op(node.op().name, own, std::move(attributes))[0];
      return std::vector{b.assign(whole, reshape(slice(all_gather(updated), {0}, {extent}), shape))};
    };
    const std::vector<ValueId> made =
        edit.build(node.inputs(), step,
                   {.origin = id, .scope = names[0] + "/zero", .why = "slots once over all replicas"});
    for (const NodeId before : node.controls()) edit.add_control(made[0].node, before);
    edit.replace_node(id, std::vector<ValueId>(node.outputs().size(), made[0]));
    edit.erase(id);
  }
};

struct Trained {
  Tensor w;
  std::size_t slot_bytes = 0;  // of Adam, on all replicas
};

// Trains from the checkpoint on, where there is one, to so many steps, and leaves another.
Trained train(const std::string& passes, const std::vector<std::string>& devices, std::uint64_t steps,
              const std::filesystem::path& from = {}, const std::filesystem::path& to = {}) {
  // Replicas of one process would share what is equal on all of them: here each is to have its own memory.
  MirroredStrategy strategy({.devices = devices, .share_mirrored = false, .step_passes = passes});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::full(DType::kF32, {5, 3}, 0.5));
  const Adam adam(0.05);
  const auto step = strategy.function({InputSpec(DType::kF32, {kUnknown, 5}, "x")}, [=](Value x) {
    adam.minimize(global_mean(square(matmul(x, w) - 1.F)), {w});
  });
  if (!from.empty()) restore_checkpoint(strategy.variables(), from);
  while (strategy.variables().step() < steps) {
    const auto at = static_cast<double>(strategy.variables().step());
    step(strategy.distribute_values_from_function([&](std::int64_t replica, std::int64_t) {
      Tensor x = Tensor::empty(DType::kF32, {4, 5});
      double i = at * 100 + static_cast<double>(replica) * 20;
      for (float& value : x.data<float>()) value = static_cast<float>(std::sin(i += 1));
      return x;
    }));
  }
  if (!to.empty()) save_checkpoint(strategy.variables(), to);
  Trained trained{w.value()};
  for (const std::string& name : strategy.variables().names()) {
    const bool slot = name.find("/adam") != std::string::npos || name.find("adam/") != std::string::npos;
    const Tensor value = strategy.variables().value(name);
    if (slot && value.shape().rank() > 0) trained.slot_bytes += value.num_bytes();
  }
  return trained;
}

}  // namespace

int main() {
  PassRegistry::global().add({.name = "shard-optimizer", .summary = "ZeRO-1: slots by rows"},
                             [](const PassOptions&) { return std::make_unique<ShardOptimizer>(); });
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / str("lockstep-example-21-", ::getpid(), ".lkc");
  const std::vector<std::string> devices = {"cpu:0", "cpu:1", "cpu:2"};
  const Trained mirrored = train("", devices, 20);
  const Trained sharded = train("shard-optimizer", devices, 20);
  std::cout << "mirrored: " << mirrored.slot_bytes << " bytes of slots on 3 replicas\n"
            << "sharded:  " << sharded.slot_bytes << " bytes, "
            << (sharded.w.bit_equal(mirrored.w) ? "the same bits" : "OTHER BITS") << '\n';
  train("shard-optimizer", devices, 10, {}, file);
  const Trained resumed = train("shard-optimizer", devices, 20, file);
  std::cout << "resumed after 10 of 20 steps: "
            << (resumed.w.bit_equal(mirrored.w) ? "the same bits" : "OTHER BITS") << '\n';
  const Trained two = train("shard-optimizer", {"cpu:0", "cpu:1"}, 11, file);
  std::cout << "on 2 replicas: " << two.slot_bytes << " bytes of slots\n";
  std::filesystem::remove(file);
}
