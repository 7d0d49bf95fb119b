// Tests: core/compute_device.cpp, core/runtime.cpp, testing/fake_gpu.cpp
// The fake GPU itself: a mistake that a GPU would punish now and then must be punished each time.
#include "lockstep/testing/fake_gpu.h"

#include <atomic>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/runtime.h"
#include "lockstep/core/tensor.h"
#include "support/forked.h"
#include "support/strategy_test.h"

namespace lockstep::testing {
namespace {

// In a child: it is for the rest of the process.
TEST(DefaultBackends, AreThoseOfRuntimesThatAreNotGivenOthers) {
  EXPECT_THROW(add_default_backend(nullptr), InvalidArgument);
  EXPECT_THROW(set_default_backends({nullptr}), InvalidArgument);
  EXPECT_EQ(exit_status_of_child([] {
              set_default_backends({});  // without the cards of this machine
              const Runtime earlier({.threads = 1});
              add_default_backend(std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 2}));
              const auto devices = [](const Runtime& runtime) {
                std::size_t gpus = 0;
                for (const Device& device : runtime.devices())
                  gpus += device.kind == DeviceKind::kGpu ? 1 : 0;
                return gpus;
              };
              if (default_backends().size() != 1) return 1;
              if (devices(earlier) != 0) return 2;
              if (devices(Runtime({.threads = 1})) != 2) return 3;
              if (devices(Runtime({.threads = 1, .backends = {}})) != 0) return 4;
              return 0;
            }),
            0);
}

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FakeGpuTest : public ::testing::Test {
 protected:
  explicit FakeGpuTest(FakeGpuOptions options = {.devices = 2})
      : gpu_(std::make_shared<FakeGpu>(std::move(options))) {}

  Stream& stream(StreamRole role = StreamRole::kCompute, int device = 0) {
    return *gpu_->device(device)->stream(role);
  }
  std::unique_ptr<Event> event() { return gpu_->device(0)->make_event(); }
  Tensor floats(std::int64_t count, int device = 0) {
    return Tensor::empty(DType::kF32, {count}, gpu_->device(device)->pool());
  }
  FakeRange all(const Tensor& tensor) { return {tensor.raw(), tensor.num_bytes()}; }

  // to[i] = from[i] + add.
  void put_add(Stream& on, const char* what, const Tensor& from, Tensor& to, float add) {
    FakeGpu::call(on, {what, {all(from)}, {all(to)}, [this, from, to, add]() mutable {
                         const auto* in = static_cast<const float*>(gpu_->near(from.raw()));
                         auto* out = static_cast<float*>(gpu_->near(to.raw()));
                         for (std::int64_t i = 0; i < to.num_elements(); ++i) out[i] = in[i] + add;
                       }});
  }
  void put_write(Stream& on, const char* what, const Tensor& to) {
    FakeGpu::call(on, {what, {}, {all(to)}, {}});
  }
  void put_read(Stream& on, const char* what, const Tensor& from) {
    FakeGpu::call(on, {what, {all(from)}, {}, {}});
  }
  // Sleeps until everything on the stream is done.
  void finish(Stream& on) {
    const std::unique_ptr<Event> end = event();
    on.record(*end);
    end->wait();
  }

  std::shared_ptr<FakeGpu> gpu_;
};

using FakeGpuDeath = FakeGpuTest;

TEST_F(FakeGpuTest, ARuntimeFindsItsDevices) {
  const Runtime runtime({.threads = 1, .backends = {gpu_}});
  EXPECT_EQ(runtime.devices().size(), 3U);
  EXPECT_EQ(runtime.backend_device(Device::parse("gpu:1")), gpu_->device(1).get());
  EXPECT_EQ(runtime.backend_device(Device::parse("cpu:0")), nullptr);
  EXPECT_THROW(runtime.backend_device(Device::parse("gpu:2")), NotFound);
  EXPECT_FALSE(runtime.topology().same_memory(Device::parse("gpu:0"), Device::parse("gpu:1")));
  EXPECT_TRUE(gpu_->device(0)->can_record());
}

TEST_F(FakeGpuTest, WorkOnAStreamRunsInItsOrder) {
  Tensor a = Tensor::from({3}, {1.F, 2.F, 3.F}).to(gpu_->device(0)->pool()), b = floats(3);
  put_add(stream(), "one", a, b, 1);
  put_add(stream(), "two", b, a, 10);
  finish(stream());
  EXPECT_TRUE(a.host().bit_equal(Tensor::from({3}, {12.F, 13.F, 14.F})));
  EXPECT_EQ(gpu_->calls(), 2U);
}

TEST_F(FakeGpuTest, CopiesAndFillsGoBetweenAllMemories) {
  const Tensor from = Tensor::from({2}, {1.F, 2.F});
  Tensor here = floats(2), there = floats(2, 1), back = Tensor::zeros(DType::kF32, {2});
  const MemoryId one = here.memory(), two = there.memory();
  stream().copy(here.raw(), one, from.raw(), kHostMemory, 8);
  stream().copy(there.raw(), two, here.raw(), one, 8);
  finish(stream());
  stream(StreamRole::kCopyOut, 1).copy(back.raw(), kHostMemory, there.raw(), two, 8);
  stream().fill(here.raw(), std::byte{0}, 4);
  finish(stream());
  finish(stream(StreamRole::kCopyOut, 1));
  EXPECT_TRUE(back.bit_equal(from));
  EXPECT_TRUE(here.host().bit_equal(Tensor::from({2}, {0.F, 2.F})));
}

TEST_F(FakeGpuDeath, TheHostCannotTouchItsMemory) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const Tensor there = floats(2);
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile const float*>(there.raw())), "");
}

TEST_F(FakeGpuTest, MemoryThatIsElsewhereIsRefused) {
  Tensor here = floats(2), there = floats(2, 1), host = Tensor::zeros(DType::kF32, {2});
  const MemoryId one = here.memory(), two = there.memory();
  EXPECT_THAT(error_of([&] { stream().copy(here.raw(), two, host.raw(), kHostMemory, 8); }),
              HasSubstr("a copy writes"));
  EXPECT_THAT(error_of([&] { stream().copy(here.raw(), one, there.raw(), kHostMemory, 8); }),
              HasSubstr("a copy reads"));
  EXPECT_THAT(
      error_of([&] { stream(StreamRole::kCompute, 1).copy(here.raw(), one, host.raw(), kHostMemory, 8); }),
      HasSubstr("neither reads nor writes there"));
}

// --- order

TEST_F(FakeGpuTest, UnorderedCallsAreRefusedHoweverTheyWouldRun) {
  const Tensor a = floats(8);
  Stream &compute = stream(), &in = stream(StreamRole::kCopyIn);
  put_write(compute, "writer", a);
  EXPECT_THAT(error_of([&] { put_write(in, "other", a); }),
              AllOf(HasSubstr("other writes memory that writer writes"), HasSubstr("comes first")));
  EXPECT_THAT(error_of([&] { put_read(in, "reader", a); }),
              HasSubstr("reader reads memory that writer writes"));
  const std::unique_ptr<Event> written = event();
  compute.record(*written);
  in.wait(*written);
  put_read(in, "reader", a);
  put_read(compute, "second reader", a);  // readers need no order
  EXPECT_THAT(error_of([&] { put_write(compute, "again", a); }),
              HasSubstr("again writes memory that reader reads"));
  finish(compute);
  finish(in);
}

TEST_F(FakeGpuTest, OnlyBytesThatOverlapNeedAnOrder) {
  const Tensor a = floats(8);
  FakeGpu::call(stream(), {"left", {}, {{a.raw(), 16}}, {}});
  FakeGpu::call(stream(StreamRole::kCopyIn),
                {"right", {}, {{static_cast<const char*>(a.raw()) + 16, 16}}, {}});
  EXPECT_THAT(error_of([&] {
                FakeGpu::call(stream(StreamRole::kCopyOut),
                              {"both", {{static_cast<const char*>(a.raw()) + 12, 8}}, {}, {}});
              }),
              HasSubstr("both reads memory that left writes"));
  finish(stream());
  finish(stream(StreamRole::kCopyIn));
}

TEST_F(FakeGpuTest, OrderPassesFromEventToEvent) {
  const Tensor a = floats(4);
  Stream *one = &stream(), *two = &stream(StreamRole::kCopyIn), *three = &stream(StreamRole::kCompute, 1);
  const std::unique_ptr<Event> first = event(), second = event();
  put_write(*one, "a", a);
  one->record(*first);
  two->wait(*first);
  two->record(*second);
  put_write(*two, "later", a);
  three->wait(*second);  // is after "a", not after "later"
  EXPECT_THAT(error_of([&] { put_read(*three, "c", a); }), HasSubstr("c reads memory that later writes"));
  finish(*two);  // what the host has waited for is before all that it does
  put_read(*three, "c", a);
  finish(*three);
}

TEST_F(FakeGpuTest, TheHostHasToWaitToo) {
  Tensor a = floats(4);
  put_write(stream(), "writer", a);
  EXPECT_THAT(error_of([&] { a.host(); }), HasSubstr("the host reads memory that writer writes"));
  finish(stream());
  EXPECT_EQ(a.host().num_elements(), 4);
  put_read(stream(), "reader", a);
  EXPECT_EQ(a.host().num_elements(), 4);
  EXPECT_THAT(error_of([&] { a.assign(Tensor::zeros(DType::kF32, {4})); }),
              HasSubstr("the host writes memory that reader reads"));
  finish(stream());
  a.assign(Tensor::zeros(DType::kF32, {4}));
}

TEST_F(FakeGpuTest, MemoryInUseIsNotGivenBack) {
  {
    const Tensor a = floats(4);
    put_write(stream(), "writer", a);
  }
  EXPECT_THAT(error_of([&] { finish(stream()); }),
              HasSubstr("memory was given back that writer may still use"));
}

// --- events

TEST_F(FakeGpuTest, EventsSayWhenWorkIsDone) {
  const std::unique_ptr<Event> done = event();
  EXPECT_TRUE(done->is_done()) << "it was never set";
  gpu_->hold(0, StreamRole::kCompute);
  std::atomic<int> ran = 0;
  FakeGpu::call(stream(), {"count", {}, {}, [&] { ++ran; }});
  stream().record(*done);
  EXPECT_FALSE(done->is_done());
  EXPECT_FALSE(done->wait(std::chrono::steady_clock::now() + 5ms));
  EXPECT_EQ(ran, 0);
  // Another stream that waits for it stands as well.
  Stream& other = stream(StreamRole::kCopyOut);
  other.wait(*done);
  FakeGpu::call(other, {"after", {}, {}, [&] { EXPECT_EQ(ran, 1); }});
  gpu_->release(0, StreamRole::kCompute);
  EXPECT_TRUE(done->wait(std::chrono::steady_clock::now() + 60s));
  finish(other);
}

struct Told final : Completion {
  void end(std::exception_ptr why) noexcept override { told.set_value(std::move(why)); }
  std::promise<std::exception_ptr> told;
};

TEST_F(FakeGpuTest, EventsSignalCompletions) {
  const std::unique_ptr<Event> done = event();
  Told at_once, later;
  done->when_done(at_once);
  EXPECT_EQ(at_once.told.get_future().get(), nullptr);
  gpu_->hold(0, StreamRole::kCompute);
  Tensor a = floats(2);
  put_write(stream(), "writer", a);
  stream().record(*done);
  done->when_done(later);
  std::future<std::exception_ptr> told = later.told.get_future();
  EXPECT_EQ(told.wait_for(5ms), std::future_status::timeout);
  gpu_->release(0, StreamRole::kCompute);
  EXPECT_EQ(told.get(), nullptr);
  EXPECT_EQ(a.host().num_elements(), 2) << "the host has waited";
}

// --- recordings

TEST_F(FakeGpuTest, ARecordingRunsWhatItKept) {
  Tensor a = Tensor::zeros(DType::kF32, {2}).to(gpu_->device(0)->pool()), b = floats(2);
  stream().begin_recording();
  put_add(stream(), "one", a, b, 1);
  put_add(stream(), "two", b, a, 1);
  const std::unique_ptr<Recording> steps = stream().end_recording();
  finish(stream());
  EXPECT_EQ(a.host().data<float>()[0], 0) << "it did not run when it was recorded";
  for (int i = 0; i < 3; ++i) steps->replay(stream());
  finish(stream());
  EXPECT_EQ(a.host().data<float>()[1], 6);
  EXPECT_EQ(gpu_->replays(), 3U);
}

TEST_F(FakeGpuTest, BranchesOfARecordingAreOrderedByIt) {
  Tensor a = Tensor::zeros(DType::kF32, {2}).to(gpu_->device(0)->pool()), b = floats(2), c = floats(2),
         d = floats(2);
  Stream &main = stream(), &side = stream(StreamRole::kCommunication);
  const std::unique_ptr<Event> fork = event(), join = event();
  main.begin_recording();
  put_add(main, "one", a, b, 1);
  main.record(*fork);
  side.wait(*fork);
  put_add(side, "left", b, c, 10);
  side.record(*join);
  put_add(main, "right", b, d, 20);
  main.wait(*join);
  put_add(main, "back", c, a, 0);
  const std::unique_ptr<Recording> step = main.end_recording();
  gpu_->set_delays(100us, 7);
  for (int i = 0; i < 5; ++i) step->replay(main);
  finish(main);
  EXPECT_EQ(a.host().data<float>()[0], 55);
  // The stream that took part is free again, and has no order with the replays.
  step->replay(main);
  EXPECT_THAT(error_of([&] { put_write(side, "stranger", c); }), HasSubstr("stranger writes memory that"));
  finish(main);
}

TEST_F(FakeGpuTest, ReplaysNeedOrderAsCallsDo) {
  const Tensor a = floats(2);
  stream().begin_recording();
  put_write(stream(), "recorded", a);
  const std::unique_ptr<Recording> step = stream().end_recording();
  put_write(stream(StreamRole::kCopyIn), "copy in", a);
  EXPECT_THAT(error_of([&] { step->replay(stream()); }),
              HasSubstr("recorded writes memory that copy in writes"));
  finish(stream(StreamRole::kCopyIn));
}

// At the point where it waits, and in each replay for what the event marks then.
TEST_F(FakeGpuTest, ARecordingWaitsForEventsOfOutside) {
  Tensor fed = floats(2), read = floats(2);
  Stream &main = stream(), &in = stream(StreamRole::kCopyIn);
  const std::unique_ptr<Event> arrived = event();
  std::atomic<int> ran = 0;
  EXPECT_THAT(error_of([&] { main.wait_in_replays(*arrived); }), HasSubstr("no recording was begun"));
  main.begin_recording();
  FakeGpu::call(main, {"count", {}, {}, [&] { ++ran; }});
  main.wait_in_replays(*arrived);
  put_add(main, "reader", fed, read, 1);
  const std::unique_ptr<Recording> step = main.end_recording();
  for (int i = 1; i < 4; ++i) {
    const Tensor next = Tensor::full(DType::kF32, {2}, i);
    gpu_->hold(0, StreamRole::kCopyIn);
    in.copy(fed.raw(), fed.memory(), next.raw(), kHostMemory, 8);
    in.record(*arrived);
    step->replay(main);
    while (ran < i) std::this_thread::yield();
    gpu_->release(0, StreamRole::kCopyIn);
    finish(main);
    EXPECT_EQ(read.host().data<float>()[0], static_cast<float>(i + 1));
  }
  put_write(in, "writer", fed);  // which the event does not mark
  EXPECT_THAT(error_of([&] { step->replay(main); }), HasSubstr("reader reads memory that writer writes"));
  finish(main);
  finish(in);
}

TEST_F(FakeGpuTest, WhatCannotBeRecordedIsRefused) {
  const Tensor a = floats(2);
  Stream &main = stream(), &side = stream(StreamRole::kCopyIn);
  const std::unique_ptr<Event> outside = event(), fork = event();
  side.record(*outside);
  EXPECT_THAT(error_of([&] { main.end_recording(); }), HasSubstr("no recording was begun"));
  main.begin_recording();
  EXPECT_THAT(error_of([&] { main.begin_recording(); }), HasSubstr("already"));
  EXPECT_THAT(error_of([&] { outside->wait(); }), HasSubstr("a thread that records a stream cannot wait"));
  EXPECT_THAT(error_of([&] { outside->is_done(); }), HasSubstr("cannot wait for an event"));
  EXPECT_THAT(error_of([&] { a.host(); }), HasSubstr("cannot read the device's memory"));
  EXPECT_THAT(error_of([&] { main.wait(*outside); }), HasSubstr("an event of outside"));
  main.record(*fork);
  side.wait(*fork);
  put_write(side, "left alone", a);
  EXPECT_THAT(error_of([&] { main.end_recording(); }), HasSubstr("ends before work of another stream"));
  EXPECT_THAT(error_of([&] { fork->wait(); }), HasSubstr("says nothing outside of it"));
  EXPECT_THAT(error_of([&] { side.wait(*fork); }), HasSubstr("says nothing outside of it"));
  put_write(main, "usable again", a);
  finish(main);
  finish(side);
}

// --- faults

TEST_F(FakeGpuTest, AFailingCallLosesTheDevice) {
  gpu_->fail_call(1);
  std::atomic<int> ran = 0;
  const auto count = [&] { FakeGpu::call(stream(), {"count", {}, {}, [&] { ++ran; }}); };
  const std::unique_ptr<Event> before = event(), after = event();
  gpu_->hold(0, StreamRole::kCompute);
  count();
  stream().record(*before);
  count();
  count();
  stream().record(*after);
  gpu_->release(0, StreamRole::kCompute);
  before->wait();
  EXPECT_THAT(error_of([&] { after->wait(); }), HasSubstr("the device failed in count"));
  EXPECT_EQ(ran, 1);
  EXPECT_THAT(error_of([&] { count(); }), HasSubstr("the device failed"));
  finish(stream(StreamRole::kCompute, 1));  // the other device goes on
}

TEST_F(FakeGpuTest, CallsCanBeRefusedAndDevicesLost) {
  gpu_->refuse_call(0);
  EXPECT_THAT(error_of([&] { FakeGpu::call(stream(), {"x", {}, {}, {}}); }), HasSubstr("x could not be put"));
  FakeGpu::call(stream(), {"x", {}, {}, {}});
  Told told;
  const std::unique_ptr<Event> done = event();
  gpu_->hold(0, StreamRole::kCompute);
  stream().record(*done);
  done->when_done(told);
  gpu_->lose(0);
  EXPECT_THAT(error_of([&] { stream().record(*done); }), HasSubstr("device gpu:0 is lost"));
  gpu_->release(0, StreamRole::kCompute);
  EXPECT_NE(told.told.get_future().get(), nullptr);
}

TEST(FakeGpuMemory, IsSharedOrLimitedAsOneLikes) {
  FakeGpu gpu({.devices = 3, .memories = {0, 1, 0}, .memory_bytes = 1 << 20, .records = false});
  EXPECT_EQ(gpu.device(0)->pool(), gpu.device(2)->pool());
  EXPECT_NE(gpu.device(0)->facts().memory, gpu.device(1)->facts().memory);
  EXPECT_FALSE(gpu.device(0)->can_record());
  const Tensor fits = Tensor::empty(DType::kU8, {1 << 19}, gpu.device(0)->pool());
  try {
    Tensor::empty(DType::kU8, {(1 << 19) + 1}, gpu.device(2)->pool());
    FAIL() << "there is not as much";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  }
  Tensor::empty(DType::kU8, {1 << 20}, gpu.device(1)->pool());
}

// --- logical devices

TEST(LogicalDevices, AreOfOneCardAndKeepTheirShares) {
  const auto gpu = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 2, .memory_bytes = 1 << 20});
  const Runtime runtime({.threads = 1,
                         .backends = {gpu},
                         .gpus = {{.card = 1, .memory_bytes = 1000}, {.card = 0}, {.card = 1}}});
  const Device parts[] = {Device::parse("gpu:0"), Device::parse("gpu:1"), Device::parse("gpu:2")};
  const Topology& topology = runtime.topology();
  EXPECT_TRUE(topology.same_memory(parts[0], parts[2]));
  EXPECT_FALSE(topology.same_memory(parts[0], parts[1]));
  EXPECT_EQ(topology.facts(parts[0]).card, 1);
  EXPECT_EQ(topology.facts(parts[0]).memory_bytes, 1000);
  EXPECT_NE(gpu->device(0)->stream(StreamRole::kCompute), gpu->device(2)->stream(StreamRole::kCompute));
  const Tensor fits = Tensor::empty(DType::kU8, {1000}, runtime.pool(parts[0]));
  EXPECT_THAT(error_of([&] { Tensor::empty(DType::kU8, {1}, runtime.pool(parts[0])); }),
              HasSubstr("out of gpu memory"));
  Tensor::empty(DType::kU8, {1 << 19}, runtime.pool(parts[2]));  // the other part has no limit
}

TEST(LogicalDevices, WhatDoesNotFitIsRefused) {
  const auto gpu = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 1});
  EXPECT_THAT(error_of([&] { Runtime({.backends = {gpu}, .gpus = {{.card = 1}}}); }), HasSubstr("no card 1"));
  EXPECT_THAT(error_of([&] { Runtime({.backends = {}, .gpus = {{.card = 0}}}); }), HasSubstr("0 backends"));
  class Plain : public DeviceBackend {
    std::vector<std::shared_ptr<ComputeDevice>> open() override { return {}; }
  };
  EXPECT_THAT(error_of([&] { Runtime({.backends = {std::make_shared<Plain>()}, .gpus = {{.card = 0}}}); }),
              HasSubstr("no logical devices"));
}

}  // namespace
}  // namespace lockstep::testing
