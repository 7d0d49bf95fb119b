// graph/build/builder_access.h - access to a builder for gradients, optimizers and strategies, not for users.
//
//   const auto made_at = internal::BuilderAccess(builder).made_at(site);  // nodes get the caller's line
//
// Not installed. A user's op or function needs none of it: the methods of GraphBuilder work on the region
// that is being built. Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/core/source_site.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

class BuilderAccess {
 public:
  explicit BuilderAccess(GraphBuilder& builder) : builder_(builder) {}

  // The region that is being built: this builder's graph, or the innermost function being traced.
  GraphBuilder& innermost() const { return builder_.innermost(); }
  GraphBuilder& outermost() const { return builder_.outermost(); }

  // The open scopes, those of the graphs around the region that is being built included: "layer/", or empty.
  std::string scope() const {
    std::string scope;
    for (const GraphBuilder* at = &builder_.innermost(); at != nullptr; at = at->parent_) {
      scope.insert(0, at->scope_);
      if (at->has_outer_scope_) break;
    }
    return scope;
  }
  // Is the code of one replica, which stands for several, being built?
  bool in_replicas() const { return builder_.innermost().in_replicas_; }
  void set_in_replicas(bool inside) const { builder_.in_replicas_ = inside; }

  // Nodes made while it lives carry this source line, whatever line makes them, and stem from this node: for
  // functions that make nodes on behalf of a caller, or of another node.
  class [[nodiscard]] MakerGuard {
   public:
    MakerGuard(GraphBuilder& root, GraphBuilder::Maker maker)
        : root_(root), old_(std::exchange(root.maker_, std::optional(std::move(maker)))) {}
    ~MakerGuard() { root_.maker_ = std::move(old_); }
    MakerGuard(const MakerGuard&) = delete;
    MakerGuard& operator=(const MakerGuard&) = delete;

   private:
    GraphBuilder& root_;
    std::optional<GraphBuilder::Maker> old_;
  };
  MakerGuard made_at(SourceSite site) const {
    GraphBuilder& root = outermost();
    GraphBuilder::Maker maker = root.maker_.value_or(GraphBuilder::Maker{});
    maker.site = site;
    return {root, std::move(maker)};
  }
  // The same, by a part of the library that later parts know them by; they stem from no other node.
  MakerGuard made_at(SourceSite site, std::string_view by) const {
    return {outermost(), {site, std::string(by), 0, GradientMark::kNone}};
  }
  MakerGuard made_for(const Node& node, std::string_view by,
                      GradientMark gradient = GradientMark::kNone) const {
    return {outermost(), {node.site(), std::string(by), node.provenance().origin, gradient}};
  }

  // The variable of that name if its spec is the same, else a new one: for state that belongs to other state
  // and may first be needed by code inside a region. The name is taken as it is; the initial value is copied.
  VariableRef find_or_declare(VariableDecl decl, SourceSite site = SourceSite::current()) const {
    return builder_.find_or_declare(std::move(decl), site);
  }
  // A key for a random op that differs from those of all other calls of this builder, and from keys that
  // count up from 0 or 1: -1, -2, ...
  std::int64_t new_key() const { return builder_.new_key(); }
  // Makes a while_loop with a bound keep its trips: it gains outputs, one [max_trips, ...] per carried value
  // and the number of trips. Its earlier outputs stay. (For the gradient rule of loops.)
  void keep_trips(NodeId loop) const { builder_.keep_trips(loop); }
  // A value of an enclosing graph becomes a captured parameter of this one; own values stay themselves.
  Value import(const Value& value) const { return builder_.import(value); }

 private:
  GraphBuilder& builder_;
};

}  // namespace lockstep::internal
