// graph/transform/slices.cpp - lets each replica hold one slice of a variable.
#include "lockstep/graph/transform/slices.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace lockstep {
namespace {

// Rows of a tensor from `first` on, as many as the spec has, with zeros after the last.
Tensor rows_from(const Tensor& whole, std::int64_t first, const TensorSpec& spec) {
  Tensor rows = Tensor::zeros(spec.dtype, spec.shape);
  const std::int64_t kept = std::clamp<std::int64_t>(whole.shape()[0] - first, 0, spec.shape[0]);
  if (kept == 0 || whole.num_bytes() == 0) return rows;
  const std::size_t row = whole.num_bytes() / static_cast<std::size_t>(whole.shape()[0]);
  std::memcpy(rows.raw(), static_cast<const char*>(whole.raw()) + static_cast<std::size_t>(first) * row,
              static_cast<std::size_t>(kept) * row);
  return rows;
}

}  // namespace

void declare_slices(Graph& graph, std::string_view variable, std::int64_t replicas) {
  const VariableDecl* found = graph.find_variable(variable);
  if (found == nullptr || !found->copy_of.empty() || found->spec.shape.rank() == 0 || replicas < 1) {
    throw InvalidArgument(str("variable '", variable, "' cannot be cut into ", replicas, " slices: ",
                              found == nullptr                ? "it is not declared"
                              : !found->copy_of.empty()       ? "it is a copy of another"
                              : found->spec.shape.rank() == 0 ? "a scalar has no rows"
                                                              : "there is at least one"));
  }
  for (const VariableDecl& decl : graph.variables()) {
    if (decl.copy_of == variable)
      throw InvalidArgument(
          str("variable '", variable, "' has copies already: cut it before it is mirrored"));
  }
  VariableDecl decl = *found;
  const Tensor whole = decl.initial;
  std::vector<std::int64_t> dims(decl.spec.shape.dims().begin(), decl.spec.shape.dims().end());
  decl.slice_axis = 0;
  decl.slice_extent = dims[0];
  dims[0] = (dims[0] + replicas - 1) / replicas;
  decl.spec.shape = Shape(dims);
  decl.synchronization = Synchronization::kOnRead;
  decl.aggregation = Aggregation::kSlices;
  if (whole.defined()) decl.initial = rows_from(whole, 0, decl.spec);
  graph.redeclare_variable(decl);
  for (std::int64_t r = 1; whole.defined() && r < replicas; ++r) {
    VariableDecl copy = decl;
    copy.name = copy_name(decl.name, r);
    copy.copy_of = decl.name;
    copy.replica = static_cast<std::int32_t>(r);
    copy.initial = rows_from(whole, r * dims[0], decl.spec);
    graph.declare_variable(std::move(copy));
  }
}

}  // namespace lockstep
