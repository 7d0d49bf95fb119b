// An include path of before. It does not compile: the message says where the header is now.
#include "lockstep/graph/pass.h"
