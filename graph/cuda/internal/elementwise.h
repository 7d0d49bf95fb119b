// graph/cuda/internal/elementwise.h - kernels that are generated from the expressions of element-wise ops (OpDef::source).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal::cuda {

// Values, in the order in which they are computed: those that are read, then one for each output of each step.
struct ElementSteps {
  struct Read {
    DType dtype;
    Shape shape;
    std::size_t input;                    // of the kernel
    std::vector<std::uint64_t> literals;  // not empty: the bits of a constant's elements; it is no input
  };
  struct Step {
    std::vector<std::string> expressions;  // with attributes put in
    std::vector<std::size_t> inputs;       // values
    std::vector<DType> outputs;
  };
  struct Write {
    std::size_t value;
    std::size_t output;  // of the kernel
    DType dtype;
  };
  std::vector<Read> reads;
  std::vector<Step> steps;
  std::vector<Write> writes;
  Shape shape;  // of everything that is written
};

// How the kernel finds the elements of what it reads, besides one by one: which reads stay where they are, and which are
// repeated along some axes.
struct ElementWalk {
  enum class Kind : std::uint8_t { kFlat, kScalar, kStrided };
  std::vector<Kind> reads;
  std::vector<std::int64_t> extents;               // of the axes that are left when neighbours are joined
  std::vector<std::vector<std::int64_t>> strides;  // by strided read, by axis
};
ElementWalk walk_of(const ElementSteps& steps);

// A kernel whose threads compute `width` neighbours together, if addresses allow it.
struct ElementSource {
  std::string text;
  std::int64_t width;
};
ElementSource source_of(const ElementSteps& steps, const ElementWalk& walk);

// One op by itself, and a fused node's results of one shape.
ElementSteps steps_of(const OpDef& op, const NodeView& node, std::span<const TensorSpec> outputs);
ElementSteps steps_of(const Graph& region, std::span<const TensorSpec> specs,
                      std::span<const std::size_t> results);

// A number that C reads back as it is.
std::string literal_of(double value);
// The expression with the attributes of the node as numbers in the places of their names.
std::string with_attributes(const std::string& expression, const NodeView& node);

KernelFn make_element_kernel(const ElementSteps& steps);
// Outputs of one shape, each by an expression of the kernel's inputs (OpDef::source).
KernelFn make_element_kernel(std::span<const TensorSpec> inputs, std::span<const TensorSpec> outputs,
                             std::vector<std::string> expressions);

}  // namespace lockstep::internal::cuda
