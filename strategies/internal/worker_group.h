// strategies/internal/worker_group.h - what a worker computes on, and how it exchanges values with the others.
#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/communicators/group.h"
#include "lockstep/core/membership/membership.h"
#include "lockstep/core/runtime.h"
#include "lockstep/strategies/multi_worker.h"
#include "lockstep/strategies/passes/workers_exchange.h"

namespace lockstep::internal {

// Where none are named: the cards of this machine, shared among the workers that are known to be on it; else the CPU.
std::vector<std::string> devices_of_worker(const RuntimeOptions& runtime, const WorkerSpec& worker);

// Throws InvalidArgument for what makes no sense for replicas on these devices.
void check_communication(const CommunicationOptions& communication, const std::vector<std::string>& devices);

struct WorkerGroup {
  std::shared_ptr<Group> group;
  WorkersExchange exchange;
  std::string description;  // "over Gloo at 10.0.0.2: replicas are on CPUs"
};

struct WorkerGroupSpec {
  WorkerSpec worker;
  std::string host;  // of this machine
  CommunicationOptions communication;
  std::vector<std::string> devices;  // of the replicas here
  RuntimeOptions runtime;            // whose devices they are
};

// All workers make theirs at the same time. Throws what goes wrong, on all of them if the options differ.
WorkerGroup make_worker_group(const WorkerGroupSpec& spec, Membership& membership, Deadline deadline,
                              const std::stop_token& stop);

}  // namespace lockstep::internal
