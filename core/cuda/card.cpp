// core/cuda/card.cpp - a card of this machine, which all runtimes of the process share.
#include "lockstep/core/cuda/internal/card.h"

#include <algorithm>
#include <vector>

#include "lockstep/core/cuda/internal/pools.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::cuda {

namespace {

// After these no call in the process succeeds any more for the card.
bool is_sticky(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

// Arithmetic of a card: additions and multiplications of f32 a second, all cores.
double flops_of(const cudaDeviceProp& card, int kilohertz) {
  const double cores = card.major >= 9 ? 128 : card.major == 8 && card.minor == 0 ? 64 : 128;
  return 2.0 * cores * card.multiProcessorCount * kilohertz * 1e3;
}

}  // namespace

int Card::count() {
  static const int cards = [] {
    int found = 0;
    if (cudaGetDeviceCount(&found) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // no driver, or no card: a state, not an error
      return 0;
    }
    return found;
  }();
  return cards;
}

Card& Card::at(int number) {
  static auto* const cards = [] {                        // never destroyed
    auto* all = new std::vector<std::unique_ptr<Card>>;  // NOLINT(cppcoreguidelines-owning-memory)
    for (int i = 0; i < count(); ++i) all->push_back(std::unique_ptr<Card>(new Card(i)));
    return all;
  }();
  return *cards->at(static_cast<std::size_t>(number));
}

DeviceFacts Card::facts() const {
  cudaDeviceProp properties{};
  int core_clock = 0, memory_clock = 0, bus_bits = 0;
  if (cudaGetDeviceProperties(&properties, number_) != cudaSuccess)
    throw Error(ErrorCode::kUnavailable, str("card ", number_, " does not say what it is"));
  cudaDeviceGetAttribute(&core_clock, cudaDevAttrClockRate, number_);
  cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, number_);
  cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, number_);
  DeviceFacts facts;
  facts.device = Device::parse(str("gpu:", number_));
  facts.memory = memory();
  facts.card = number_;
  facts.flops = flops_of(properties, core_clock);
  facts.bytes_per_second = 2.0 * memory_clock * 1e3 * bus_bits / 8;
  facts.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  facts.kernels = "cuda";
  return facts;
}

const std::shared_ptr<MemoryPool>& Card::pool() {
  std::call_once(opened_, [this] { pool_ = std::make_shared<CardPool>(*this); });
  return pool_;
}

const std::shared_ptr<MemoryPool>& Card::staging() {
  static auto* const pool =
      new std::shared_ptr<MemoryPool>(  // NOLINT(cppcoreguidelines-owning-memory): see above
          std::make_shared<PinnedPool>());
  return *pool;
}

void Card::use() {
  if (is_lost()) throw_lost();
  check(cudaSetDevice(number_), "cudaSetDevice");
}

void Card::throw_lost() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  throw Error(
      ErrorCode::kUnavailable,
      str("gpu card ", number_, " is lost: ", why_lost_,
          "; variables on it may be changed in the middle of a step: restart the process and restore them"));
}

void Card::fail(cudaError_t status, const char* what) {
  static_cast<void>(cudaGetLastError());  // so that the next call does not report it again
  const std::string text = str(what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
  if (is_sticky(status)) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!lost_.exchange(true, std::memory_order_acq_rel)) why_lost_ = text;
    }
    throw_lost();
  }
  throw Error(status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
              str("gpu card ", number_, ": ", text));
}

}  // namespace lockstep::internal::cuda
