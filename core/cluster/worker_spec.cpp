// core/cluster/worker_spec.cpp - how a worker is named.
#include "lockstep/core/cluster/worker_spec.h"

#include "lockstep/core/error.h"

namespace lockstep {

std::string WorkerSpec::task() const { return str(job, ":", index); }

}  // namespace lockstep
