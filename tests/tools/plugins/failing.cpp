// A plugin that registers a name that is taken.
#include "lockstep/graph/transform/plugin.h"

LOCKSTEP_PLUGIN("failing") {
  lockstep::PassRegistry::global().add({.name = "constant-folding", .summary = "taken"},
                                       [](const auto&) { return nullptr; });
}
