// bench/support/participant.h - who can make training steps, or what stands for them.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::bench {

class Participant {
 public:
  virtual ~Participant() = default;
  // Makes steps; the loss of the last one (0 for bounds, which have none).
  virtual double run(std::size_t steps) = 0;
  // One line about memory, and a table of where time goes; empty where there is nothing to say.
  virtual std::string plan() { return {}; }
  virtual std::string profile(std::size_t) { return {}; }
};

}  // namespace lockstep::bench
