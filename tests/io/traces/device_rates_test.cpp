// Tests: io/traces/device_rates.cpp
#include "lockstep/io/traces/device_rates.h"

#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/text/text.h"
#include "lockstep/testing/fake_gpu.h"
#include "lockstep/testing/null_device.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

constexpr RateOptions kSmall = {.copied_rows = 512, .most_rows = 256};

// Within what no machine is slower or faster than: sanitizers slow this down.
void expect_plausible(double per_second) {
  EXPECT_GT(per_second, 1e5);
  EXPECT_LT(per_second, 1e16);
}

TEST(DeviceRates, AreMeasuredOnCpus) {
  const DeviceRates rates =
      measure_rates(Runtime({.threads = 2, .cpu_devices = 2}), "cpu:1", {DType::kF32, DType::kBF16}, kSmall);
  EXPECT_EQ(rates.device, "cpu:1");
  expect_plausible(rates.bytes_per_second);
  ASSERT_EQ(rates.products.size(), 2U);
  EXPECT_EQ(rates.products[0].dtype, DType::kF32);
  EXPECT_EQ(rates.products[1].dtype, DType::kBF16);
  for (const DeviceRates::Product& product : rates.products) expect_plausible(product.flops_per_second);
}

TEST(DeviceRates, AreMeasuredOnStreams) {
  const Runtime runtime({.threads = 2, .backends = {std::make_shared<testing::FakeGpu>()}});
  RateOptions options = kSmall;
  options.allow_tf32 = true;
  const DeviceRates rates = measure_rates(runtime, "gpu:0", {DType::kF32}, options);
  expect_plausible(rates.bytes_per_second);
  ASSERT_EQ(rates.products.size(), 1U);
  EXPECT_TRUE(rates.products[0].tf32);
  expect_plausible(rates.products[0].flops_per_second);
}

TEST(DeviceRates, FewerRowsAreCopiedIfThereIsLittleMemory) {
  const auto gpu =
      std::make_shared<testing::FakeGpu>(testing::FakeGpuOptions{.memory_bytes = std::int64_t{3} << 20U});
  const Runtime runtime({.threads = 1, .backends = {gpu}});
  expect_plausible(measure_rates(runtime, "gpu:0", {}, {.copied_rows = 1024}).bytes_per_second);
}

TEST(DeviceRates, AreNotKnownOfADeviceThatDoesNotSayWhen) {
  const Runtime runtime({.threads = 1, .backends = {std::make_shared<testing::NullBackend>()}});
  const DeviceRates rates = measure_rates(runtime, "gpu:0", {DType::kF32}, kSmall);
  EXPECT_EQ(rates.bytes_per_second, 0);
  ASSERT_EQ(rates.products.size(), 1U);
  EXPECT_EQ(rates.products[0].flops_per_second, 0);
}

TEST(DeviceRates, AreThoseOfTheDevicesAndProductsOfATrace) {
  const Graph graph = parse(R"(
      %x = placeholder() : f64[4,4]
      %y = matmul(%x, %x) : f64[4,4] on "cpu:1"
      %z = relu(%y) : f64[4,4]
      return %z
  )");
  const Runtime runtime({.threads = 1, .cpu_devices = 2});
  TraceRecorder recorder;
  compile(graph, runtime).run({{"x", Tensor::full(DType::kF64, {4, 4}, 1)}}, {.observer = &recorder});
  const std::vector<DeviceRates> rates = measure_rates(runtime, recorder.trace(), kSmall);
  ASSERT_EQ(rates.size(), 2U);
  EXPECT_THAT((std::vector<std::string>{rates[0].device, rates[1].device}),
              ::testing::UnorderedElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(rates[0].bytes_per_second, rates[1].bytes_per_second) << "one memory, one measurement";
  for (const DeviceRates& device : rates) {
    ASSERT_EQ(device.products.size(), 1U);
    EXPECT_EQ(device.products[0].dtype, DType::kF64);
    EXPECT_FALSE(device.products[0].tf32);
  }
}

TEST(DeviceRates, AreTakenFromTheCallerWhoKnowsThem) {
  const Runtime runtime({.threads = 1});
  const DeviceRates known =
      measure_rates(runtime, "cpu:0", {DType::kF32}, {.bytes_per_second = 5, .flops_per_second = 7});
  EXPECT_EQ(known.bytes_per_second, 5);
  EXPECT_EQ(known.products.at(0).flops_per_second, 7);
  const DeviceRates none = measure_rates(runtime, "cpu:0", {DType::kF32}, {.measure = false});
  EXPECT_EQ(none.bytes_per_second, 0);
  EXPECT_EQ(none.products.at(0).flops_per_second, 0);
}

}  // namespace
}  // namespace lockstep
