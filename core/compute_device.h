// core/compute_device.h - devices that a backend brings into a Runtime.
//
//   class MyCards : public DeviceBackend {
//     std::vector<std::shared_ptr<ComputeDevice>> open() override {
//       DeviceFacts facts{.device = Device::parse("gpu:0"), .memory = {1}, .kernels = "mine"};
//       return {std::make_shared<ComputeDevice>(facts, std::make_shared<MyPool>(MemoryId{1}))};
//     }
//   };
//   Runtime runtime({.backends = {std::make_shared<MyCards>()}});    // cpu:0 and gpu:0
//
// A Runtime always has CPUs; a backend adds devices of another kind. What it says about them becomes part of
// the Runtime's topology: the memory that a device computes in, and the name of its kernel set
// (OpRegistry::add_kernel says what runs there). Two devices with one MemoryId read each other's values, and
// have one pool. Numbers of memories are the same for all backends and runtimes of a process, since tensors
// keep them.
//
// A device that works by itself has streams. What is put on a stream runs later, in the order in which it was
// put there; work on different streams has no order but that of events:
//
//   in.copy(batch, memory, staged, kHostMemory, bytes);     // on the stream for copies to the device
//   in.record(arrived);
//   compute.wait(arrived);                                   // what follows on `compute` comes after the copy
//   ...
//   compute.record(computed);
//   computed.wait();                                         // the host sleeps until it is done
//
// On a device without streams a kernel is done when its call returns.
//
// Work that is put on streams again and again can be recorded once and replayed, which costs the host little:
//
//   compute.begin_recording();
//   ...                                                      // put on `compute`: kept, and does not run
//   std::unique_ptr<Recording> step = compute.end_recording();
//   step->replay(compute);
//
// A stream that waits for an event of the recording takes part in it from then on; before the end the first
// stream has to wait for the last work of every other. A recording keeps the addresses and arguments that it
// was made with, and may be replayed on any stream of its devices. It begins as a whole, after what was put on
// that stream before; a part of it may wait for more (Stream::wait_in_replays). While a thread records, it cannot
// wait for a device.
//
// Errors: put on a stream, work is accepted or refused (an Error that is thrown). A failure while it runs
// reaches the host when it waits for an event after it, and from then on with every use of the device.
//
// Thread safety: devices and streams may be used from any thread, and a thread that records a stream is the
// only one to use it meanwhile. An event: one thread sets it, while nobody else uses it; otherwise any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/steady_time.h"
#include "lockstep/core/completion.h"
#include "lockstep/core/error.h"
#include "lockstep/core/memory.h"
#include "lockstep/core/topology.h"

namespace lockstep {

class DeviceGroup;

// A point in the work of a stream: Stream::record() sets it, as often as one likes.
class LOCKSTEP_API Event {
 public:
  Event() = default;
  virtual ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Has the work come to the point that was set last? Yes if none was. Throws what went wrong before it.
  virtual bool is_done() const = 0;
  // Sleeps until it has; false: the deadline passed first. Throws what went wrong before it.
  virtual bool wait(std::optional<SteadyTime> deadline = std::nullopt) const = 0;
  // Signals the completion once it has, on any thread, or at once. The event must not be set or destroyed
  // until then.
  virtual void when_done(Completion& completion) = 0;
  // When the work came to the point that was set last, by the clock of the host; it has come there. None: the
  // device does not say.
  virtual std::optional<SteadyTime> time() const;
};

class Stream;

// Work that was put on streams once, to be run again as one piece of work of one stream.
class LOCKSTEP_API Recording {
 public:
  Recording() = default;
  virtual ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  virtual void replay(Stream& stream) = 0;
};

class LOCKSTEP_API Stream {
 public:
  Stream() = default;
  virtual ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Sets the event behind everything that was put on the stream so far.
  virtual void record(Event& event) = 0;
  // What is put on the stream from now on starts after the point that the event marks now.
  virtual void wait(const Event& event) = 0;
  // One of the memories is that of the stream's device; the other may be any of the same backend, or the
  // host's, which is used until the copy is done: pageable host memory may make the caller wait for that.
  virtual void copy(void* to, MemoryId to_memory, const void* from, MemoryId from_memory,
                    std::size_t bytes) = 0;
  virtual void fill(void* to, std::byte value, std::size_t bytes) = 0;

  // How a commit is decided on a device: kernels leave word of data that they refuse, the words are latched into
  // a decision, and what commits looks at that. All of it lies in the memory of the stream's device; a word is a
  // std::uint64_t, and all ones means that nothing was refused.
  //
  // `decision` becomes the smallest of itself and of the words.
  virtual void latch(void* decision, const void* words, std::size_t count) = 0;
  // Copies within the memory, unless the decision says that something was refused.
  virtual void copy_unless(const void* decision, void* to, const void* from, std::size_t bytes) = 0;

  // Throw FailedPrecondition if the stream records already, if it does not, or if work of another stream that
  // takes part has not been waited for.
  virtual void begin_recording() = 0;
  virtual std::unique_ptr<Recording> end_recording() = 0;
  // Of a stream that is recorded, for an event of outside: in each replay what is put here from now on starts after the
  // point that the event marked when the replay was put on its stream. Unimplemented, unless the device says that it
  // can (ComputeDevice::recordings_wait).
  virtual void wait_in_replays(const Event& event);

  // What the backend's kernels need to put work here, such as a cudaStream_t.
  virtual void* native() = 0;
};

// Kinds of work that a device can do at the same time.
enum class StreamRole : std::uint8_t { kCompute, kCopyIn, kCopyOut, kCommunication };
inline constexpr std::size_t kStreamRoles = 4;

LOCKSTEP_API std::string_view to_string(StreamRole role);

class LOCKSTEP_API ComputeDevice {
 public:
  // Throws InvalidArgument if the pool is missing or is of another memory than the facts say, or if they name
  // no kernel set.
  ComputeDevice(DeviceFacts facts, std::shared_ptr<MemoryPool> pool);
  virtual ~ComputeDevice();
  ComputeDevice(const ComputeDevice&) = delete;
  ComputeDevice& operator=(const ComputeDevice&) = delete;

  const DeviceFacts& facts() const { return facts_; }
  const std::shared_ptr<MemoryPool>& pool() const { return pool_; }
  // Host memory that copies from and to the device do not wait for. By default any.
  virtual const std::shared_ptr<MemoryPool>& staging() const;
  // The device's stream for this kind of work, which may be one for several kinds. Null: it has no streams;
  // then it has none of any kind, and makes no events.
  virtual Stream* stream(StreamRole role);
  virtual std::unique_ptr<Event> make_event();
  // One that says when (Event::time), where the device can. By default any does.
  virtual std::unique_ptr<Event> make_timed_event() { return make_event(); }
  // A further stream, of which the caller is the only user: work is recorded there, so that what other threads put
  // on the device's streams meanwhile does not become part of it.
  virtual std::unique_ptr<Stream> make_stream();
  // A no says why work on its streams has to be put there each time.
  virtual Decision can_record() const;
  // May recordings wait for events that are set outside of them? By default not.
  virtual bool recordings_wait() const;

 private:
  DeviceFacts facts_;
  std::shared_ptr<MemoryPool> pool_;
};

class LOCKSTEP_API DeviceBackend {
 public:
  virtual ~DeviceBackend();
  // The devices for one Runtime, which keeps them: one for each card. None: there are none on this machine.
  virtual std::vector<std::shared_ptr<ComputeDevice>> open() = 0;
  // Instead, one for each of these, which are not empty (RuntimeOptions::gpus). Throws InvalidArgument for a card
  // that does not exist. By default the backend has no logical devices: Unimplemented.
  virtual std::vector<std::shared_ptr<ComputeDevice>> open_logical(std::span<const LogicalDevice> wanted);
  // A group of these devices of its own, at least two, no two in one memory, whose facts name the same collectives. By default
  // Unimplemented: its devices name none.
  virtual std::shared_ptr<DeviceGroup> connect(std::span<const DeviceFacts> devices);
};

}  // namespace lockstep
