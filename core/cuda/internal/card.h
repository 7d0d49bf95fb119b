// core/cuda/internal/card.h - a card of this machine, which all runtimes of the process share.
//
// A card has one context (CUDA's primary one), one pool of memory and one thread that looks for events. It is opened
// when it is first used, and never closed: static objects of an application may still hold its memory when the
// process ends.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include <cuda_runtime_api.h>

#include "lockstep/core/memory.h"
#include "lockstep/core/topology.h"

namespace lockstep::internal::cuda {

class Card {
 public:
  // 0 where there is no card, or no driver.
  static int count();
  static Card& at(int number);  // 0 to count() - 1

  int number() const { return number_; }
  MemoryId memory() const { return memory_of(number_); }
  DeviceFacts facts() const;
  const std::shared_ptr<MemoryPool>& pool();
  // Host memory that copies do not wait for.
  static const std::shared_ptr<MemoryPool>& staging();

  // Makes it the card of the calling thread. Throws if it is lost.
  void use();
  // Throws unless the call succeeded; `what` names it. Errors after which no call can succeed mean that the card is lost.
  void check(cudaError_t status, const char* what) {
    if (status != cudaSuccess) fail(status, what);
  }
  bool is_lost() const { return lost_.load(std::memory_order_acquire); }

  static MemoryId memory_of(int card) { return MemoryId{static_cast<std::uint32_t>(card) + 1}; }

 private:
  explicit Card(int number) : number_(number) {}
  [[noreturn]] void fail(cudaError_t status, const char* what);
  [[noreturn]] void throw_lost() const;

  const int number_;
  std::once_flag opened_;
  std::shared_ptr<MemoryPool> pool_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::string why_lost_;
};

}  // namespace lockstep::internal::cuda
