#include "lockstep/strategies/passes/register.h"

#include <mutex>

#include "lockstep/strategies/passes/bucket_all_reduce.h"
#include "lockstep/strategies/passes/enter_replicas.h"
#include "lockstep/strategies/passes/insert_all_reduce.h"
#include "lockstep/strategies/passes/internal/flat_passes.h"
#include "lockstep/strategies/passes/mirror_variables.h"
#include "lockstep/strategies/passes/replicate.h"

namespace lockstep {

namespace {

std::int64_t count_option(const PassOptions& options, std::string_view name) {
  const std::int64_t value = options.get_int(name);
  if (value < 0) throw BadOptionValue(str(name, " must be at least 0, got ", value));
  return value;
}

void add_all(PassRegistry& registry) {
  registry.add({.name = "bucket-all-reduce",
                .summary = "many small all-reduces become a few large ones",
                .options = {{.name = "bytes_per_pack",
                             .type = OptionType::kInt,
                             .fallback = BucketAllReduceOptions::kDefaultBytes,
                             .summary = "a pack is closed when it is larger; 0: one pack"},
                            {.name = "num_packs",
                             .type = OptionType::kInt,
                             .fallback = std::int64_t{0},
                             .summary = "above 0: that many packs of about equal bytes"}}},
               [](const PassOptions& options) {
                 return make_bucket_all_reduce({.bytes_per_pack = options.get_int("bytes_per_pack"),
                                                .num_packs = options.get_int("num_packs")});
               });
  registry.add(
      {.name = "enter-replicas",
       .summary = "the plain step of one replica becomes a replicated region",
       .options = {{.name = "replicas", .type = OptionType::kInt, .summary = "how many there shall be"},
                   {.name = "shared",
                    .type = OptionType::kList,
                    .fallback = std::vector<std::string>(),
                    .summary = "placeholders that all replicas see"}}},
      [](const PassOptions& options) {
        return make_enter_replicas(
            {.replicas = options.get_int("replicas"), .shared = options.get_list("shared")});
      });
  registry.add({.name = "insert-all-reduce",
                .summary = "what replicas write into shared variables becomes the same on all of them",
                .options = {{.name = "allow",
                             .type = OptionType::kList,
                             .fallback = std::vector<std::string>(),
                             .summary = "variables whose copies may drift apart"},
                            {.name = "strict",
                             .type = OptionType::kBool,
                             .fallback = true,
                             .summary = "a name in allow that is no variable is an error"}}},
               [](const PassOptions& options) {
                 return make_insert_all_reduce(
                     {.allow = options.get_list("allow"), .strict = options.get_bool("strict")});
               });
  registry.add({.name = "mirror-variables",
                .summary = "a copy of each variable for every replica",
                .options = {{.name = "devices",
                             .type = OptionType::kList,
                             .fallback = std::vector<std::string>(),
                             .summary = "where the copies live, by replica"},
                            {.name = "replicas",
                             .type = OptionType::kInt,
                             .fallback = std::int64_t{0},
                             .summary = "for a graph without replicated regions: how many"}}},
               [](const PassOptions& options) {
                 return make_mirror_variables(
                     {.devices = options.get_list("devices"), .replicas = count_option(options, "replicas")});
               });
  registry.add({.name = "replicate",
                .summary = "replicated regions become their nodes, once per replica",
                .options = {{.name = "replicas",
                             .type = OptionType::kInt,
                             .fallback = std::int64_t{0},
                             .summary = "for a graph without replicated regions: how many"},
                            {.name = "shared",
                             .type = OptionType::kList,
                             .fallback = std::vector<std::string>(),
                             .summary = "its placeholders that all replicas see"}}},
               [](const PassOptions& options) {
                 return make_replicate(
                     {.replicas = count_option(options, "replicas"), .shared = options.get_list("shared")});
               });
}

}  // namespace

void register_strategy_passes(PassRegistry& registry) {
  static std::mutex mutex;  // of two threads that make the first strategies, one adds them
  const std::lock_guard<std::mutex> lock(mutex);
  if (registry.contains("replicate")) return;
  add_all(registry);
  internal::add_flat_passes(registry);
}

}  // namespace lockstep
