// core/cuda/internal/streams.h - streams, events and recordings of a card.
//
// A recording is a CUDA graph that was captured. Events are looked for by a thread of the process (when_done), since
// CUDA calls no host function any more once a card has failed.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/core/compute_device.h"
#include "lockstep/core/cuda/internal/card.h"

namespace lockstep::internal::cuda {

class CardEvent final : public Event {
 public:
  // `timed`: it knows when its work came to it.
  CardEvent(Card& card, bool timed);
  ~CardEvent() override;
  bool is_done() const override;
  bool wait(std::optional<SteadyTime> deadline) const override;
  void when_done(Completion& completion) override;
  std::optional<SteadyTime> time() const override;
  cudaEvent_t native() const { return event_; }
  Card& card() const { return card_; }

 private:
  Card& card_;
  const bool timed_;
  cudaEvent_t event_ = nullptr;
};

class CardStream final : public Stream {
 public:
  explicit CardStream(Card& card);
  ~CardStream() override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void copy(void* to, MemoryId to_memory, const void* from, MemoryId from_memory, std::size_t bytes) override;
  void fill(void* to, std::byte value, std::size_t bytes) override;
  void latch(void* decision, const void* words, std::size_t count) override;
  void copy_unless(const void* decision, void* to, const void* from, std::size_t bytes) override;
  void begin_recording() override;
  std::unique_ptr<Recording> end_recording() override;
  void wait_in_replays(const Event& event) override;
  void* native() override { return stream_; }
  Card& card() const { return card_; }

 private:
  Card& card_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace lockstep::internal::cuda
