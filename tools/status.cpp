// tools/status.cpp - lockstep status: who is in a job, and what each worker does.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "commands.h"
#include "lockstep/core/membership/membership.h"

namespace lockstep::tools {

int run_command(const StatusCommand& command) {
  const char* const secret = std::getenv("LOCKSTEP_SECRET");
  MembershipSpec spec;
  spec.worker.coordinator = command.address;
  if (secret != nullptr) spec.secret = secret;
  std::cout << Membership::status(spec, deadline_in(std::chrono::seconds(5)));
  return kSuccess;
}

}  // namespace lockstep::tools
