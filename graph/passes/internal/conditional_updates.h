// graph/passes/internal/conditional_updates.h - updates that are made in some steps only.
//
//   g --> sgd[w]                 g, due --> cond --> where due holds: sgd[w](g); else w stays
//
// For passes that hold a step's updates back: accumulate-gradients, mixed-precision.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep::internal {

// A node that moves into a branch.
struct ConditionalNode {
  NodeId node;
  std::size_t depth = 0;  // how many others it waits for, one after another
};

// The updates by gradients (OpTraits::Update::gradient) of a level, and the counters that advance with them, by depth; none
// if the level has no such updates. A counter is the addition of a constant to an integer scalar that the other inputs of an
// update (learning rate, step number) depend on, or that is declared as optimizers declare `iterations`.
std::vector<ConditionalNode> conditional_nodes(const Graph& level, const Graph& outermost);
// The nodes of one depth, from the first of `nodes` on; those that follow are left in `nodes`.
std::span<const ConditionalNode> take_depth(std::span<const ConditionalNode>& nodes);

// The variable that an update names; null if there is none.
const VariableDecl* updated_variable(const Node& update, const Graph& outermost);
// The variables that these nodes of a level update by gradients.
std::vector<std::string> trained_variables(std::span<const ConditionalNode> nodes, const Graph& level,
                                           const Graph& outermost);
// Identifies a text and these variables in 16 digits, the same in every process: part of the names of variables that a pass
// declares, so that functions on one store that train different variables have their own.
std::string tag_of(std::string text, std::vector<std::string> variables);
// Declares the variable, under another name if its own is taken; gives the name.
std::string declare_free(Graph& outermost, VariableDecl decl);

// Updates that one pass holds back in some steps must not be held back in others by another: each would count steps that the
// other does not make.
inline constexpr std::string_view kMixedPrecision = "mixed-precision";
// The branch of this level that the pass made with move_into_branch(); null: none.
const Node* branch_of(const Graph& level, std::string_view pass);

// What an update's gradient is in the branch, if it is not the same as before.
class GradientInBranch {
 public:
  virtual ~GradientInBranch();
  // Values of the level that the branch takes in place of the gradient, and of the numbers of its rows.
  virtual std::vector<ValueId> outside(NodeId update) = 0;
  // In the branch: the gradient, and the numbers of its rows if it has any, from what was taken.
  virtual std::vector<ValueId> inside(Rewriter& edit, NodeId update, std::span<const ValueId> taken) = 0;
};

// Puts the nodes, all of one depth, into a cond on `due`. A reader of a variable's new value gets the current one where it
// does not hold. `edit` is of the level. Null: gradients stay the same.
void move_into_branch(Rewriter& edit, const Graph& outermost, std::string_view pass,
                      std::span<const ConditionalNode> nodes, ValueId due, std::string_view name,
                      GradientInBranch* gradients);

}  // namespace lockstep::internal
