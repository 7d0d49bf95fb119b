// tests/support/data_dir.h - where the tests' data files lie.
#pragma once

#include <filesystem>

namespace lockstep::testing {

std::filesystem::path data_dir();  // the folder `tests` of the tree

}  // namespace lockstep::testing
