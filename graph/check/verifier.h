// graph/check/verifier.h - checks that a graph can run.
//
// A list of small named rules; docs/graph_rules.md has a paragraph for each. verify() throws at the first
// graph that breaks one, naming rule, node and source line; find_violations() collects them all. Linear in
// the number of nodes. Thread safety: any thread; the graph is only read.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"
#include "lockstep/core/topology.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

struct Violation {
  std::string rule;     // "acyclic"
  std::string message;  // "a -> b -> a"
  ErrorPlace place;
};

class LOCKSTEP_API VerifyError : public Error {
 public:
  explicit VerifyError(Violation violation);
  ~VerifyError() override;
  const std::string& rule() const { return rule_; }

 private:
  std::string rule_;
};

// With a topology (Runtime::topology()), devices of nodes and variables must be in it (rule "device-known");
// without one they need only parse.
LOCKSTEP_API void verify(const Graph& graph, const Topology* topology = nullptr);
LOCKSTEP_API std::vector<Violation> find_violations(const Graph& graph, const Topology* topology = nullptr);
// The names of all rules, in the order they are checked.
LOCKSTEP_API std::vector<std::string> verifier_rules();

}  // namespace lockstep
