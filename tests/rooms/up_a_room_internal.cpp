// A source of graph/text may not include what is internal to a higher room.
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/run/internal/plan.h"

int test_rooms();
int test_rooms() { return 0; }
