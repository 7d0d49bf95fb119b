// A plugin outside the tree, for the installed command: an op that Lockstep has never heard of.
#include "lockstep/graph/transform/plugin.h"

#include "lockstep/graph/ir/op.h"

namespace {

lockstep::OpDef thrice() {
  lockstep::OpDef op;
  op.name = "consumer_thrice";
  op.summary = "three times its input";
  op.inputs = lockstep::Arity::exactly(1);
  op.infer = [](lockstep::InferContext& c) { c.add_output(c.input(0)); };
  op.kernels["cpu"] = [](const lockstep::NodeView&,
                         std::span<const lockstep::TensorSpec>) -> lockstep::KernelFn {
    return [](lockstep::KernelContext& c) {
      const std::span<const float> in = c.input<float>(0);
      const std::span<float> out = c.output<float>(0);
      for (std::size_t i = 0; i < in.size(); ++i) out[i] = 3 * in[i];
    };
  };
  return op;
}

}  // namespace

LOCKSTEP_PLUGIN("consumer") { lockstep::OpRegistry::global().add(thrice()); }
