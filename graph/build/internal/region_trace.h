// graph/build/internal/region_trace.h - traces a function of the user into a region: nodes built while it
// lives belong there.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/graph/build/builder.h"

namespace lockstep::internal {

// Traces one function into a region of the innermost graph.
struct RegionTrace {
  explicit RegionTrace(GraphBuilder& outer) : outer_(outer.innermost()), inner_(&outer_) {
    outer_.child_ = &inner_;
    inner_.in_replicas_ = outer_.in_replicas_;
  }
  // A region that is, or is not, the code of one of several replicas.
  RegionTrace(GraphBuilder& outer, bool in_replicas) : RegionTrace(outer) {
    inner_.in_replicas_ = in_replicas;
  }
  // For a region whose nodes become nodes of the graph around it under their own names: they take over the
  // scope that is open there.
  void keep_scope() {
    inner_.scope_ = BuilderAccess(outer_).scope();
    inner_.has_outer_scope_ = true;
  }
  ~RegionTrace() { outer_.child_ = nullptr; }
  RegionTrace(const RegionTrace&) = delete;
  RegionTrace& operator=(const RegionTrace&) = delete;

  // The values that a builder captured from the graph around it: (value there, parameter here). The outermost
  // has no parent.
  static const std::vector<std::pair<Value, NodeId>>& captures_of(const GraphBuilder& builder) {
    return builder.captures_;
  }
  static GraphBuilder* parent_of(const GraphBuilder& builder) { return builder.parent_; }

  Value parameter(const std::string& name, const TensorSpec& spec) {
    return inner_.add_parameter(name, spec, {});
  }
  void finish(std::span<const Value> results, const SourceSite& site) {
    for (const Value& value : results) inner_.result(value, site);
    outer_.child_ = nullptr;
  }
  const auto& captures() const { return inner_.captures_; }
  // Appends the captured values that the list does not have yet.
  void add_captures_to(std::vector<Value>& all) const {
    for (const auto& [outer, parameter] : captures()) {
      if (std::ranges::find(all, outer) == all.end()) all.push_back(outer);
    }
  }
  // The region with these parameters first, then one for each captured value in the given order.
  Graph take(std::span<const Value> own, std::span<const Value> captured) {
    std::vector<NodeId> parameters;
    for (const Value& value : own) parameters.push_back(value.id().node);
    for (const Value& outer : captured) parameters.push_back(inner_.import(outer).id().node);
    inner_.graph_.set_parameters(std::move(parameters));
    return std::move(inner_.graph_);
  }

 private:
  GraphBuilder& outer_;
  GraphBuilder inner_;
};

}  // namespace lockstep::internal
