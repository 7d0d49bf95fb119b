// A strategy of one's own: gradients travel between replicas as bf16, half the bytes.
//
//   g ----> all_reduce ----> sgd          g --> cast bf16 --> all_reduce --> cast f32 --> sgd
//
// The pass works on one replica's step, before it is cloned; everything else is the usual recipe, and
// prove-sync still holds the result to it: all replicas apply the same bits.
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

// Wraps every all-reduce of f32 values in casts. It looks at traits and types, never at names of ops.
class CompressAllReduce final : public Pass {
 public:
  std::string_view name() const override { return "compress-all-reduce"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    bool changed = false;
    for_each_level(graph, [&](Graph& level) {
      Rewriter edit(level, name(), &graph);
      std::vector<NodeId> joins;
      for (const Node& node : level.nodes()) {
        const bool f32 = !node.outputs().empty() && node.outputs()[0].dtype == DType::kF32;
        if (node.op().traits.is(ReplicaRole::kCollective) && node.op().traits.same_on_all && f32)
          joins.push_back(node.id());
      }
      for (const NodeId id : joins) {
        const Node& node = level.node(id);
        const auto cast_to = [&](DType dtype, ValueId value) -> ValueId {
          return {
              edit.insert({.op = "cast", .inputs = {value}, .attributes = {{"dtype", dtype}}, .origin = id}),
              0};
        };
        std::vector<ValueId> small, wide;
        for (const ValueId input : node.inputs()) small.push_back(cast_to(DType::kBF16, input));
        const NodeId join = edit.insert({.op = node.op().name,
                                         .name = node.name() + "/bf16",
                                         .inputs = small,
                                         .attributes = node.attributes(),
                                         .origin = id,
                                         .why = "fewer bytes"});
        for (std::uint32_t i = 0; i < small.size(); ++i) wide.push_back(cast_to(DType::kF32, {join, i}));
        edit.replace_node(id, wide);
        edit.erase(id);
      }
      changed = changed || edit.changed();
    });
    return outcome_of(changed);
  }
};

class Compressed final : public Strategy {
 public:
  explicit Compressed(const std::vector<std::string>& devices) : Strategy(devices) {}
  std::string_view name() const override { return "Compressed"; }
  PassPipeline pipeline() const override {
    return PassRegistry::global().parse_pipeline(
        "mirror-variables,insert-all-reduce,compress-all-reduce,replicate,prove-sync,share-mirrored,"
        "lower-collectives");
  }
};

// Bytes that all replicas hand to each other in a step.
std::int64_t bytes_sent(const Graph& graph) {
  std::int64_t bytes = 0;
  for (const Node& node : graph.nodes()) {
    if (node.find<std::string>("reduce") == nullptr) continue;
    for (const TensorSpec& spec : input_specs(graph, node)) bytes += num_bytes(spec);
  }
  return bytes;
}

// w goes to the mean of all rows, 1.5: as near as the gradients say.
void train(Strategy& strategy) {
  auto scope = strategy.scope();
  const Variable w("w", Tensor::zeros({256}));
  const Sgd sgd(0.25);
  const auto step = strategy.function({InputSpec(DType::kF32, {kUnknown, 256}, "x")}, [=](Value x) {
    const Value loss = global_mean(sum(square(x - w), {1}));
    sgd.minimize(loss, {w});
    return loss;
  });
  const PerReplica<Tensor> x(
      {Tensor::full(DType::kF32, {3, 256}, 1), Tensor::full(DType::kF32, {1, 256}, 3)});
  Tensor loss;
  for (int i = 0; i < 50; ++i) loss = strategy.reduce(ReduceOp::kSum, step(x));
  std::cout << strategy.name() << ": " << bytes_sent(step.replicated_graph())
            << " bytes a step, w[0] = " << w.value().data<float>()[0] << ", loss " << loss.item() << '\n';
}

}  // namespace

int main() {
  PassRegistry::global().add({.name = "compress-all-reduce", .summary = "all-reduces in bf16"},
                             [](const PassOptions&) { return std::make_unique<CompressAllReduce>(); });
  MirroredStrategy plain({.devices = {"cpu:0", "cpu:1"}});
  train(plain);
  Compressed compressed({"cpu:0", "cpu:1"});
  train(compressed);
}
