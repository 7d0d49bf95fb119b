// tests/support/op_test.h - what a small graph gives, whoever runs it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/text/text.h"
#include "support/on_card.h"
#include "support/on_fake_gpu.h"
#include "support/program_test.h"

namespace lockstep::testing {

// Finishes the graph and runs it by the interpreter, by programs inline and cut into tasks, on a fake GPU (three
// times: eager, recorded and replayed), on a card where there is one, and after a round trip through text; all agree.
inline std::vector<Tensor> evaluate(GraphBuilder& b, const std::vector<Tensor>& feeds) {
  const Graph graph = b.finish();
  const std::vector<Tensor> expected = Interpreter(graph).run(feeds);
  expect_same_tensors(compile(graph, Runtime({.threads = 2})).run(feeds), expected);
  expect_same_tensors(compile(graph, Runtime({.threads = 2}), with_lanes(Clustering::kOff)).run(feeds),
                      expected);
  Interpreter steps(graph);
  for (const std::vector<Tensor>& results : run_on_fake_gpu(graph, std::vector(3, feeds)))
    expect_same_tensors(results, steps.run(feeds));
  expect_same_on_card(graph, feeds);
  const std::string text = print(graph);
  if (text.find("<lambda>") != std::string::npos) return expected;  // C++ code, which text cannot carry
  const Graph again = parse(text);
  EXPECT_EQ(print(again), text);
  verify(again);
  expect_same_tensors(Interpreter(again).run(feeds), expected);
  return expected;
}

}  // namespace lockstep::testing
