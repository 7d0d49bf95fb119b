// strategies/trace/building.cpp - finds the builder of the function that is being traced.
#include "lockstep/strategies/trace/building.h"

#include "lockstep/strategies/trace/context.h"

namespace lockstep {

namespace {

GraphBuilder& traced_graph(std::string_view method, std::string_view elsewhere, const SourceSite& site) {
  if (GraphBuilder* builder = current_builder()) return *builder;
  throw FailedPrecondition(
      str(method, " needs a function that is being traced: call it inside one; elsewhere use ", elsewhere),
      place_of_call(method, site));
}

}  // namespace

Value constant(const Tensor& value, std::string_view name, SourceSite site) {
  return traced_graph("constant()", "the tensor, or GraphBuilder::constant()", site)
      .constant(value, name, site);
}

GraphBuilder::Guard name_scope(std::string_view name, SourceSite site) {
  return named_call("name_scope()", site,
                    [&] { return traced_graph("name_scope()", "GraphBuilder::scope()", site).scope(name); });
}

}  // namespace lockstep
