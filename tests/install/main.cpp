// An application outside the tree: includes Lockstep, and Taskflow beside it, as the package offers them.
#include <iostream>

#include <taskflow/taskflow.hpp>

#include "lockstep/lockstep.h"

int main() {
  tf::Executor executor(1);
  tf::Taskflow taskflow;
  taskflow.emplace([] { std::cout << "lockstep " << lockstep::kVersion << '\n'; });
  executor.run(taskflow).wait();
}
