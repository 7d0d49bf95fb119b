// graph/transform/pass.h - the unit of graph transformation.
//
// A Pass rewrites one Graph in place.
//   in       the graph passes verify()
//   out      the graph passes verify(); the pipeline checks, and names the pass that broke it
//   result   kChanged iff the graph differs; the pipeline checks that too
//   failure  throws PassError naming a node; the caller discards the half-rewritten graph
//
// To write one: docs/writing_a_pass.md. Thread safety: one thread at a time per Pass; no global state.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

class Topology;

enum class PassOutcome : std::uint8_t { kUnchanged, kChanged };
LOCKSTEP_API std::string_view to_string(PassOutcome outcome);  // "unchanged", "changed"
constexpr PassOutcome outcome_of(bool changed) {
  return changed ? PassOutcome::kChanged : PassOutcome::kUnchanged;
}

// The error that a pass throws, and that a pipeline turns any other failure of a pass into. The message
// starts with the pass: "insert-all-reduce: ..." if the pass refused, "after insert-all-reduce: ..." if it
// broke its contract.
class LOCKSTEP_API PassError : public Error {
 public:
  PassError(std::string_view pass, const std::string& message, ErrorPlace place = {},
            ErrorCode code = ErrorCode::kInvalidArgument);
  static PassError after(std::string_view pass, const std::string& message, ErrorPlace place = {},
                         ErrorCode code = ErrorCode::kInternal);
  ~PassError() override;
  const std::string& pass() const { return pass_; }

 private:
  struct Verbatim {};
  PassError(Verbatim, std::string_view pass, std::string message, ErrorPlace place, ErrorCode code);
  std::string pass_;
};

// Results of analyses of a graph, for later passes; one per type. A pipeline keeps them as long as passes
// leave the graph unchanged.
class LOCKSTEP_API Analyses {
 public:
  template <class T>
  std::shared_ptr<const T> find() const {
    const auto found = kept_.find(typeid(T));
    return found == kept_.end() ? nullptr : std::static_pointer_cast<const T>(found->second);
  }
  template <class T>
  void keep(std::shared_ptr<const T> made) {
    kept_[typeid(T)] = std::move(made);
  }
  void clear();

 private:
  std::map<std::type_index, std::shared_ptr<const void>> kept_;
};

// What a pass may use besides the graph.
struct PassContext {
  const Topology* topology = nullptr;  // of the machine that the graph will run on, if that is known
  Analyses* analyses = nullptr;        // of the graph; null: nobody keeps them
  // What a pass recorded at its place in the pipeline, for the caller: unlike analyses, it is kept when later
  // passes change the graph. Null: nobody asks.
  Analyses* records = nullptr;
  // Of one of several workers: the number of its first replica among those of all. Pipelines of all workers read the same.
  std::int64_t first_replica = 0;
};

class LOCKSTEP_API Pass {
 public:
  Pass();
  virtual ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  virtual std::string_view name() const = 0;  // "bucket-all-reduce"
  // The text that makes the pass again: "bucket-all-reduce(bytes=4194304)". By default the text that the
  // registry made it from, or its name; a pass with options that is also made by a function of its own prints
  // them here (print_pass).
  virtual std::string to_string() const;
  // Runs and closes the gaps that erased nodes left (Graph::compact).
  PassOutcome run(Graph& graph, PassContext& context);

 private:
  friend class PassRegistry;
  virtual PassOutcome run_on(Graph& graph, PassContext& context) = 0;

  std::string text_;  // the text that the registry made it from
};

}  // namespace lockstep
