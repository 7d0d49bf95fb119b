// strategies/trace/internal/at_once.h - a few nodes on tensors, run at once.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lockstep/core/source_site.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/interpret/interpreter.h"

namespace lockstep::internal {

// Computes now what `make` builds from placeholders for the tensors: with the ops' own rules and kernels,
// without a program. Errors name the caller's line.
template <class Make>
Tensor at_once(std::span<const Tensor> tensors, SourceSite site, const Make& make) {
  GraphBuilder builder;
  std::vector<Value> values;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    values.push_back(builder.placeholder(str("input_", i), tensors[i].dtype(), tensors[i].shape(), site));
  const auto here = BuilderAccess(builder).made_at(site);
  builder.result(make(builder, values));
  return Interpreter(builder.finish()).run(std::vector<Tensor>(tensors.begin(), tensors.end()))[0];
}

}  // namespace lockstep::internal
