#include "lockstep/strategies/internal/flat_passes.h"
#include "lockstep/strategies/passes/prove_sync.h"
#include "lockstep/strategies/passes/share_mirrored.h"

namespace lockstep::internal {

namespace {

OptionSpec list_option(std::string name, std::string summary) {
  return {.name = std::move(name),
          .type = OptionType::kList,
          .fallback = std::vector<std::string>(),
          .summary = std::move(summary)};
}

OptionSpec flag_option(std::string name, bool fallback, std::string summary) {
  return {.name = std::move(name),
          .type = OptionType::kBool,
          .fallback = fallback,
          .summary = std::move(summary)};
}

}  // namespace

void add_flat_passes(PassRegistry& registry) {
  registry.add(
      {.name = "prove-sync",
       .summary = "proves that copies of variables stay equal, or says where replicas drift apart",
       .options = {list_option("allow", "variables whose copies may drift apart")}},
      [](const PassOptions& options) { return make_prove_sync({.allow = options.get_list("allow")}); });
  registry.add({.name = "share-mirrored",
                .summary = "what is equal on all replicas of one memory is computed and kept once",
                .options = {flag_option("variables", true, "share copies of variables too")}},
               [](const PassOptions& options) {
                 return make_share_mirrored({.variables = options.get_bool("variables")});
               });
}

}  // namespace lockstep::internal
