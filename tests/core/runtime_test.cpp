// Tests: core/runtime.cpp, core/tensor.cpp
#include "lockstep/core/runtime.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/taskflow.h"
#include "lockstep/core/tensor.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(Runtime, DefaultIsOneCpuDeviceAndThreads) {
  const Runtime runtime;
  ASSERT_EQ(runtime.devices().size(), 1U);
  EXPECT_EQ(runtime.devices()[0], Device::parse("cpu:0"));
  EXPECT_GE(runtime.scheduler().num_workers(), 1U);
  EXPECT_EQ(runtime.seed(), 0U);
}

TEST(Runtime, HasTheDevicesAndThreadsThatWereAskedFor) {
  const Runtime runtime({.threads = 2, .cpu_devices = 3, .seed = 7});
  ASSERT_EQ(runtime.devices().size(), 3U);
  EXPECT_EQ(runtime.devices()[2].to_string(), "cpu:2");
  EXPECT_EQ(runtime.scheduler().num_workers(), 2U);
  EXPECT_EQ(runtime.seed(), 7U);
}

TEST(Runtime, SaysWhichDevicesItHas) {
  const Runtime runtime({.threads = 1, .cpu_devices = 2});
  EXPECT_TRUE(static_cast<bool>(runtime.has_device(Device::parse("cpu:1"))));
  const Decision no = runtime.has_device(Device::parse("gpu:0"));
  EXPECT_FALSE(static_cast<bool>(no));
  EXPECT_EQ(no.reason(), "this runtime has no device gpu:0; it has cpu:0, cpu:1");
  EXPECT_FALSE(static_cast<bool>(runtime.has_device(Device::parse("/job:worker/task:0/cpu:0"))));
}

TEST(Runtime, EachDeviceHasAPoolOfItsOwn) {
  const Runtime runtime({.threads = 1, .cpu_devices = 2});
  const auto& first = runtime.pool(Device::parse("cpu:0"));
  const auto& second = runtime.pool(Device::parse("cpu:1"));
  EXPECT_NE(first, second);
  const Tensor tensor = Tensor::empty(DType::kF32, {4}, first);
  EXPECT_EQ(first->stats().live_bytes, 16);
  EXPECT_EQ(second->stats().live_bytes, 0);
  EXPECT_THROW(runtime.pool(Device::parse("gpu:0")), NotFound);
}

TEST(Runtime, CopiesShareOneState) {
  const Runtime runtime({.threads = 1});
  const Runtime copy = runtime;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(&copy.scheduler(), &runtime.scheduler());
  EXPECT_EQ(copy.variables(), runtime.variables());
  EXPECT_NE(Runtime({.threads = 1}).variables(), runtime.variables());
}

TEST(Runtime, TensorsOutliveIt) {
  Tensor tensor;
  {
    const Runtime runtime({.threads = 1});
    tensor = Tensor::empty(DType::kF32, {4}, runtime.pool(runtime.devices()[0]));
  }
  tensor.data<float>()[3] = 1;
  EXPECT_EQ(tensor.data<float>()[3], 1.F);
}

TEST(Runtime, RunsOnABorrowedExecutor) {
  tf::Executor executor(2);
  std::atomic<int> worker{-1};
  {
    const Runtime runtime({.scheduler = borrow(executor)});
    runtime.scheduler().submit([&] { worker = executor.this_worker_id(); });
    runtime.scheduler().drain();
  }
  EXPECT_GE(worker.load(), 0);
}

TEST(Runtime, RefusesOptionsThatContradict) {
  tf::Executor executor(1);
  try {
    const Runtime runtime({.threads = 2, .scheduler = borrow(executor)});
    FAIL() << "both were taken";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.message(), HasSubstr("leave threads at 0"));
  }
  EXPECT_THROW(Runtime({.cpu_devices = 0}), InvalidArgument);
  EXPECT_THROW(Runtime({.cpu_devices = static_cast<std::size_t>(-1)}), InvalidArgument);
  EXPECT_THROW(Runtime({.threads = static_cast<std::size_t>(-1)}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
