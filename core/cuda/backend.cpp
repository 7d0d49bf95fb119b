// core/cuda/backend.cpp - NVIDIA cards as devices of a runtime.
#include <array>
#include <mutex>
#include <utility>

#include "lockstep/core/cuda/internal/card.h"
#include "lockstep/core/cuda/internal/streams.h"
#include "lockstep/core/error.h"
#include "lockstep/core/internal/built_in_backends.h"

namespace lockstep::internal {

namespace cuda {
namespace {

class CardDevice final : public ComputeDevice {
 public:
  CardDevice(Card& card, DeviceFacts facts, std::shared_ptr<MemoryPool> pool)
      : ComputeDevice(std::move(facts), std::move(pool)), card_(card) {}

  const std::shared_ptr<MemoryPool>& staging() const override { return Card::staging(); }
  Stream* stream(StreamRole role) override {
    const auto i = static_cast<std::size_t>(role);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (streams_[i] == nullptr) streams_[i] = std::make_unique<CardStream>(card_);
    return streams_[i].get();
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CardEvent>(card_, false); }
  std::unique_ptr<Event> make_timed_event() override { return std::make_unique<CardEvent>(card_, true); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CardStream>(card_); }
  Decision can_record() const override { return Decision::yes(); }

 private:
  Card& card_;
  std::mutex mutex_;
  std::array<std::unique_ptr<CardStream>, kStreamRoles> streams_;
};

class CudaBackend final : public DeviceBackend {
 public:
  explicit CudaBackend(CardCollectives collectives) : collectives_(std::move(collectives)) {}

  std::vector<std::shared_ptr<ComputeDevice>> open() override {
    std::vector<std::shared_ptr<ComputeDevice>> devices;
    for (int i = 0; i < Card::count(); ++i) {
      Card& card = Card::at(i);
      devices.push_back(std::make_shared<CardDevice>(card, facts_of(card), card.pool()));
    }
    return devices;
  }

  std::vector<std::shared_ptr<ComputeDevice>> open_logical(std::span<const LogicalDevice> wanted) override {
    std::vector<std::shared_ptr<ComputeDevice>> devices;
    for (const LogicalDevice& part : wanted) {
      if (part.card < 0 || part.card >= Card::count())
        throw InvalidArgument(str("there is no card ", part.card, ": this machine has ",
                                  counted(static_cast<std::size_t>(Card::count()), "card")));
      Card& card = Card::at(part.card);
      DeviceFacts facts = facts_of(card);
      facts.device.index = static_cast<int>(devices.size());
      std::shared_ptr<MemoryPool> pool = card.pool();
      if (part.memory_bytes > 0) {
        facts.memory_bytes = part.memory_bytes;
        pool = std::make_shared<LimitedPool>(std::move(pool), part.memory_bytes);
      }
      devices.push_back(std::make_shared<CardDevice>(card, std::move(facts), std::move(pool)));
    }
    return devices;
  }

  std::shared_ptr<DeviceGroup> connect(std::span<const DeviceFacts> devices) override {
    if (collectives_.connect == nullptr) return DeviceBackend::connect(devices);
    std::vector<int> cards;
    for (const DeviceFacts& facts : devices) cards.push_back(facts.card);
    return collectives_.connect(std::move(cards));
  }

 private:
  DeviceFacts facts_of(const Card& card) const {
    DeviceFacts facts = card.facts();
    facts.collectives = collectives_.name;
    return facts;
  }

  CardCollectives collectives_;
};

}  // namespace
}  // namespace cuda

std::shared_ptr<DeviceBackend> find_cuda_backend(CardCollectives (*collectives)()) {
  if (cuda::Card::count() == 0) return nullptr;
  return std::make_shared<cuda::CudaBackend>(cuda::Card::count() > 1 ? collectives() : CardCollectives());
}

}  // namespace lockstep::internal
