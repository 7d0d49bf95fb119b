// Passes of graph/passes that change training, under replication: replicas together are one device with the whole batch.
#include <gtest/gtest.h>

#include "lockstep/strategies/passes/register.h"
#include "strategies/passes/training.h"

namespace lockstep {
namespace {

class ChangedTraining : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { register_strategy_passes(); }
};

TEST_P(ChangedTraining, NormsAreThoseOfTheWholeBatch) {
  for (const char* clip : {"clip-by-global-norm(norm=0.01)", "clip-by-global-norm(norm=100.0)"}) {
    testing::expect_same_training(clip, str(clip, ",insert-all-reduce,bucket-all-reduce,replicate"),
                                  GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Replicas, ChangedTraining, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace lockstep
