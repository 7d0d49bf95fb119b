// core/membership/internal/visitor.h - asks the hub of a job how things are, without being a member.
//
// Thread safety: any thread.
#pragma once

#include <string>

#include "lockstep/core/communicators/communicator.h"

namespace lockstep::internal {

// Throws Error (kUnavailable, kDeadlineExceeded) and InvalidArgument if the hub refuses.
std::string status_of_job(const std::string& address, const std::string& job_id, const std::string& secret,
                          const std::string& nonce, Deadline deadline);

}  // namespace lockstep::internal
