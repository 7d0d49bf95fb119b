// graph/interpret/interpreter.h - the reference interpreter: one node after another, nothing planned, nothing
// clustered.
//
//   Interpreter interpreter(graph, {.seed = 7});
//   std::vector<Tensor> results = interpreter.run({{"x", x}});
//   Tensor w = interpreter.variables().at("w");
//
// It runs any graph that verifies and whose ops have CPU kernels: regions, replicas, lambdas, variables, random
// ops; every device is the CPU. A merge_call has no kernel: interpret what the replicate pass makes of it. The
// interpreter uses the kernels and splits of the ops, so that compiled programs agree with it to the bit. As in
// programs, a node that no result and no effect depends on does not run. But a node of which only the shape is
// used runs here, and not in a program: if it fails, only the interpreter does. It is the oracle of the tests
// and of bisect() (graph/transform/bisect.h).
//
// A step either commits or has no effect: if something throws, variables and the step counter are as before
// the run. Errors name node, op and source line, with the original exception nested.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

struct InterpreterOptions {
  // Seeds the stream of every random op.
  std::uint64_t seed = 0;
  // A while_loop that makes more trips than this is an error.
  std::int64_t max_trips = 10'000'000;
};

class LOCKSTEP_API Interpreter {
 public:
  using Feeds = std::map<std::string, Tensor, std::less<>>;  // by name of the placeholder

  // Keeps the graph. Throws VerifyError if it cannot run.
  explicit Interpreter(Graph graph, InterpreterOptions options = {});
  ~Interpreter();
  Interpreter(Interpreter&&) noexcept;
  Interpreter& operator=(Interpreter&&) noexcept;

  // The results, in order; they share no memory with feeds, variables or constants. Feeds are checked before
  // anything runs: InvalidArgument names the placeholder and what it expects.
  std::vector<Tensor> run(const Feeds& feeds);
  std::vector<Tensor> run(const std::vector<Tensor>& feeds);  // one per placeholder, in order
  std::vector<Tensor> run(std::initializer_list<Tensor> feeds);
  std::vector<Tensor> run();

  // The state between runs: initial values at first. Tensors here are never written in place.
  const std::map<std::string, Tensor>& variables() const;
  // Throws NotFound for a variable that the graph does not declare, InvalidArgument for a value of another
  // spec.
  void set_variable(std::string_view name, const Tensor& value);
  // How many steps that write variables or draw random numbers have been committed; random ops draw from it.
  std::uint64_t step() const;
  void set_step(std::uint64_t step);

  const Graph& graph() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
