// strategies/trace/function.cpp - the specs of arguments.
#include "lockstep/strategies/trace/function.h"

#include <string>

namespace lockstep::internal {

std::vector<InputSpec> specs_of(std::span<const PerReplica<Tensor>> arguments) {
  std::vector<InputSpec> specs;
  for (const PerReplica<Tensor>& argument : arguments) {
    TensorSpec spec = argument[0].spec();
    for (const Tensor& slot : argument) {
      if (slot.dtype() != spec.dtype || slot.shape().rank() != spec.shape.rank())
        throw InvalidArgument(str("the slots of an argument are ", spec, " and ", slot.spec()));
      spec.shape = join_shapes(spec.shape, slot.shape());
    }
    specs.emplace_back(spec, std::string(), argument.is_single());
  }
  return specs;
}

}  // namespace lockstep::internal
