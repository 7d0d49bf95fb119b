// An application outside the tree, with an executor of its own that it lends to Lockstep.
#include <cstdlib>
#include <iostream>

#include <taskflow/taskflow.hpp>

#include "lockstep/core/taskflow.h"
#include "lockstep/lockstep.h"

bool distributes_what_it_has_never_seen();  // strategy.cpp

int main() {
  using namespace lockstep;  // NOLINT(google-build-using-namespace): a program of its own
  tf::Executor executor(2);
  const Runtime runtime({.scheduler = borrow(executor)});

  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 2});
  const VariableRef runs = b.variable("runs", Tensor::scalar(0.0F));
  b.result(relu(matmul(x, b.constant(Tensor::from({2, 1}, {1.0F, -1.0F})))));
  b.assign_add(runs, b.constant(1.0F));
  Graph graph = parse(print(b.finish()));
  PassContext context;
  PassRegistry::global().parse_pipeline("dead-node-elimination,constant-folding").run(graph, context);

  const Program program = compile(std::move(graph), runtime);
  const Tensor y = program.run({{"x", Tensor::from({2, 2}, {3.0F, 1.0F, 1.0F, 3.0F})}})[0];
  std::cout << "lockstep " << kVersion << " on " << runtime.scheduler().num_workers() << " workers: " << y
            << '\n';
  const bool right = y.data<float>()[0] == 2.0F && y.data<float>()[1] == 0.0F;
  const bool distributed = distributes_what_it_has_never_seen();
  return right && distributed && program.variables().value("runs").item() == 1.0 ? EXIT_SUCCESS
                                                                                 : EXIT_FAILURE;
}
