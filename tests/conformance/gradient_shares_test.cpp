// Tests: graph/ops/global.cpp, strategies/passes/insert_all_reduce.cpp
// Gradients are summed over replicas once, however a step came by them: behind collectives of the forward
// pass, reduced by the user, applied in update(); with the passes that change training, with passes that
// rewrite the gradients, and after the step was text.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/strategies/mirrored.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::test_devices;

constexpr std::int64_t kRows = 4;  // of the joined batch

// Trains w, and v beside it, on this replica's rows. The flag is true.
using TrainFn = std::function<void(const Value& x, const Value& flag, const Variable& w, const Variable& v)>;

const Sgd& sgd() {
  static const Sgd optimizer(0.125);
  return optimizer;
}
Value mean_over_replicas(const Value& x) { return replica_context().all_reduce(ReduceOp::kMean, mean(x)); }
// Both variables behind one value that all replicas have.
void train_behind(const Value& m, const Variable& w, const Variable& v) {
  sgd().minimize(global_mean(square(m * w - 1.0) + v * v), {w, v});
}
Value gradient_of(const Value& loss, const Variable& w) {
  return gradients(loss, {static_cast<VariableRef>(w)})[0].dense();
}

struct Model {
  std::string name;
  TrainFn train;
};

std::vector<Model> models() {
  return {
      {"own rows",
       [](const Value& x, const Value&, const Variable& w, const Variable& v) {
         sgd().minimize(global_mean(square(x * w - 1.0) + v), {w, v});
       }},
      {"forward collective", [](const Value& x, const Value&, const Variable& w,
                                const Variable& v) { train_behind(mean_over_replicas(x), w, v); }},
      {"forward collective in a branch",
       [](const Value& x, const Value& flag, const Variable& w, const Variable& v) {
         const std::vector<Value> m = cond(
             flag, [&] { return std::vector<Value>{mean_over_replicas(x)}; },
             [&] { return std::vector<Value>{cast(flag, DType::kF64)}; });
         train_behind(m[0], w, v);
       }},
      {"forward collective in a loop",
       [](const Value& x, const Value&, const Variable& w, const Variable& v) {
         GraphBuilder& b = x.builder();
         const Value initial[] = {b.constant(Tensor::scalar(std::int64_t{0})), b.constant(0.0)};
         const std::vector<Value> m = while_loop(
             initial, [](std::span<const Value> c) { return c[0] < 2; },
             [&](std::span<const Value> c) -> std::vector<Value> {
               return {c[0] + 1, c[1] + mean_over_replicas(x)};
             });
         train_behind(m[1], w, v);
       }},
      {"forward merge function",
       [](const Value& x, const Value&, const Variable& w, const Variable& v) {
         const Value m = replica_context().merge_call(
             [](Strategy& s, const PerReplica<Value>& own) { return s.reduce(ReduceOp::kMean, own); },
             mean(x));
         train_behind(m, w, v);
       }},
      {"gradients that the user reduced",
       [](const Value& x, const Value&, const Variable& w, const Variable& v) {
         const Value m = mean_over_replicas(x);
         const Value loss = global_mean(square(m * w - 1.0) + x * v);
         const ReplicaContext replica = replica_context();
         sgd().apply_gradients({{replica.all_reduce(ReduceOp::kSum, gradient_of(loss, w)), w},
                                {replica.all_reduce(ReduceOp::kSum, gradient_of(loss, v)) * m, v}});
       }},
      // Equal on all replicas by chance, and scaled by what they made together.
      {"shares over a number of all replicas",
       [](const Value& x, const Value&, const Variable& w, const Variable& v) {
         const double replicas = static_cast<double>(replica_context().num_replicas_in_sync());
         const Value total = replica_context().all_reduce(ReduceOp::kSum, sum(x));
         const Value loss = w * (2.0 / replicas) - v * (3.0 / replicas);
         sgd().apply_gradients({{gradient_of(loss, w) / total, w}, {gradient_of(loss, v) / total, v}});
       }},
      // The gradient of w is seed * m, which passes can make of the forward pass's own nodes.
      {"gradients that are values of the forward pass",
       [](const Value& x, const Value&, const Variable& w, const Variable& v) {
         const Value m =
             mean_over_replicas(x) / static_cast<double>(replica_context().num_replicas_in_sync());
         const Value same = m * 1.0;
         sgd().minimize(m * w - same * v, {w, v});
       }},
      {"update() with reduced gradients",
       [](const Value& x, const Value&, const Variable& w, const Variable& v) {
         const Value loss = global_mean(square(x * w - 1.0) + x * v);
         replica_context().merge_call(
             [&](Strategy& s, const PerReplica<Value>& gw, const PerReplica<Value>& gv) {
               for (const auto& [gradient, variable] : {std::pair(gw, w), std::pair(gv, v)}) {
                 const PerReplica<Value> whole(s.reduce(ReduceOp::kSum, gradient));
                 s.update(variable,
                          [](const Variable& copy, std::span<const Value> in) {
                            sgd().apply_gradients({{in[0], copy}});
                            return in[0];
                          },
                          {&whole, 1});
               }
             },
             gradient_of(loss, w), gradient_of(loss, v));
       }},
      {"update() by the variable itself",
       [](const Value&, const Value&, const Variable& w, const Variable& v) {
         replica_context().merge_call([&](Strategy& s) {
           for (const Variable& variable : {w, v}) {
             s.update(variable,
                      [](const Variable& copy, std::span<const Value>) {
                        const Value decay = copy.read() * 0.5;
                        sgd().apply_gradients({{decay, copy}});
                        return decay;
                      },
                      {});
           }
         });
       }},
  };
}

std::vector<std::string> test_devices(std::int64_t count) {
  std::vector<std::string> names;
  for (std::int64_t r = 0; r < count; ++r) names.push_back(str("cpu:", r));
  return names;
}

// w and v after four steps.
std::vector<double> trained(const Model& model, std::int64_t replicas, const std::string& step_passes,
                            bool share = true) {
  MirroredStrategy strategy(
      {.devices = test_devices(replicas), .share_mirrored = share, .step_passes = step_passes});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.5)), v("v", Tensor::scalar(2.0));
  const auto step = strategy.function(
      {InputSpec(DType::kF64, Shape{kRows / replicas}, "x"), InputSpec(DType::kBool, Shape{}, "flag", true)},
      [&](Value x, Value flag) { model.train(x, flag, w, v); });
  for (int s = 0; s < 4; ++s) {
    std::vector<Tensor> slots;
    for (std::int64_t r = 0; r < replicas; ++r) {
      Tensor rows = Tensor::empty(DType::kF64, Shape{kRows / replicas});
      for (std::int64_t i = 0; i < kRows / replicas; ++i)
        rows.data<double>()[static_cast<std::size_t>(i)] =
            0.25 * static_cast<double>(r * (kRows / replicas) + i) + 0.5 * s + 0.125;
      slots.push_back(std::move(rows));
    }
    step(PerReplica<Tensor>(std::move(slots)), Tensor::scalar(true));
  }
  return {w.value().item(), v.value().item()};
}

// Makes every gradient anew, in turn by each of the ways in which a pass makes nodes.
class RewriteGradients final : public Pass {
 public:
  std::string_view name() const override { return "rewrite-gradients"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    int turn = 0;
    for_each_level(graph, [&](Graph& level) {
      Rewriter edit(level, name(), &graph);
      std::vector<NodeId> found;
      for (const Node& node : level.nodes()) {
        const bool elementwise = node.op().traits.elementwise && node.outputs()[0].dtype == DType::kF64;
        if (elementwise && node.provenance().gradient == GradientMark::kShare) found.push_back(node.id());
      }
      for (const NodeId id : found) rewrite(edit, id, turn++);
    });
    return outcome_of(turn > 0);
  }

  static void rewrite(Rewriter& edit, NodeId id, int turn) {
    const Node& node = edit.graph().node(id);
    const std::vector<ValueId> inputs(node.inputs().begin(), node.inputs().end());
    switch (turn % 4) {
      case 0: edit.replace_node(id, {{ValueId{edit.clone(id, "copy", inputs), 0}}}); return;
      case 1: {
        Rewriter::NewNode same{.op = node.op().name, .name = "again", .inputs = inputs, .origin = id};
        same.attributes = node.attributes();
        edit.replace_node(id, {{ValueId{edit.insert(std::move(same)), 0}}});
        return;
      }
      case 2: {
        const NodeId copy = edit.clone(id, "copy", inputs);
        edit.become(id, {.op = "identity", .inputs = {{copy, 0}}});
        return;
      }
      default: {
        const ValueId copy{edit.clone(id, "copy", inputs), 0};
        const auto twice = [](GraphBuilder&, std::span<const Value> in) {
          return std::vector<Value>{neg(neg(in[0]))};
        };
        edit.replace_node(id, edit.build({&copy, 1}, twice, {.origin = id}));
      }
    }
  }
};

// Sums the gradients of updates itself, with nodes beside them that name the gradient as their origin.
class SumGradients final : public Pass {
 public:
  std::string_view name() const override { return "sum-gradients"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    bool changed = false;
    for_each_level(graph, [&](Graph& level) {
      Rewriter edit(level, name(), &graph);
      std::vector<std::pair<NodeId, std::size_t>> found;
      for (const Node& node : level.nodes()) {
        const auto& update = node.op().traits.updates_variable;
        if (update && update->gradient) found.emplace_back(node.id(), update->operand);
      }
      for (const auto& [id, operand] : found) {
        const ValueId gradient = level.node(id).inputs()[operand];
        const auto sum = [](GraphBuilder&, std::span<const Value> in) {
          const Value total = all_reduce(ReduceOp::kSum, in[0]);
          return std::vector<Value>{where(total > 0.0, total * 1.0, total + 0.0)};
        };
        edit.set_input(id, operand, edit.build({&gradient, 1}, sum, {.origin = gradient.node})[0]);
        changed = true;
      }
    });
    return outcome_of(changed);
  }
};

TEST(GradientShares, AreNotSummedAgainWhenAPassHasSummedThem) {
  static const bool registered = [] {
    add_pass(PassRegistry::global(), "sum-gradients", "for this test",
             [] { return std::unique_ptr<Pass>(new SumGradients); });
    return true;
  }();
  ASSERT_TRUE(registered);
  for (const Model& model : models()) {
    if (model.name.find("reduced") != std::string::npos || model.name.find("update()") != std::string::npos)
      continue;  // summed by the step itself
    const std::vector<double> one = trained(model, 1, "");
    const std::vector<double> two = trained(model, 2, "sum-gradients");
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(two[i], one[i], 1e-12) << model.name << ", variable " << i;
  }
}

// Passes that have nothing to do with replicas may stand before insert-all-reduce.
TEST(GradientShares, AreSummedOnceAfterPassesThatRewriteThem) {
  static const bool registered = [] {
    add_pass(PassRegistry::global(), "rewrite-gradients", "for this test",
             [] { return std::unique_ptr<Pass>(new RewriteGradients); });
    return true;
  }();
  ASSERT_TRUE(registered);
  const std::string general =
      "constant-folding,identity-removal,common-subexpression-elimination,fuse-attention(cpu=true),"
      "fuse-products(cpu=true),fuse-elementwise";
  for (const Model& model : models()) {
    for (const std::string& passes :
         {std::string("rewrite-gradients"), general, "rewrite-gradients," + general}) {
      const std::vector<double> one = trained(model, 1, "");
      const std::vector<double> two = trained(model, 2, passes);
      for (std::size_t i = 0; i < one.size(); ++i)
        EXPECT_NEAR(two[i], one[i], 1e-12) << model.name << ", " << passes << ", variable " << i;
    }
  }
}

TEST(GradientShares, AreSummedOnceWithEveryPass) {
  for (const Model& model : models()) {
    for (const std::string passes :
         {"", "clip-by-global-norm(norm=0.25)", "clip-by-global-norm(norm=1000)",
          "accumulate-gradients(steps=2)", "clip-by-global-norm(norm=1000),accumulate-gradients(steps=2)"}) {
      const std::vector<double> one = trained(model, 1, passes);
      EXPECT_NE(one[0], 1.5) << model.name << ", " << passes;
      for (const std::int64_t replicas : {2, 4}) {
        if (replicas == 4 && !passes.empty()) continue;  // so that it stays cheap
        const std::vector<double> many = trained(model, replicas, passes, replicas == 2);
        for (std::size_t i = 0; i < one.size(); ++i)
          EXPECT_NEAR(many[i], one[i], 1e-12)
              << model.name << ", " << passes << ", variable " << i << " of " << replicas << " replicas";
      }
    }
  }
}

// What decides about sums survives printing: both graphs become the same.
TEST(GradientShares, AreKnownFromTextToo) {
  for (const Model& model : models()) {
    MirroredStrategy strategy({.devices = test_devices(2)});
    auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(1.5)), v("v", Tensor::scalar(2.0));
    const auto step = strategy.function(
        {InputSpec(DType::kF64, Shape{2}, "x"), InputSpec(DType::kBool, Shape{}, "flag", true)},
        [&](Value x, Value flag) { model.train(x, flag, w, v); });
    for (const std::string passes : {"insert-all-reduce", "clip-by-global-norm(norm=0.25),insert-all-reduce",
                                     "accumulate-gradients(steps=2),insert-all-reduce"}) {
      Graph traced = step.step_graph();
      Graph read = parse(print(traced));
      EXPECT_EQ(print(read), print(traced));
      PassRegistry::global().parse_pipeline(passes).run(traced);
      PassRegistry::global().parse_pipeline(passes).run(read);
      EXPECT_EQ(print(read), print(traced)) << model.name << ", " << passes;
    }
  }
}

// Functions of one strategy that train different variables, as a generator and its critic, gather by
// themselves; one that trains some of them beside others too.
TEST(GradientShares, FunctionsGatherByThemselves) {
  MirroredStrategy strategy({.devices = test_devices(2), .step_passes = "accumulate-gradients(steps=2)"});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(0.0)), v("v", Tensor::scalar(0.0)), u("u", Tensor::scalar(0.0));
  const InputSpec input(DType::kF64, Shape{1}, "x");
  const Sgd optimizer(1.0);
  const auto trains = [&](const std::vector<Variable>& variables) {
    return strategy.function({input}, [&](Value x) {
      Value loss = x.builder().constant(0.0);
      for (const Variable& variable : variables) loss = loss + global_mean(x) * variable;
      optimizer.minimize(loss, std::vector<VariableRef>(variables.begin(), variables.end()));
    });
  };
  const auto generator = trains({w}), critic = trains({v}), both = trains({v, u});
  const auto feed = [](double a, double b) {
    return PerReplica<Tensor>({Tensor::from<double>({1}, {a}), Tensor::from<double>({1}, {b})});
  };
  const auto expect_values = [&](double of_w, double of_v, double of_u) {
    EXPECT_DOUBLE_EQ(w.value().item(), of_w);
    EXPECT_DOUBLE_EQ(v.value().item(), of_v);
    EXPECT_DOUBLE_EQ(u.value().item(), of_u);
  };
  // Gradients are the means 2, 4, 8 of what is fed, and then 6, 12, 24.
  generator(feed(1, 3));
  critic(feed(3, 5));
  both(feed(7, 9));
  expect_values(0, 0, 0);
  generator(feed(5, 7));
  expect_values(-4, 0, 0);
  critic(feed(11, 13));
  expect_values(-4, -8, 0);
  both(feed(23, 25));
  expect_values(-4, -8 - 16, -16);
}

// What update() writes is final; whether it keeps copies equal is for the proof to say.
TEST(GradientShares, UpdateIsLeftToTheProof) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.0), {.aggregation = Aggregation::kSum});
  const Variable own("own", Tensor::scalar(1.0),
                     {.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum});
  const auto make = [&](const Variable& from) {
    return strategy.cross_function({}, [&] {
      strategy.update(
          w, [&](const Variable& copy, std::span<const Value>) { return copy.assign(from.read() * 3.0); },
          {});
    });
  };
  make(w)();
  EXPECT_EQ(w.value().item(), 3);
  try {
    make(own);
    FAIL() << "accepted";
  } catch (const PassError& error) {
    EXPECT_NE(std::string(error.what()).find("variable 'w' would not stay equal"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lockstep
