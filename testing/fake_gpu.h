// testing/fake_gpu.h - GPUs that threads play, for tests of whatever works with devices.
//
//   auto gpus = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 2});
//   Runtime runtime({.backends = {gpus}});              // cpu:0, gpu:0, gpu:1
//
// A backend (core/compute_device.h) that behaves as a GPU does where a mistake would show:
//   memory      the host cannot touch it: a read or write ends the process, as on a GPU. Each block is mapped
//               twice, and only work on a stream knows the other address (FakeGpu::near). A kernel uses the
//               memory of its device alone, and copies say right between which memories they are
//   streams     each is a thread: what is put on it runs later
//   order       every call states the ranges that it reads and writes. Two that overlap, of which one writes,
//               must be ordered by streams, events and waits; if they are not, the later one is refused with
//               an error that names both, however they would have run. The same goes for the host's own reads
//               and writes, and for memory that is given back. What one thread of the host has waited for
//               counts for all of them
//   recordings  keep what they were made with, and run on streams of their own
//   faults      calls that are refused or fail, a device that is lost, little memory, streams that stand
//               still, delays
//
// A failing call loses its device, as on a GPU: whatever is put there later, and whoever waits, gets the
// error.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/compute_device.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::testing {

struct FakeGpuOptions {
  int devices = 1;
  // By device, the number of its memory: {0, 1, 0} lets gpu:0 and gpu:2 share one. Empty: each has its own.
  std::vector<int> memories = {};
  std::int64_t memory_bytes = 0;  // of each memory; 0: as much as there is
  bool records = true;
  bool recordings_wait = true;  // for events of outside (ComputeDevice::recordings_wait)
  // The devices are connected, as cards are by NCCL (DeviceFacts::collectives): calls of a group are put on their
  // streams for communication, and meet there. Sums are in the order of the devices.
  bool connected = false;
};

// Bytes that a call reads or writes, at the address that tensors hold. Host memory is not watched: threads
// are real, so a thread sanitizer does that.
struct FakeRange {
  const void* begin = nullptr;
  std::size_t bytes = 0;
};

struct FakeCall {
  std::string what;  // for reports: the name of a node, say
  std::vector<FakeRange> reads, writes;
  std::function<void()> run;  // on the stream's thread
};

class LOCKSTEP_API FakeGpu : public DeviceBackend {
 public:
  explicit FakeGpu(FakeGpuOptions options = {});
  ~FakeGpu() override;  // waits for all work; ends the process if memory was given back too early
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  // The same devices for each Runtime.
  std::vector<std::shared_ptr<ComputeDevice>> open() override;
  // For one Runtime; from now on device(), hold() and lose() count these.
  std::vector<std::shared_ptr<ComputeDevice>> open_logical(std::span<const LogicalDevice> wanted) override;
  std::shared_ptr<DeviceGroup> connect(std::span<const DeviceFacts> devices) override;
  const std::shared_ptr<ComputeDevice>& device(int index) const;

  // Puts a call on a stream of some FakeGpu.
  static void call(Stream& stream, FakeCall call);
  // Where work on a stream finds what tensors hold at `address`; host memory is where it is. Throws
  // std::logic_error if the address is in memory that was given back.
  void* near(const void* address) const;

  // Adds the kernel set "fake" to the registry, once: the kernels of the CPU for all ops but lambdas, put on
  // the stream of the call. Results are the CPU's to the bit. Called when a FakeGpu is made; call it again
  // after ops were added.
  static void add_kernels();

  // --- faults
  // The stream runs nothing until it is released.
  void hold(int device, StreamRole role);
  void release(int device, StreamRole role);
  // Of the calls, copies and fills that are put on streams from now on, call k (0: the next) fails when it
  // runs, or is refused at once.
  void fail_call(std::uint64_t k);
  void refuse_call(std::uint64_t k);
  // Recordings that end from now on find no memory.
  void refuse_recordings(bool refuse);
  void lose(int device);
  // Before every call a pause of up to this long, drawn from the seed; or one of exactly this long.
  void set_delays(std::chrono::microseconds longest, std::uint64_t seed);
  void set_delay(std::chrono::microseconds each);

  // Is the calling thread inside of a FakeGpu? Tests in which memory runs out leave that out: a GPU needs none of it.
  static bool is_at_work();

  // --- what was done
  std::uint64_t calls() const;    // put on streams, replays included
  std::uint64_t replays() const;  // of recordings

 private:
  class Order;
  class Health;
  class Pool;
  class Event;
  class Lane;
  class Tape;
  class Replayer;
  class Device;
  static KernelDef fake_kernel(const OpDef& op, const KernelDef& cpu);
  std::shared_ptr<Order> order_;
  FakeGpuOptions options_;
  std::vector<std::shared_ptr<ComputeDevice>> devices_;
};

}  // namespace lockstep::testing
