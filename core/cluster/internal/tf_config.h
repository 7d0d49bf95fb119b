// core/cluster/internal/tf_config.h - the variable TF_CONFIG, as TensorFlow writes and reads it.
//
//   {"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222", "10.0.0.3:2222"]},
//    "task": {"type": "worker", "index": 1}}
//
// Jobs are lists of addresses, or objects from index to address; an index may be a number or its digits. Without a cluster there is
// one worker. What does not concern Lockstep is passed over: rpc_layer, session_master, and what cloud services add (environment,
// job, and in the task cloud and trial). Any other field is refused, so that a misspelt one is noticed.
//
//   failure   InvalidArgument with the path of the field: "TF_CONFIG: cluster.worker[1]: ..."
#pragma once

#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/cluster/worker_spec.h"

namespace lockstep::internal {

LOCKSTEP_API WorkerSpec read_tf_config(std::string_view text);

}  // namespace lockstep::internal
