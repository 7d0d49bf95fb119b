// Registers an op of one's own: nothing in the library knows its name, and everything works with it.
//
//      x [n] --> softclip(limit) --> y [n]        y = x / (1 + |x| / limit)
//      dx    <-- its gradient rule <-- dy         dx = dy / (1 + |x| / limit)^2
//
#include <cmath>
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

OpDef softclip_op() {
  OpDef def;
  def.name = "softclip";
  def.summary = "x / (1 + |x| / limit)";
  def.inputs = Arity::exactly(1);
  def.attributes = {{"limit", AttributeType::kFloat}};
  def.traits.elementwise = true;
  def.traits.in_place = true;    // the output may take the input's memory
  def.traits.infallible = true;  // never throws
  // What comes out, from what goes in. Called when a node is made: errors name the caller's line.
  def.infer = [](InferContext& c) {
    c.require(c.input(0).dtype == DType::kF32, "takes f32");
    c.require(c.get<double>("limit") > 0, "the limit must be positive");
    c.add_output(c.input(0));
  };
  // Into how many parts a large one falls: from the shape alone, so that results never depend on threads.
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{1 + outputs[0].shape.num_elements() / 65536};
  };
  // The kernel of one node: attributes are looked up once, here.
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [limit = static_cast<float>(node.get<double>("limit"))](KernelContext& c) {
      const auto in = c.input<float>(0);
      const auto out = c.output<float>(0);
      const auto [begin, end] = c.range(static_cast<std::int64_t>(in.size()));
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        out[i] = in[i] / (1 + std::abs(in[i]) / limit);
      }
    };
  };
  // What flows back into the input: ordinary nodes, so that it can be differentiated again.
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {c.grad() / square(1 + abs(c.input()) / c.view().get<double>("limit"))};
  };
  return def;
}

Value softclip(const Operand& x, double limit) {
  return x.value().builder().op1("softclip", {x.value()}, {{"limit", limit}}, {}, x.site());
}

}  // namespace

int main() {
  OpRegistry::global().add(softclip_op());

  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  const Value y = softclip(x, 2.0) * 10;
  b.result(y);
  std::cout << print(b.graph());
  b.result(gradients(sum(y), {x})[0]);
  const Graph graph = b.finish();

  const Program program = compile(parse(print(graph)), Runtime());  // it parses like any other op
  for (const Tensor& result : program.run({{"x", Tensor::from({3}, {-2.F, 0.F, 6.F})}}))
    std::cout << result << '\n';
}
