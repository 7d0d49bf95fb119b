// Tests: strategies/trace/building.cpp
#include "lockstep/strategies/trace/building.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/strategies/mirrored.h"
#include "support/strategy_test.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::scalars;
using testing::test_devices;

TEST(Building, MakesConstantsInTheRegionBeingTraced) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto f = strategy.function({kScalar}, [](Value x) {
    const Value outside = constant(Tensor::scalar(10.F), "ten");
    EXPECT_EQ(outside.name(), "ten");
    return cond(
        x > 1.F,
        [&]() -> std::vector<Value> {
          const Value inside = constant(2.F);
          EXPECT_NE(&inside.builder(), &outside.builder());
          return {x * inside + outside};
        },
        [&]() -> std::vector<Value> { return {constant(-1.F)}; })[0];
  });
  const PerReplica<Tensor> y = f(scalars({1, 3}));
  EXPECT_EQ(y[0].item(), -1);
  EXPECT_EQ(y[1].item(), 16);
}

TEST(Building, CopiesTheTensorAndKeepsTheCallersLine) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  Tensor tensor = Tensor::scalar(1.F);
  const auto f = strategy.cross_function({}, [&] {
    const Value made = constant(tensor);
    EXPECT_THAT(made.builder().graph().node(made.id().node).site().file, HasSubstr("building_test.cpp"));
    return made;
  });
  tensor.data<float>()[0] = 5;
  EXPECT_EQ(f()[0].item(), 1);
}

TEST(Building, ScopesNamesWhileTheGuardLives) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  strategy.function({kScalar}, [](Value x) {
    {
      const auto outer = name_scope("outer");
      const auto inner = name_scope("inner");
      EXPECT_EQ(constant(Tensor::scalar(1.F), "c").name(), "outer/inner/c");
    }
    EXPECT_EQ(constant(Tensor::scalar(1.F), "c").name(), "c");
    return x;
  });
}

TEST(Building, IsRefusedWhereNothingIsTraced) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  EXPECT_THAT(error_of([] { constant(1.F); }),
              AllOf(HasSubstr("constant() needs a function that is being traced"),
                    HasSubstr("GraphBuilder::constant()")));
  EXPECT_THROW(static_cast<void>(name_scope("layer")), FailedPrecondition);
}

}  // namespace
}  // namespace lockstep
