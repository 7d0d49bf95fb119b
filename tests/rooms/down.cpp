// A source of graph/text may include rooms below its own, and its own internal headers.
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/text/internal/text_syntax.h"

int test_rooms();
int test_rooms() { return 0; }
