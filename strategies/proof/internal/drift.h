// strategies/proof/internal/drift.h - traces two values that differ between replicas back to where they begin
// to differ.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/strategies/proof/congruence.h"

namespace lockstep::internal {

// Follows a pair of values, or of copies of a variable, from nodes to those of their inputs that are not
// proven equal. Keeps the state of one search: make one per explanation.
class Drift {
 public:
  explicit Drift(const Congruence& proof) : proof_(proof), levels_{{&proof.graph(), &proof.top()}} {}

  // Enters a region of a node of the current innermost level.
  void enter(const Node& owner, std::size_t region);
  void follow(ValueId a, ValueId b);
  void follow_variables(std::size_t a, std::size_t b);  // places of the copies

  // One line per pair of nodes, and the reason why the last pair differs.
  std::string text() const;
  const Node* start() const { return steps_.empty() ? nullptr : steps_[0].second; }  // of the second value

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
  bool differs_by_trips(ValueId a, ValueId b) const;
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
