// strategies/trace/element_spec.cpp - an input signature from a batch.
#include "lockstep/strategies/trace/element_spec.h"

namespace lockstep {

InputSpec input_spec_of(const PerReplica<Tensor>& value) {
  if (value.empty()) throw InvalidArgument("element_spec: a value is empty");
  TensorSpec spec = value[0].spec();
  for (const Tensor& slot : value) {
    if (slot.dtype() != spec.dtype || slot.shape().rank() != spec.shape.rank()) {
      throw InvalidArgument(str("element_spec: the slots of a value are ", spec, " and ", slot.spec(),
                                "; they must have one dtype and rank"));
    }
    spec.shape = join_shapes(spec.shape, slot.shape());
  }
  if (!value.is_single() && spec.shape.rank() > 0) {
    std::vector<std::int64_t> dims(spec.shape.dims().begin(), spec.shape.dims().end());
    dims[0] = kUnknown;
    spec.shape = Shape(std::span<const std::int64_t>(dims));
  }
  return InputSpec(std::move(spec), {}, value.is_single());
}

std::vector<InputSpec> internal::element_specs(std::span<const PerReplica<Tensor>> leaves) {
  std::vector<InputSpec> specs;
  specs.reserve(leaves.size());
  for (const PerReplica<Tensor>& leaf : leaves) specs.push_back(input_spec_of(leaf));
  return specs;
}

}  // namespace lockstep
