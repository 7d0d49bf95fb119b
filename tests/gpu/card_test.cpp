// Tests: core/cuda/backend.cpp, core/cuda/card.cpp, core/cuda/pools.cpp, core/cuda/streams.cpp, core/cuda/stream.cpp,
//        core/built_in_backends.cpp
// Cards of this machine as devices: memory, streams, events, recordings, and how a commit is decided there.
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/completion.h"
#include "lockstep/core/internal/built_in_backends.h"
#include "lockstep/core/runtime.h"
#include "lockstep/core/tensor.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;

TEST(Cards, NoneIsAState) {
  const Runtime runtime({.threads = 1});
  EXPECT_FALSE(runtime.topology().devices().empty());
  EXPECT_LE(internal::built_in_backends().size(), 1U);
}

class CardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::shared_ptr<DeviceBackend>& backend : internal::built_in_backends())
      devices_ = backend->open();
    if (devices_.empty()) GTEST_SKIP() << "this machine has no card";
    compute_ = device().stream(StreamRole::kCompute);
    in_ = device().stream(StreamRole::kCopyIn);
  }

  ComputeDevice& device() { return *devices_[0]; }
  MemoryId memory() { return device().facts().memory; }
  Tensor on_card(std::vector<std::uint64_t> words) {
    return Tensor::from<std::int64_t>({static_cast<std::int64_t>(words.size())},
                                      std::vector<std::int64_t>(words.begin(), words.end()))
        .to(device().pool());
  }
  static std::vector<std::int64_t> words_of(const Tensor& tensor) {
    const Tensor here = tensor.host();
    const auto words = here.data<std::int64_t>();
    return {words.begin(), words.end()};
  }

  std::vector<std::shared_ptr<ComputeDevice>> devices_;
  Stream* compute_ = nullptr;
  Stream* in_ = nullptr;
};

using Words = std::vector<std::int64_t>;

TEST_F(CardTest, TensorsGoThereAndBack) {
  const Tensor there = on_card({1, 2, 3});
  EXPECT_EQ(there.memory(), memory());
  EXPECT_EQ(words_of(there), (Words{1, 2, 3}));
}

TEST_F(CardTest, CopiesAndFillsRunInTheOrderOfTheStream) {
  const Tensor from = on_card({1, 2, 3}), to = on_card({0, 0, 0});
  compute_->fill(const_cast<void*>(to.raw()), std::byte{0xff}, 24);
  compute_->copy(const_cast<void*>(to.raw()), memory(), from.raw(), memory(), 16);
  const std::unique_ptr<Event> done = device().make_event();
  compute_->record(*done);
  EXPECT_TRUE(done->wait());
  EXPECT_TRUE(done->is_done());
  EXPECT_EQ(words_of(to), (Words{1, 2, -1}));
}

TEST_F(CardTest, StreamsWaitForEvents) {
  constexpr std::int64_t kWords = 1 << 20;
  const Tensor first = Tensor::full(DType::kI64, {kWords}, 7).to(device().pool());
  const Tensor middle = Tensor::zeros(DType::kI64, {kWords}).to(device().pool());
  const Tensor last = Tensor::zeros(DType::kI64, {kWords}).to(device().pool());
  const std::unique_ptr<Event> arrived = device().make_event(), done = device().make_event();
  for (int i = 0; i < 20; ++i) {
    in_->copy(const_cast<void*>(middle.raw()), memory(), first.raw(), memory(), kWords * 8);
    in_->record(*arrived);
    compute_->wait(*arrived);
    compute_->copy(const_cast<void*>(last.raw()), memory(), middle.raw(), memory(), kWords * 8);
    compute_->record(*done);
    in_->wait(*done);
  }
  done->wait();
  EXPECT_EQ(words_of(last).back(), 7);
}

TEST_F(CardTest, EventsSignalCompletionsAndSayWhen) {
  class Signal : public Completion {
   public:
    std::atomic<bool> is_done{false};

   private:
    void end(std::exception_ptr /*why*/) noexcept override { is_done = true; }
  };
  const Tensor there = Tensor::zeros(DType::kI64, {1 << 22}).to(device().pool());
  const std::unique_ptr<Event> begin = device().make_timed_event(), end = device().make_timed_event();
  compute_->record(*begin);
  for (int i = 0; i < 50; ++i)
    compute_->fill(const_cast<void*>(there.raw()), std::byte{1}, there.num_bytes());
  compute_->record(*end);
  Signal signal;
  end->when_done(signal);
  while (!signal.is_done) std::this_thread::yield();
  ASSERT_TRUE(begin->time() && end->time());
  EXPECT_LT(*begin->time(), *end->time());
}

TEST_F(CardTest, ARecordingRunsWhatItKept) {
  const Tensor from = on_card({1, 2}), to = on_card({0, 0});
  const std::unique_ptr<Stream> recorder = device().make_stream();
  recorder->begin_recording();
  EXPECT_EQ(caught([&] { recorder->begin_recording(); }).code, ErrorCode::kFailedPrecondition);
  recorder->copy(const_cast<void*>(to.raw()), memory(), from.raw(), memory(), 16);
  const std::unique_ptr<Recording> recording = recorder->end_recording();
  EXPECT_EQ(words_of(to), (Words{0, 0}));
  for (const std::int64_t value : {5, 6}) {
    compute_->fill(const_cast<void*>(from.raw()), static_cast<std::byte>(value), 8);
    recording->replay(*compute_);
    const std::unique_ptr<Event> done = device().make_event();
    compute_->record(*done);
    done->wait();
    EXPECT_EQ(words_of(to), (Words{0x0101010101010101 * value, 2}));
  }
}

// In each replay for what the event marks then; what is in front of the wait does not wait.
TEST_F(CardTest, ARecordingWaitsForEventsOfOutside) {
  constexpr std::int64_t kWords = 1 << 22;
  const Tensor from = Tensor::zeros(DType::kI64, {kWords}).to(device().pool());
  const Tensor to = Tensor::zeros(DType::kI64, {kWords}).to(device().pool());
  const Tensor early = on_card({0});
  const std::unique_ptr<Event> arrived = device().make_event(), done = device().make_event();
  const std::unique_ptr<Stream> recorder = device().make_stream();
  recorder->begin_recording();
  recorder->fill(const_cast<void*>(early.raw()), std::byte{1}, 8);
  recorder->wait_in_replays(*arrived);
  recorder->copy(const_cast<void*>(to.raw()), memory(), from.raw(), memory(), kWords * 8);
  const std::unique_ptr<Recording> recording = recorder->end_recording();
  for (int round = 1; round < 20; ++round) {
    for (int i = 0; i < 50; ++i)
      in_->fill(const_cast<void*>(from.raw()), static_cast<std::byte>(i < 49 ? 0 : round), kWords * 8);
    in_->record(*arrived);
    recording->replay(*compute_);
    compute_->record(*done);
    in_->wait(*done);
    done->wait();
    EXPECT_EQ(words_of(to).back(), 0x0101010101010101 * round);
    EXPECT_EQ(words_of(early), (Words{0x0101010101010101}));
  }
}

TEST_F(CardTest, ADecisionIsLatchedAndLookedAt) {
  const std::uint64_t open = ~std::uint64_t{0};
  for (const bool refused : {false, true}) {
    const Tensor decision = on_card({open}), words = on_card({open, refused ? 9 : open, refused ? 12 : open});
    const Tensor from = on_card({1, 2, 3}), to = on_card({0, 0, 0});
    compute_->latch(const_cast<void*>(decision.raw()), words.raw(), 3);
    compute_->copy_unless(decision.raw(), const_cast<void*>(to.raw()), from.raw(), 24);
    const std::unique_ptr<Event> done = device().make_event();
    compute_->record(*done);
    done->wait();
    EXPECT_EQ(words_of(decision), (refused ? Words{9} : Words{-1}));
    EXPECT_EQ(words_of(to), (refused ? Words{0, 0, 0} : Words{1, 2, 3}));
  }
}

TEST_F(CardTest, MoreThanThereIsIsRefusedAndTheCardGoesOn) {
  const std::int64_t bytes = device().facts().memory_bytes;
  EXPECT_EQ(caught([&] { Tensor::empty(DType::kI64, {bytes / 4}, device().pool()); }).code,
            ErrorCode::kOutOfMemory);
  EXPECT_EQ(words_of(on_card({4})), (Words{4}));
}

TEST_F(CardTest, LogicalDevicesShareTheMemoryAndKeepTheirShares) {
  const Runtime runtime({.threads = 1, .gpus = {{.card = 0, .memory_bytes = 1 << 20}, {.card = 0}}});
  const DeviceFacts& one = runtime.topology().facts(Device::parse("gpu:0"));
  const DeviceFacts& two = runtime.topology().facts(Device::parse("gpu:1"));
  EXPECT_EQ(one.memory, two.memory);
  EXPECT_EQ(one.memory_bytes, 1 << 20);
  EXPECT_THROW(Runtime({.gpus = {{.card = 99}}}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
