// Lockstep inside an application that has its own Taskflow: one pool of threads, and a program as one of its
// tasks.
//
//      load ---> [ step: the graph ] ---> report          (the application's tf::Taskflow)
//                        |
//             runs on the same tf::Executor, into the application's own memory
//
#include <array>
#include <iostream>

#include <taskflow/taskflow.hpp>

#include "lockstep/core/taskflow.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

int main() {
  tf::Executor executor(2);                                // the application's
  const Runtime runtime({.scheduler = borrow(executor)});  // Lockstep starts no thread of its own

  GraphBuilder b;
  const Value samples = b.placeholder("samples", DType::kF32, {4});
  const VariableRef total = b.variable("total", Tensor::zeros({4}));
  b.result(b.assign_add(total, samples * 2));
  const Program program = compile(b.finish(), runtime);

  // The application's memory, not copied: views in, views out.
  std::array<float, 4> in{};
  std::array<float, 4> out{};
  const std::array feeds{Tensor::view(DType::kF32, {4}, in.data())};
  std::array results{Tensor::view(DType::kF32, {4}, out.data())};

  tf::Taskflow flow;
  tf::Task load = flow.emplace([&] { in = {1, 2, 3, 4}; });
  tf::Task step = flow.emplace([&] { program.run_into(feeds, results); });
  tf::Task report = flow.emplace([&] {
    for (const float value : out) std::cout << value << ' ';
    std::cout << '\n';
  });
  load.precede(step);
  step.precede(report);

  executor.run_n(flow, 3).wait();  // the variable adds up over the runs
}
