// Tests: graph/passes/optimize.cpp, graph/transform/pipeline.cpp
// Whatever the order of the general passes, a graph keeps its meaning: random graphs, random pipelines.
#include <algorithm>
#include <random>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

class RandomGraph {
 public:
  explicit RandomGraph(std::uint32_t seed) : random_(seed) {}

  Graph make() {
    GraphBuilder b;
    std::vector<Value> values = {b.placeholder("x", DType::kF32, {3}), b.placeholder("y", DType::kF32, {3})};
    predicate_ = b.placeholder("p", DType::kBool, {});
    variables_ = {b.variable("v", Tensor::full(DType::kF32, {3}, 1)),
                  b.variable("w", Tensor::full(DType::kF32, {3}, 2))};
    grow(b, values, 40, 2);
    for (int i = 0; i < 4; ++i) b.result(pick(values));
    return b.finish();
  }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_()) % n; }
  const Value& pick(const std::vector<Value>& values) {
    return values[below(static_cast<std::uint32_t>(values.size()))];
  }

  // Adds nodes over the values, which all have one spec. Few kinds and few constants: much is equal, dead or
  // foldable.
  void grow(GraphBuilder& b, std::vector<Value>& values, int nodes, int depth) {
    for (int i = 0; i < nodes; ++i) {
      const Value a = pick(values);
      const Value c = pick(values);
      switch (below(depth > 0 ? 13 : 10)) {
        case 0: values.push_back(a + c); break;
        case 1: values.push_back(a * 0.5F - c); break;
        case 2: values.push_back(relu(a)); break;
        case 3: values.push_back(identity(a)); break;
        case 4: values.push_back(b.constant(Tensor::full(DType::kF32, {3}, below(3)))); break;
        case 5: values.push_back(b.random_uniform({DType::kF32, {3}}, 0, 1, below(3))); break;
        case 6: values.push_back(b.read(variables_[below(2)])); break;
        case 7: values.push_back(b.assign(variables_[below(2)], a * 0.5F)); break;
        case 8: values.push_back(b.assign_add(variables_[below(2)], relu(a) * 0.25F)); break;
        case 9: values.push_back(sum(a, {0}, true) * 0.125F + c); break;
        case 10:
          values.push_back(cond(
              predicate_,
              [&] {
                return branch({a, c}, depth);
              },
              [&] {
                return branch({c, a}, depth);
              })[0]);
          break;
        case 11: {
          const Value counter = b.constant(0.0F);
          const Value initial[] = {counter, a};
          values.push_back(while_loop(
              initial, [&](std::span<const Value> v) { return less(v[0], 3.0F); },
              [&](std::span<const Value> v) {
                std::vector<Value> inner = {v[1], v[1] * 0.5F};
                grow(v[0].builder(), inner, 4, depth - 1);
                return std::vector<Value>{v[0] + 1.0F, inner.back()};
              })[1]);
          break;
        }
        default: {
          const Value shared[] = {a};
          const std::vector<Value> per_replica[] = {{a, c}};
          const auto results = replicated(b, 2, shared, per_replica, [&](std::span<const Value> v) {
            std::vector<Value> inner(v.begin(), v.end());
            grow(v[0].builder(), inner, 4, depth - 1);
            return std::vector<Value>{inner.back()};
          });
          values.push_back(results[0][0]);
          values.push_back(results[0][1]);
        }
      }
    }
  }

  std::vector<Value> branch(std::vector<Value> inner, int depth) {
    GraphBuilder& b = inner[0].builder();
    grow(b, inner, 4, depth - 1);
    return {inner.back()};
  }

  std::mt19937 random_;
  Value predicate_;
  std::vector<VariableRef> variables_;
};

TEST(GeneralPasses, KeepTheMeaningOfRandomGraphsInAnyOrder) {
  std::vector<std::string> names = {
      "common-subexpression-elimination", "constant-folding", "dead-node-elimination", "fuse-elementwise",
      "fuse-products(cpu=true)",          "identity-removal"};
  std::mt19937 random(1);
  int changed = 0;
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    const Graph before = RandomGraph(seed).make();
    std::ranges::shuffle(names, random);
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
    SCOPED_TRACE(str("graph ", seed, ", passes ", text));
    Graph after = before;
    // Verifies after each.
    const PipelineReport report = PassRegistry::global().parse_pipeline(text).run(after);
    for (const PassReport& pass : report.passes) changed += pass.outcome == PassOutcome::kChanged ? 1 : 0;
    testing::expect_same_meaning(before, after, seed);
    if (::testing::Test::HasFailure()) FAIL() << print(before) << "\nbecame\n" << print(after);
  }
  EXPECT_GT(changed, 300) << "the graphs give the passes too little to do";
}

TEST(GeneralPasses, ReachAFixedPoint) {
  for (std::uint32_t seed = 1000; seed < 1030; ++seed) {
    Graph graph = RandomGraph(seed).make();
    PassPipeline passes = PassRegistry::global().parse_pipeline(
        "identity-removal,constant-folding,common-subexpression-elimination,dead-node-elimination,"
        "fuse-elementwise");
    int rounds = 0;
    while (passes.run(graph).outcome == PassOutcome::kChanged) ASSERT_LT(++rounds, 10) << "graph " << seed;
  }
}

}  // namespace
}  // namespace lockstep
