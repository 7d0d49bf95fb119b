// Tests: strategies/passes/register.cpp, strategies/passes/replicate.cpp
// Steps that went through all passes over flat graphs, compiled: the bits of the interpreted step before
// them.
#include <gtest/gtest.h>

#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/program.h"
#include "lockstep/strategies/passes/register.h"
#include "support/pass_test.h"
#include "support/random_replicated.h"

namespace lockstep {
namespace {

TEST(FlatProgram, ComputesTheBitsOfTheStepBeforeThePasses) {
  register_strategy_passes();
  for (const std::int64_t replicas : {1, 2, 3, 4, 8}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      Graph before = testing::random_replicated_step(replicas, seed);
      PassRegistry::global().parse_pipeline("replicate").run(before);
      for (const std::string_view passes :
           {"prove-sync,share-mirrored,order-collectives,lower-collectives,insert-copies",
            "share-mirrored(variables=false),lower-collectives(ops=ring)", "prove-sync,order-collectives"}) {
        SCOPED_TRACE(str(replicas, " replicas, seed ", seed, ": ", passes));
        Graph after = before;
        PassRegistry::global().parse_pipeline(passes).run(after);
        const Interpreter::Feeds feeds = *testing::random_feeds(before, seed + 1);
        Interpreter interpreter(before, {.seed = 3});
        const Runtime runtime({.seed = 3});
        Program program = compile(after, runtime);
        for (int step = 0; step < 2; ++step) {
          std::vector<Tensor> arguments;
          for (const NodeId id : after.parameters()) arguments.push_back(feeds.at(after.node(id).name()));
          const std::vector<Tensor> expected = interpreter.run(feeds), got = program.run(arguments);
          ASSERT_EQ(expected.size(), got.size());
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_TRUE(expected[i].bit_equal(got[i]))
                << "result " << i << ": " << expected[i] << " and " << got[i];
          for (const auto& [name, value] : interpreter.variables())
            ASSERT_TRUE(value.bit_equal(program.variables().value(name))) << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
