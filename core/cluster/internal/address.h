// core/cluster/internal/address.h - "host:port", where a worker is reached.
#pragma once

#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep::internal {

// Throws InvalidArgument unless it is a name, an IPv4 address or an IPv6 address in brackets, a colon and a port from 1 to 65535.
// `what` begins the message: "the address of worker 1".
LOCKSTEP_API void check_address(std::string_view address, std::string_view what);

}  // namespace lockstep::internal
