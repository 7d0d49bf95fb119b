// Tests: core/topology.cpp
#include "lockstep/core/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/runtime.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Device device(std::string_view name) { return Device::parse(name); }

TEST(Topology, ReadsDevicesTheirMemoriesAndLinks) {
  const Topology t = Topology::parse(R"(
      cpu:0, cpu:1               # host memory
      gpu:0 gpu:1 memory=3 card=0 bytes=80GiB flops=6e13 bandwidth=3e12; gpu:2
      link 0 3 latency=1e-5 bandwidth=2.5e10
    )");
  ASSERT_EQ(t.devices().size(), 5U);
  EXPECT_EQ(t.facts(device("/device:CPU:1")).memory, kHostMemory);
  const DeviceFacts& gpu = t.facts(device("gpu:1"));
  EXPECT_EQ(gpu.memory, MemoryId{3});
  EXPECT_EQ(gpu.card, 0);
  EXPECT_EQ(gpu.memory_bytes, std::int64_t{80} << 30);
  EXPECT_EQ(gpu.flops, 6e13);
  EXPECT_EQ(gpu.bytes_per_second, 3e12);
  EXPECT_EQ(t.facts(device("gpu:2")).memory, MemoryId{4});
  EXPECT_TRUE(t.same_memory(device("gpu:0"), device("gpu:1")));
  EXPECT_FALSE(t.same_memory(device("gpu:0"), device("gpu:2")));
  EXPECT_FALSE(t.same_memory(device("gpu:0"), device("cpu:0")));
  for (const auto& [from, to] : {std::pair(0U, 3U), std::pair(3U, 0U)}) {
    const MemoryLink* link = t.link({from}, {to});
    ASSERT_NE(link, nullptr);
    EXPECT_EQ(link->latency, 1e-5);
    EXPECT_EQ(link->bytes_per_second, 2.5e10);
  }
  EXPECT_EQ(t.link({0}, {4}), nullptr);
  EXPECT_EQ(t.facts(device("cpu:0")).kernels, "cpu");  // unless it is stated
  EXPECT_EQ(t.facts(device("gpu:0")).kernels, "");
}

TEST(Topology, PrintsWhatItReads) {
  for (const char* text :
       {"", "cpu:0 memory=0\n", "worker /job:w/task:1\ncpu:0 memory=0\n/job:w/task:2/gpu:0 memory=7 card=1\n",
        "cpu:0 memory=0 kernels=slow\ngpu:0 memory=1 kernels=cuda collectives=nccl\n",
        "gpu:0 memory=1 card=0 bytes=1024 flops=1.5e+13 bandwidth=1e+12\ngpu:1 memory=0\n"
        "link 0 1 latency=1e-06\nlink 1 2 bandwidth=5\n"}) {
    EXPECT_EQ(Topology::parse(text).to_string(), text);
    EXPECT_EQ(Topology::parse(Topology::parse(text).to_string()), Topology::parse(text));
  }
}

// Of devices that nothing is known about: CPUs of one process compute in one memory, others each in their own.
TEST(Topology, AssumesOnlyWhatNamesSay) {
  const Topology none;
  EXPECT_TRUE(none.same_memory(device("cpu:0"), device("cpu:5")));
  EXPECT_TRUE(none.same_memory(device("/job:w/task:1/cpu:0"), device("/job:w/task:1/cpu:1")));
  EXPECT_FALSE(none.same_memory(device("/job:w/task:0/cpu:0"), device("/job:w/task:1/cpu:0")));
  EXPECT_TRUE(none.same_memory(device("gpu:0"), device("gpu:0")));
  EXPECT_FALSE(none.same_memory(device("gpu:0"), device("gpu:1")));
  EXPECT_FALSE(none.has_device(device("cpu:0")));
  const Topology others = Topology::parse("/job:w/task:1/cpu:0 /job:w/task:1/cpu:1 /job:w/task:2/cpu:0");
  EXPECT_EQ(others.facts(device("/job:w/task:1/cpu:0")).memory,
            others.facts(device("/job:w/task:1/cpu:1")).memory);
  EXPECT_NE(others.facts(device("/job:w/task:1/cpu:0")).memory,
            others.facts(device("/job:w/task:2/cpu:0")).memory);
  EXPECT_NE(others.facts(device("/job:w/task:1/cpu:0")).memory, kHostMemory);
}

TEST(Topology, KnowsItsOwnDevicesByBothNames) {
  const Runtime runtime({.threads = 1, .cpu_devices = 2, .worker = {"worker", 1}});
  EXPECT_TRUE(runtime.has_device(device("cpu:1")));
  EXPECT_TRUE(runtime.has_device(device("/job:worker/task:1/cpu:1")));
  EXPECT_FALSE(runtime.has_device(device("/job:worker/task:0/cpu:1")));
  EXPECT_EQ(runtime.pool(device("/job:worker/task:1/cpu:1")), runtime.pool(device("cpu:1")));
  EXPECT_TRUE(runtime.topology().same_memory(device("cpu:0"), device("/job:worker/task:1/cpu:1")));
  EXPECT_EQ(runtime.topology().to_string(),
            "worker /job:worker/task:1\ncpu:0 memory=0 card=0\ncpu:1 memory=0 card=0\n");
  EXPECT_THROW(Runtime({.worker = {"worker", -1}}), InvalidArgument);
}

TEST(Topology, RefusesWhatItDoesNotUnderstand) {
  const auto refusal = [](std::string_view text) -> std::string {
    try {
      Topology::parse(text);
    } catch (const InvalidArgument& error) {
      return error.message();
    }
    return "read";
  };
  EXPECT_EQ(refusal("cpu:0\ngpu:0 cpu:0"), "topology, line 2, 'gpu:0 cpu:0': device cpu:0 is listed twice");
  EXPECT_THAT(refusal("tpu:0"),
              AllOf(HasSubstr("line 1, 'tpu:0'"), HasSubstr("cannot read the device name")));
  EXPECT_THAT(refusal("gpu:0 speed=3"), HasSubstr("there is no fact 'speed'; there are memory, card, bytes"));
  EXPECT_THAT(refusal("gpu:0 kernels="), HasSubstr("names no kernel set"));
  EXPECT_THAT(refusal("gpu:0 kernels=a gpu:1"), HasSubstr("devices come first"));
  EXPECT_THAT(refusal("gpu:0 memory=x"), HasSubstr("'x' is no number of a memory"));
  EXPECT_THAT(refusal("gpu:0 memory=99999999"), HasSubstr("too large"));
  EXPECT_THAT(refusal("gpu:0 bytes=-1"), HasSubstr("'-1' is no number of bytes"));
  EXPECT_THAT(refusal("gpu:0 bytes=9999999999GiB"), HasSubstr("is no number of bytes"));
  EXPECT_THAT(refusal("gpu:0 flops=inf"), HasSubstr("'inf' is no rate"));
  EXPECT_THAT(refusal("gpu:0 memory=1 gpu:1"), HasSubstr("devices come first"));
  EXPECT_THAT(refusal("memory=1"), HasSubstr("facts belong to devices"));
  EXPECT_THAT(refusal("cpu:0 memory=1"), HasSubstr("which computes in memory 0, got memory 1"));
  EXPECT_THAT(refusal("link 0"), HasSubstr("a link needs two memories"));
  EXPECT_THAT(refusal("link 1 1"), HasSubstr("memory 1 needs no link to itself"));
  EXPECT_THAT(refusal("link 0 1; link 1 0"), HasSubstr("between memories 1 and 0 is listed twice"));
  EXPECT_THAT(refusal("link 0 1 speed=1"), HasSubstr("is no fact of a link"));
  EXPECT_THAT(refusal("worker gpu"), HasSubstr("cannot read the device name"));
  EXPECT_THAT(refusal("cpu:0; worker /job:w/task:0"), HasSubstr("the worker comes before the devices"));
  EXPECT_THROW((void)Topology().facts(device("cpu:0")), NotFound);
}

}  // namespace
}  // namespace lockstep
