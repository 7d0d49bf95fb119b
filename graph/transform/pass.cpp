// graph/transform/pass.cpp - the unit of graph transformation.
#include "lockstep/graph/transform/pass.h"

#include <utility>

#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {

std::string_view to_string(PassOutcome outcome) {
  return outcome == PassOutcome::kChanged ? "changed" : "unchanged";
}

PassError::PassError(std::string_view pass, const std::string& message, ErrorPlace place, ErrorCode code)
    : PassError(Verbatim(), pass, str(pass, ": ", message), std::move(place), code) {}

PassError::PassError(Verbatim /*tag*/, std::string_view pass, std::string message, ErrorPlace place,
                     ErrorCode code)
    : Error(code, std::move(message), std::move(place)), pass_(pass) {}

PassError PassError::after(std::string_view pass, const std::string& message, ErrorPlace place,
                           ErrorCode code) {
  return {Verbatim(), pass, str("after ", pass, ": ", message), std::move(place), code};
}

PassError::~PassError() = default;

Pass::Pass() = default;
Pass::~Pass() = default;

std::string Pass::to_string() const { return text_.empty() ? std::string(name()) : text_; }

PassOutcome Pass::run(Graph& graph, PassContext& context) {
  const PassOutcome outcome = run_on(graph, context);
  if (outcome == PassOutcome::kChanged) {
    if (context.analyses != nullptr) context.analyses->clear();
    for_each_level(graph, [](Graph& level) { level.compact(); });
  }
  return outcome;
}

void Analyses::clear() { kept_.clear(); }

}  // namespace lockstep
