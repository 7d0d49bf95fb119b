// strategies/proof/internal/drift.h - from two values that replicas do not share back to where they begin to
// differ.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/strategies/proof/congruence.h"

namespace lockstep::internal {

// Follows, from nodes to those of their inputs that are not proven equal, a pair of values or of copies of a
// variable. A search of its own each; make one per explanation.
class Drift {
 public:
  explicit Drift(const Congruence& proof) : proof_(proof), levels_{{&proof.graph(), &proof.top()}} {}

  // Goes into a region of a node of the innermost level so far.
  void enter(const Node& owner, std::size_t region);
  void follow(ValueId a, ValueId b);
  void follow_variables(std::size_t a, std::size_t b);  // places of the copies

  // One line a pair of nodes, and why they differ at the end.
  std::string text() const;
  const Node* start() const { return steps_.empty() ? nullptr : steps_[0].second; }  // the second one's

 private:
  struct Level {
    const Graph* graph;
    const LevelClasses* classes;
    const Node* owner = nullptr;  // in the level before
    std::size_t region = 0;
  };
  const Level& level() const { return levels_.back(); }
  bool differ(ValueId a, ValueId b) const { return level().classes->of(a) != level().classes->of(b); }
  bool leave(ValueId& a, ValueId& b);
  bool goes_round(ValueId a, ValueId b) const;
  bool descend(const Node& node, ValueId& a, ValueId& b);
  bool differ_inside(const LevelClasses& classes, std::size_t a, std::size_t b) const;
  std::string why(const Node& a, const Node& b);

  const Congruence& proof_;
  std::vector<Level> levels_;
  std::vector<std::pair<const Node*, const Node*>> steps_;
  std::set<std::tuple<const Graph*, ValueId, ValueId>> seen_;
  std::string reason_;
};

}  // namespace lockstep::internal
