// tests/support/data_dir.cpp - the one source that is compiled with a path, so that a compiler cache serves
// any clone.
#include "support/data_dir.h"

std::filesystem::path lockstep::testing::data_dir() { return LOCKSTEP_TEST_DATA_DIR; }
