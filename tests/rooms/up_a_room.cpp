// A source of graph/text may not include a higher room.
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/run/program.h"

int test_rooms();
int test_rooms() { return 0; }
