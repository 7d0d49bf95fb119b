// Tests: core/compute_device.cpp, core/runtime.cpp
#include "lockstep/core/compute_device.h"

#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/runtime.h"
#include "lockstep/core/tensor.h"
#include "support/far_memory.h"
#include "support/strategy_test.h"

namespace lockstep {
namespace {

using testing::error_of;
using testing::FarPool;

class Given : public DeviceBackend {
 public:
  explicit Given(std::vector<std::shared_ptr<ComputeDevice>> devices) : devices_(std::move(devices)) {}
  std::vector<std::shared_ptr<ComputeDevice>> open() override { return devices_; }

 private:
  std::vector<std::shared_ptr<ComputeDevice>> devices_;
};

std::shared_ptr<ComputeDevice> device(const char* name, std::shared_ptr<MemoryPool> pool) {
  const DeviceFacts facts{.device = Device::parse(name), .memory = pool->memory(), .kernels = "mine"};
  return std::make_shared<ComputeDevice>(facts, std::move(pool));
}

Runtime runtime_of(std::vector<std::shared_ptr<ComputeDevice>> devices) {
  return Runtime({.threads = 1, .backends = {std::make_shared<Given>(std::move(devices))}});
}

TEST(ComputeDevice, ARuntimeHasTheDevicesOfItsBackends) {
  const auto one = std::make_shared<FarPool>(MemoryId{1}), two = std::make_shared<FarPool>(MemoryId{2});
  const Runtime runtime = runtime_of({device("gpu:0", one), device("gpu:1", two), device("gpu:2", one)});
  ASSERT_EQ(runtime.devices().size(), 4U);
  EXPECT_EQ(runtime.devices()[3], Device::parse("gpu:2"));
  EXPECT_EQ(runtime.pool(Device::parse("gpu:1")), two);
  EXPECT_EQ(runtime.find_pool(MemoryId{1}), one);
  EXPECT_EQ(runtime.find_pool(kHostMemory), runtime.pool(Device::parse("cpu:0")));
  EXPECT_EQ(runtime.find_pool(MemoryId{9}), nullptr);
  EXPECT_TRUE(runtime.topology().same_memory(Device::parse("gpu:0"), Device::parse("gpu:2")));
  EXPECT_FALSE(runtime.topology().same_memory(Device::parse("gpu:0"), Device::parse("gpu:1")));
  EXPECT_EQ(runtime.topology().facts(Device::parse("gpu:1")).kernels, "mine");
  const Tensor there = Tensor::from({2}, {1.F, 2.F}).to(Device::parse("gpu:1"), runtime);
  EXPECT_EQ(there.memory(), MemoryId{2});
}

TEST(ComputeDevice, WhatDoesNotFitIsRefused) {
  const auto pool = std::make_shared<FarPool>(MemoryId{1});
  const auto other = std::make_shared<FarPool>(MemoryId{1});
  EXPECT_NE(error_of([&] {
              runtime_of({device("gpu:0", pool), device("gpu:1", other)});
            }).find("two pools"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              runtime_of({device("gpu:0", pool), device("gpu:0", pool)});
            }).find("listed twice"),
            std::string::npos);
  EXPECT_NE(error_of([&] { runtime_of({nullptr}); }).find("empty pointer"), std::string::npos);
  EXPECT_NE(error_of([&] { Runtime({.backends = {nullptr}}); }).find("empty pointer"), std::string::npos);
  const DeviceFacts facts{.device = Device::parse("gpu:0"), .memory = {2}, .kernels = "mine"};
  EXPECT_NE(error_of([&] { ComputeDevice(facts, pool); }).find("its pool is of memory 1"), std::string::npos);
  EXPECT_NE(error_of([&] { ComputeDevice(facts, nullptr); }).find("no memory pool"), std::string::npos);
  const DeviceFacts unnamed{.device = Device::parse("gpu:0"), .memory = {1}};
  EXPECT_NE(error_of([&] { ComputeDevice(unnamed, pool); }).find("DeviceFacts::kernels"), std::string::npos);
}

TEST(ComputeDevice, ABackendWithoutDevicesAddsNone) { EXPECT_EQ(runtime_of({}).devices().size(), 1U); }

}  // namespace
}  // namespace lockstep
