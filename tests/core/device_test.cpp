// Tests: core/device.cpp, core/device_spellings.cpp, core/error.cpp
#include "lockstep/core/device.h"

#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/device_spellings.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(Device, EverySpellingHasOneCanonicalForm) {
  const struct {
    const char* text;
    const char* canonical;
  } cases[] = {
      {"cpu:0", "cpu:0"},
      {"/cpu:0", "cpu:0"},
      {"CPU:0", "cpu:0"},
      {"Gpu:2", "gpu:2"},
      {"/device:CPU:0", "cpu:0"},
      {"cpu", "cpu:0"},
      {"/gpu", "gpu:0"},
      {"/device:GPU", "gpu:0"},
      {"/gpu:1", "gpu:1"},
      {"/device:GPU:1", "gpu:1"},
      {"/device:gpu:01", "gpu:1"},
      {"cpu:2147483647", "cpu:2147483647"},
      {"/replica:0/cpu:1", "cpu:1"},
      {"/job:worker/replica:0/task:1/device:GPU:0", "/job:worker/task:1/gpu:0"},
      {"/job:worker/task:1/gpu:0", "/job:worker/task:1/gpu:0"},
      {"/job:worker/task:0/CPU:0", "/job:worker/task:0/cpu:0"},
      {"/job:Chief_2/cpu:3", "/job:Chief_2/cpu:3"},
  };
  for (const auto& [text, canonical] : cases) {
    const Device device = Device::parse(text);
    EXPECT_EQ(device.to_string(), canonical) << text;
    EXPECT_EQ(Device::parse(device.to_string()), device) << text;
  }
}

TEST(Device, PartsAreWhatTheNameSays) {
  const Device device = Device::parse("/job:worker/replica:0/task:12/device:GPU:3");
  EXPECT_EQ(device.job, "worker");
  EXPECT_EQ(device.task, 12);
  EXPECT_EQ(device.kind, DeviceKind::kGpu);
  EXPECT_EQ(device.index, 3);
  EXPECT_EQ(Device::parse("cpu:1").task, -1);
}

TEST(Device, RefusalQuotesThePartThatIsNotUnderstood) {
  const struct {
    const char* text;
    const char* expected;
  } cases[] = {
      {"", "it is empty"},
      {"/", "'' is not understood: the kind of a device is cpu or gpu"},
      {"tpu:0", "'tpu:0' is not understood: the kind of a device is cpu or gpu"},
      {"/device:TPU:0", "'TPU:0' is not understood"},
      {"device:CPU:0", "'device:CPU:0' is not understood"},
      {"cpu:", "'cpu:' is not understood: a whole number"},
      {"cpu:x", "'cpu:x' is not understood: a whole number"},
      {"cpu:-1", "'cpu:-1' is not understood"},
      {"cpu:+1", "'cpu:+1' is not understood"},
      {"cpu:1x", "'cpu:1x' is not understood"},
      {"cpu: 1", "'cpu: 1' is not understood"},
      {"cpu:2147483648", "'cpu:2147483648' is not understood"},
      {"cpu:*", "'cpu:*' is not understood"},
      {"cpu:0/", "'cpu:0/' is not understood"},
      {"/cpu:0/", "'/' is not understood: nothing may follow"},
      {"/cpu:0/gpu:0", "'/gpu:0' is not understood: nothing may follow"},
      {" cpu:0", "' cpu:0' is not understood"},
      {"cpu0", "'cpu0' is not understood"},
      {"/job:worker", "it names no device"},
      {"/job:worker/task:1", "it names no device"},
      {"/job:/cpu:0", "'job:' is not understood: a job name is"},
      {"/job:1st/cpu:0", "'job:1st' is not understood"},
      {"/job:a-b/cpu:0", "'job:a-b' is not understood"},
      {"/task:1/cpu:0", "'task:1' is not understood: a task needs a job"},
      {"/job:worker/replica:1/task:0/cpu:0", "'replica:1' is not understood: a replica can only be 0"},
      {"/job:worker/task:x/cpu:0", "'task:x' is not understood"},
      {"/task:1/job:worker/cpu:0", "'task:1' is not understood"},
      {"/job:a/job:b/cpu:0", "'job:b' is not understood"},
      {"/JOB:a/cpu:0", "'JOB:a' is not understood"},
      {"//cpu:0", "'' is not understood"},
  };
  for (const auto& [text, expected] : cases) {
    try {
      const Device device = Device::parse(text);
      ADD_FAILURE() << "'" << text << "' was read as " << device;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.message(), HasSubstr(str("device name '", text, "'")));
      EXPECT_THAT(error.message(), HasSubstr(expected)) << text;
      EXPECT_THAT(error.message(), HasSubstr("expected a name such as \"cpu:0\""));
    }
  }
}

TEST(Device, IsAValueThatSorts) {
  const std::set<Device> devices = {Device::parse("gpu:1"), Device::parse("/cpu:0"), Device::parse("cpu"),
                                    Device::parse("gpu:0"), Device::parse("/job:a/cpu:0")};
  std::ostringstream out;
  for (const Device& device : devices) out << device << ' ';
  EXPECT_EQ(out.str(), "cpu:0 gpu:0 gpu:1 /job:a/cpu:0 ");
}

TEST(DeviceSpellings, BecomeCanonicalWhereTheyAreNamesOfDevices) {
  DeviceSpellings spellings;
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(spellings.canonical("/device:CPU:1"), "cpu:1");
    EXPECT_EQ(spellings.canonical("gpu"), "gpu:0");
    EXPECT_EQ(spellings.canonical("toaster:1"), "toaster:1");
    EXPECT_EQ(spellings.canonical(""), "");
  }
}

}  // namespace
}  // namespace lockstep
