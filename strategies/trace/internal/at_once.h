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

// What `make` builds from placeholders for the tensors.
template <class Make>
Graph graph_of(std::span<const Tensor> tensors, SourceSite site, const Make& make) {
  GraphBuilder builder;
  std::vector<Value> values;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    values.push_back(builder.placeholder(str("input_", i), tensors[i].dtype(), tensors[i].shape(), site));
  const auto here = BuilderAccess(builder).made_at(site);
  builder.result(make(builder, values));
  return builder.finish();
}

// Computes that now: with the ops' own rules and kernels, without a program. Errors name the caller's line.
template <class Make>
Tensor at_once(std::span<const Tensor> tensors, SourceSite site, const Make& make) {
  return Interpreter(graph_of(tensors, site, make))
      .run(std::vector<Tensor>(tensors.begin(), tensors.end()))[0];
}

}  // namespace lockstep::internal
