// Builds a small graph, looks at it, and runs it.
//
//        x [?,3]      w [3,2]
//            \        /
//             matmul        b [2]
//                \          /
//                 +--------+
//                     |
//                    relu --> y [?,2]          steps += 1
//
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

int main() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 3});  // any number of rows
  const VariableRef w = b.variable("w", Tensor::from({3, 2}, {1.F, 0.F, 0.F, 1.F, 1.F, 1.F}));
  const VariableRef steps = b.variable("steps", Tensor::scalar<std::int64_t>(0));
  Value y;
  {
    const auto layer = b.scope("layer");
    const Value bias = b.constant(Tensor::from({2}, {0.5F, -10.F}));
    y = relu(matmul(x, b.read(w)) + bias);
  }
  b.result(y);
  b.assign_add(steps, b.constant<std::int64_t>(1));

  // Shapes are checked here, not when the graph runs; what() adds the operands, this file and this line.
  try {
    x + b.constant(Tensor::zeros({2}));
  } catch (const InvalidArgument& error) {
    std::cout << error.message().substr(0, error.message().find(';')) << "\n\n";
  }

  const Graph graph = b.finish();
  std::cout << print(graph) << '\n';

  const Runtime runtime({.threads = 2});
  const Program program = compile(graph, runtime);
  for (const std::int64_t rows : {1, 3}) {  // each number of rows is planned once
    const Tensor ones = Tensor::full(DType::kF32, {rows, 3}, 1.0);
    std::cout << "y = " << program.run({{"x", ones}})[0] << '\n';
  }
  std::cout << "steps = " << program.variables().value("steps").item() << '\n';
}
