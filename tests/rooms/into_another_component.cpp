// A source of graph may not include what is internal to another component.
#include "lockstep/core/communicators/internal/in_process_room.h"
#include "lockstep/core/runtime.h"

int test_rooms();
int test_rooms() { return 0; }
