// What people type first and cannot be meant: refused in one sentence, not by a page of templates.
#include <map>
#include <string>
#include <utility>

#include "lockstep/lockstep.h"

// A message is one line.
// clang-format off
void test_first_tries(lockstep::MirroredStrategy& strategy, const lockstep::Variable& w, const lockstep::PerReplica<lockstep::Value>& slots);
void test_first_tries(lockstep::MirroredStrategy& strategy, const lockstep::Variable& w, const lockstep::PerReplica<lockstep::Value>& slots) {
  using lockstep::Tensor;
  using lockstep::Value;
  const auto same = [](Value x) { return x; };
  strategy.run(same, 5);  // refused: run() takes tensors, or Values where a function is traced, or nests of them, one argument for each parameter: write Tensor::scalar(5.F) for a number
  strategy.run(same, std::pair(Tensor(), Tensor()));  // refused: the parameters of run()'s function are the nests of its arguments, of Values
  strategy.function({}, [](auto x) { return x; });  // refused: a function of a step names the types of its parameters: write [](Value x), not [](auto x)
  strategy.function({}, [](Value) { return std::string("loss"); });  // refused: a function of a step gives Values, Variables, or nests of them (std::vector, std::array, std::map, std::pair, std::tuple, structs with fields()): write constant(5.F) for a number
  strategy.function({}, [](Value x, const std::map<std::string, Value>&) { return x; });  // refused: function() cannot tell how many inputs a std::vector or std::map among several parameters takes: make it a std::array, a std::tuple or a struct, or the only parameter
  strategy.cross_function({}, [](Value) {});  // refused: the parameters of a function given to cross_function() are PerReplica<Value>, one for each input, those of one given to function() or run() are Value, or nests of these
  strategy.run([](Value a, Value, Value, Value, Value, Value, Value) { return a; }, Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor());  // refused: run() takes up to 6 arguments: use run_at(SourceSite::current(), fn, ...), or a nest
  strategy.update(w, [](const lockstep::Variable& copy) { return copy.read(); }, slots);  // refused: the function of update() takes the variable and one Value for each argument
  lockstep::replica_context().merge_call([](lockstep::Strategy&) {}, Value());  // refused: a merge function takes Strategy& and, for each argument of merge_call(), a PerReplica<Value>, or the nest of them that the argument is of Values
  lockstep::replica_context().all_reduce(lockstep::ReduceOp::kSum, std::pair(Value(), lockstep::IndexedSlices()));  // refused: all_reduce() takes slices by themselves, not in a nest: their rows are put together, not added up number by number
}
// clang-format on
