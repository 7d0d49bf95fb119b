// graph/pass.h - the unit of graph transformation.
//
// A Pass rewrites one Graph in place.
//   in       the graph passes verify()
//   out      the graph passes verify(); the pipeline checks, and names the pass that broke it
//   result   kChanged iff the graph differs; the pipeline checks that too
//   failure  throws PassError naming a node; the caller throws the half-rewritten graph away
//
// To write one: docs/writing_a_pass.md. Thread safety: one thread at a time per Pass; no global state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/export.h"
#include "lockstep/graph/graph.h"

namespace lockstep {

class Runtime;

enum class PassOutcome : std::uint8_t { kUnchanged, kChanged };

class LOCKSTEP_API PassError : public Error {
 public:
  PassError(std::string_view pass, std::string message, ErrorPlace place = {}, ErrorCode code = ErrorCode::kInvalidArgument);
  ~PassError() override;
  const std::string& pass() const { return pass_; }

 private:
  std::string pass_;
};

// What a pass may use besides the graph.
struct PassContext {
  const Runtime* runtime = nullptr;  // where the graph will run, if that is known
};

class LOCKSTEP_API Pass {
 public:
  Pass();
  virtual ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  virtual std::string_view name() const = 0;  // "bucket-all-reduce"
  // As the text that makes it again: "bucket-all-reduce(bytes=4194304)".
  virtual std::string to_string() const { return std::string(name()); }
  // Runs and closes the gaps that erased nodes left (Graph::compact).
  PassOutcome run(Graph& graph, PassContext& context);

 private:
  virtual PassOutcome run_on(Graph& graph, PassContext& context) = 0;
};

}  // namespace lockstep
