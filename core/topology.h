// core/topology.h - which devices there are, which memories they compute in, and how fast both are.
//
//   const Topology& here = runtime.topology();
//   Topology there = Topology::parse("cpu:0 cpu:1\n"
//                                    "gpu:0 gpu:1 memory=1 card=0 bytes=80GiB\n"   // two logical devices of one card
//                                    "link 0 1 latency=1e-5 bandwidth=25e9\n");
//   there.same_memory(Device::parse("gpu:0"), Device::parse("gpu:1"));   // true, because the topology says so
//
// A Topology is a plain value. A Runtime has the one of its own devices; tests, tools and passes for machines
// that are not here describe one in text:
//
//   <device> ... [key=value ...]       devices that have these facts in common:
//       memory=N      the memory they compute in; 0 is this process's host memory. Default: for CPUs of this
//                     process 0, for all CPUs of another process one, for every other device one of its own
//       card=N        which piece of hardware they are; equal numbers: logical devices of one
//       bytes=N       of that memory, also as 512MiB, 80GiB       flops=X  bandwidth=X   per second
//       kernels=NAME  the kernel set that they run; CPUs run "cpu"
//       collectives=NAME  what connects them to others that name the same, such as nccl
//   link A B [latency=SECONDS] [bandwidth=BYTES]    between two memories, in both directions
//   worker /job:NAME/task:N            the process: its devices may then be named with or without this
//
// Statements end at a line's end or at ';'; '#' starts a comment.
//
// Thread safety: a plain value.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "lockstep/core/memory.h"

namespace lockstep {

struct DeviceFacts {
  Device device = {};
  MemoryId memory = {};
  int card = -1;                  // -1: not known
  double flops = 0;               // operations a second; 0: not known
  double bytes_per_second = 0;    // to and from its memory; 0: not known
  std::int64_t memory_bytes = 0;  // of its memory; 0: not known
  // Which of an op's kernels it runs (OpDef::kernels): the name that its backend gives them. Empty: not known,
  // except that CPUs run "cpu".
  std::string kernels = {};
  // What connects it to the other devices of its process that name the same, such as "nccl": values are then combined between
  // them without the host. Empty: nothing does.
  std::string collectives = {};
  friend bool operator==(const DeviceFacts&, const DeviceFacts&) = default;
};

// A device that is a part of a card: it computes in the card's memory, beside others, on streams of its own.
struct LogicalDevice {
  int card = 0;                   // of the backend, from 0 on
  std::int64_t memory_bytes = 0;  // the most that it may take of the card's memory; 0: all there is
};

// How values get from one memory to another.
struct MemoryLink {
  MemoryId from, to;
  double latency = 0;           // seconds
  double bytes_per_second = 0;  // 0: not known
  friend bool operator==(const MemoryLink&, const MemoryLink&) = default;
};

class LOCKSTEP_API Topology {
 public:
  Topology() = default;  // lists nothing
  // Throws InvalidArgument naming the line and what was expected.
  static Topology parse(std::string_view text);
  // A text that parse() makes the same topology of.
  std::string to_string() const;

  // Throw InvalidArgument if the device or the link is listed already or makes no sense.
  void add(DeviceFacts facts);
  void add_link(const MemoryLink& link);
  // The process: a device may then be named "cpu:0" or "/job:worker/task:1/cpu:0".
  void set_worker(const std::string& job, int task);

  const std::vector<DeviceFacts>& devices() const { return devices_; }
  const std::vector<MemoryLink>& links() const { return links_; }
  // The device in the spelling without this process's job and task.
  Device own(Device device) const;
  // A no names the devices that exist.
  Decision has_device(const Device& device) const;
  const DeviceFacts* find(const Device& device) const;   // null: not listed
  const DeviceFacts& facts(const Device& device) const;  // throws NotFound
  // Do two devices compute in one memory? Of a device that is not listed the default above is assumed.
  bool same_memory(const Device& a, const Device& b) const;
  // Null: nothing is known about this pair.
  const MemoryLink* link(MemoryId from, MemoryId to) const;

  friend bool operator==(const Topology&, const Topology&) = default;

 private:
  std::vector<DeviceFacts> devices_;
  std::vector<MemoryLink> links_;
  std::string job_;
  int task_ = -1;
};

}  // namespace lockstep
