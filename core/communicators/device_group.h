// core/communicators/device_group.h - a group whose participants are devices of one process.
//
//   std::shared_ptr<DeviceGroup> group = runtime.device_group(devices);   // null: nothing connects them
//   group->start(calls, done);                                            // one call for each device, in their order
//
// Each participant is a Communicator of its device, which the backend makes (DeviceBackend::connect). All of them make their
// calls at the same time, so that nobody has to start them on threads of his own. A group that has failed is connected anew by
// the next start().
//
// Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/completion.h"

namespace lockstep {

class LOCKSTEP_API DeviceGroup {
 public:
  // All participants, by rank; called when they are first needed, by one thread at a time. Until the deadline it may wait for
  // what connects them.
  using Connect = std::function<std::vector<std::unique_ptr<Communicator>>(Deadline)>;
  // Throws InvalidArgument without a function.
  explicit DeviceGroup(Connect connect);
  // Waits for the calls that were started.
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  // Some collectives, one after the other: of each the calls of all participants, by rank. Their memory belongs to them until
  // `done` is signalled, when all of them are over, with the first failure if there is one: then the group is aborted.
  // The earliest deadline of the calls holds for connecting too, also for what another thread connects.
  // Throws what connecting throws, DeadlineExceeded, InvalidArgument if the calls are no multiple of the participants, and std::bad_alloc; `done`
  // is not signalled then.
  void start(std::span<const CommunicatorCall> calls, Completion& done);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
