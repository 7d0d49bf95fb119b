// core/cluster/internal/launchers.h - what the variables of each launcher say.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/cluster/environment.h"
#include "lockstep/core/cluster/worker_spec.h"

namespace lockstep::internal {

// Variables of an environment; remembers which were there when they were asked for.
class LOCKSTEP_API Variables {
 public:
  explicit Variables(const Environment& all) : all_(all) {}
  // Null if it is not set, or empty.
  const std::string* text(std::string_view name);
  const std::string* even_empty(std::string_view name);
  bool has(std::string_view name) { return text(name) != nullptr; }
  // The same, for a variable that only decides whether others count: it is not remembered.
  bool is_set(std::string_view name) const;
  // Throws InvalidArgument if it is no number from 0.
  std::optional<int> number(std::string_view name);
  // The number of a variable that must be there, since `because` is.
  int number_with(std::string_view name, std::string_view because);
  std::optional<int> world();  // LOCKSTEP_WORLD, at least 1
  const std::vector<std::string>& used() const { return used_; }

 private:
  const Environment& all_;
  std::vector<std::string> used_;
};

struct Reading {
  std::string launcher = {};
  bool of_machines = false;       // numbers machines, of which each may run several processes
  bool is_of_no_cluster = false;  // says nothing of a world: counts if nobody else says anything
  std::string refusal =
      {};  // not empty: it tells too little, and this is why; counts unless another one tells all
  WorkerSpec worker = {};
  std::vector<std::string> used = {};
};

// Names of the launchers, in the order in which they are asked.
LOCKSTEP_API std::vector<std::string> launcher_names();
// What they say; those that did not start this process say nothing. `only`: the name of one, or empty.
LOCKSTEP_API std::vector<Reading> read_launchers(const Environment& environment, std::string_view only);

}  // namespace lockstep::internal
