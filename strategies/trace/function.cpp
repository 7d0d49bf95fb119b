// strategies/trace/function.cpp - the specs and the number of arguments.
#include "lockstep/strategies/trace/function.h"

#include <string>

#include "lockstep/strategies/trace/context.h"

namespace lockstep::internal {

void wrong_arity(std::size_t takes, std::size_t got, const SourceSite& site) {
  throw InvalidArgument(str("the function takes ", takes, takes == 1 ? " value" : " values", ", got ", got,
                            "; name one input for each"),
                        place_of_call("the function", site));
}

std::vector<InputSpec> specs_of(std::span<const PerReplica<Tensor>> arguments, const SourceSite& site) {
  std::vector<InputSpec> specs;
  for (const PerReplica<Tensor>& argument : arguments) {
    TensorSpec spec = argument[0].spec();
    for (const Tensor& slot : argument) {
      if (slot.dtype() != spec.dtype || slot.shape().rank() != spec.shape.rank())
        throw InvalidArgument(str("the slots of an argument are ", spec, " and ", slot.spec()),
                              place_of_call("run()", site));
      spec.shape = join_shapes(spec.shape, slot.shape());
    }
    specs.emplace_back(spec, std::string(), argument.is_single());
  }
  return specs;
}

}  // namespace lockstep::internal
