// testing/internal/fake_participant.h - a device of a FakeGpu as a participant of a group.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/compute_device.h"

namespace lockstep::internal {

// Its calls are put on the device's stream for communication, where they take part in `inner`, a participant that exchanges
// host memory. `near` says where work on a stream finds the device's memory.
std::unique_ptr<Communicator> make_fake_participant(std::unique_ptr<Communicator> inner,
                                                    std::shared_ptr<ComputeDevice> device,
                                                    std::function<void*(const void*)> near);

}  // namespace lockstep::internal
