// strategies/sync.h - SyncAnalysis (graph/sync.h), beside congruence.h: the one is for the region form of a step, the other for
// the flat one.
#pragma once

#include "lockstep/graph/sync.h"
