// strategies/passes/workers_exchange.h - how the workers of a step exchange values.
//
// Thread safety: a plain value.
#pragma once

#include <string>

namespace lockstep {

struct WorkersExchange {
  // Each worker combines the values of its own replicas first, so that one array per worker travels. Otherwise they travel as they
  // are and are combined in the order of the replicas' numbers: results do not depend on how many workers have them.
  bool joins_first = false;
  // The device whose memory the workers' group exchanges; values of other devices are copied there and back. Empty: that of the
  // value.
  std::string device = {};
};

}  // namespace lockstep
