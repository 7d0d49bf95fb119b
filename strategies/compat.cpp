// strategies/compat.cpp - counting GPUs, under the option's older name.
#include "lockstep/strategies/compat.h"

#include <utility>

namespace lockstep::compat {

MirroredOptions mirrored_options(std::int64_t num_gpus_per_worker, MirroredOptions options) {
  if (options.num_gpus) {
    throw InvalidArgument(
        "You cannot specify both num_gpus and num_gpus_per_worker: they are two names for one number");
  }
  options.num_gpus = num_gpus_per_worker;
  return options;
}

}  // namespace lockstep::compat
