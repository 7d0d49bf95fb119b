// Tests: core/tensor.cpp, core/memory.cpp
#include <memory>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/runtime.h"
#include "lockstep/core/tensor.h"
#include "support/far_memory.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<testing::FarPool> far_pool(std::uint32_t memory = 7) {
  return std::make_shared<testing::FarPool>(MemoryId{memory});
}

TEST(TensorMemory, MovesThereAndBack) {
  const auto pool = far_pool();
  const Tensor here = Tensor::from({2, 3}, {1.F, 2.F, 3.F, 4.F, 5.F, 6.F});
  const Tensor there = here.to(pool);
  EXPECT_EQ(here.memory(), kHostMemory);
  EXPECT_EQ(there.memory(), MemoryId{7});
  EXPECT_TRUE(here.host().shares_memory_with(here));
  EXPECT_TRUE(there.to(pool).shares_memory_with(there));
  EXPECT_EQ(there.host().memory(), kHostMemory);
  EXPECT_TRUE(there.host().bit_equal(here));
  EXPECT_TRUE(there.to(default_host_pool()).bit_equal(here));
  EXPECT_TRUE(there.to(far_pool(8)).bit_equal(there));  // between two memories, neither of them the host's
  EXPECT_EQ(there.slice(1, 2).host().data<float>()[0], 4);
  EXPECT_EQ(there.reshape({3, 2}).memory(), MemoryId{7});
  float mine[] = {1, 2};
  EXPECT_EQ(Tensor::view(DType::kF32, {2}, mine).memory(), kHostMemory);
}

TEST(TensorMemory, IsPrintedComparedClonedAndAssignedFromAnywhere) {
  const auto pool = far_pool();
  const Tensor there = Tensor::from({2}, {3.F, 4.F}).to(pool);
  std::ostringstream text;
  text << there;
  EXPECT_EQ(text.str(), "f32[2] {3, 4}");
  EXPECT_EQ(there.slice(1, 2).item(), 4);
  EXPECT_TRUE(there.bit_equal(Tensor::from({2}, {3.F, 4.F})));
  EXPECT_FALSE(Tensor::from({2}, {3.F, 5.F}).bit_equal(there));
  Tensor copy = there.clone();
  EXPECT_EQ(copy.memory(), MemoryId{7});
  EXPECT_FALSE(copy.shares_memory_with(there));
  copy.assign(Tensor::from({2}, {8.F, 9.F}));
  EXPECT_TRUE(there.bit_equal(Tensor::from({2}, {3.F, 4.F})));
  Tensor here = Tensor::zeros({2});
  here.assign(copy);
  EXPECT_EQ(here.data<float>()[1], 9);
  copy.assign(there);
  EXPECT_TRUE(copy.bit_equal(there));
  EXPECT_TRUE(Tensor::zeros({0}).to(pool).bit_equal(Tensor::zeros({0})));
}

TEST(TensorMemory, ContentsThatTheHostDoesNotReadAreAnError) {
  const Tensor there = Tensor::from({2}, {3.F, 4.F}).to(far_pool());
  try {
    (void)there.data<float>();
    FAIL();
  } catch (const FailedPrecondition& error) {
    EXPECT_THAT(error.what(), HasSubstr("f32[2] lies in memory 7, which the host does not read"));
    EXPECT_THAT(error.what(), HasSubstr("ask host()"));
  }
  EXPECT_THROW((void)there.to(nullptr), InvalidArgument);
  EXPECT_THROW((void)Tensor().to(far_pool()), FailedPrecondition);
  EXPECT_FALSE(Tensor().host().defined());
}

TEST(TensorMemory, OfADevice) {
  const Runtime runtime({.threads = 1, .cpu_devices = 2});
  const Tensor x = Tensor::from({2}, {3.F, 4.F});
  EXPECT_TRUE(x.to(Device::parse("cpu:1"), runtime).shares_memory_with(x));
  EXPECT_THROW((void)x.to(Device::parse("gpu:0"), runtime), NotFound);
}

}  // namespace
}  // namespace lockstep
