// An application outside the tree, with an executor of its own that it lends to Lockstep.
#include <cstdlib>
#include <iostream>

#include <taskflow/taskflow.hpp>

#include "lockstep/core/taskflow.h"
#include "lockstep/lockstep.h"

int main() {
  tf::Executor executor(2);
  const lockstep::Runtime runtime({.scheduler = lockstep::borrow(executor)});
  const auto tensor = lockstep::Tensor::from({2, 2}, {1.f, 2.f, 3.f, 4.f});

  std::cout << "lockstep " << lockstep::kVersion << " on " << runtime.scheduler().num_workers()
            << " workers, " << tensor.shape() << '\n';
  return runtime.scheduler().num_workers() == 2 && tensor.data<float>()[3] == 4.f ? EXIT_SUCCESS
                                                                                  : EXIT_FAILURE;
}
