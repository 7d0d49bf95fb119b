#include "lockstep/graph/optimize.h"

#include "lockstep/graph/builder.h"
#include "lockstep/graph/compile.h"
#include "lockstep/graph/gradients.h"
#include "lockstep/graph/ops.h"
#include "support/pass_test.h"
#include "support/program_test.h"
#include "support/random_graph.h"

namespace lockstep {
namespace {

TEST(Optimize, EachPassFindsItsWork) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[4]
      %two = constant[value=f32[]{2.0}]() : f32[]
      %three = constant[value=f32[]{3.0}]() : f32[]
      %five = add(%two, %three) : f32[]
      %i = identity(%x) : f32[4]
      %a = mul(%i, %five) : f32[4]
      %b = mul(%x, %five) : f32[4]
      %dead = relu(%b) : f32[4]
      %y = add(%a, %b) : f32[4]
      return %y
    )");
  EXPECT_EQ(print(optimize(graph)), R"(%x = placeholder() : f32[4]
%y = fused(%x) : f32[4] {
  region {
    %x = placeholder() : f32[4]
    %five = constant[value=f32[]{5.0}]() : f32[]
    %a = mul(%x, %five) : f32[4]
    %y = add(%a, %a) : f32[4]
    return %y
  }
}
return %y
)");
  testing::expect_same_meaning(graph, optimize(graph));
}

TEST(Optimize, LeavesNodesApartWhereAskedTo) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %y = add(%a, %x) : f32[4]
      return %y
    )");
  EXPECT_EQ(print(optimize(graph, {.fuse = false})), print(graph));
  EXPECT_NE(print(optimize(graph)), print(graph));
}

TEST(Optimize, PrintsAsAPipelineThatParsesBack) {
  const std::string text = standard_passes().to_string();
  EXPECT_EQ(PassRegistry::global().parse_pipeline(text).to_string(), text);
}

TEST(Optimize, KeepsTheBitsOfRandomPrograms) {
  Runtime runtime({.threads = 2});
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph =
        testing::random_graph({.seed = seed, .nodes = 30, .elements = seed % 3 == 0 ? 100'000 : 7});
    const std::vector<Tensor> feeds = testing::feeds_for(graph, seed);
    auto plain_store = std::make_shared<VariableStore>();
    auto store = std::make_shared<VariableStore>();
    Program plain = compile(graph, runtime, {.variables = plain_store});
    Program optimized = compile(optimize(graph), runtime, {.variables = store});
    for (int step = 0; step < 2; ++step) {
      testing::expect_same_tensors(optimized.run(feeds), plain.run(feeds));
      testing::expect_same_values(testing::variables_of(*store), testing::variables_of(*plain_store));
    }
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed << "\n" << print(optimize(graph));
      return;
    }
  }
}

}  // namespace
}  // namespace lockstep
