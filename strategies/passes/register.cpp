#include "lockstep/strategies/passes/register.h"

#include <mutex>
#include <utility>

#include "lockstep/strategies/passes/bucket_all_reduce.h"
#include "lockstep/strategies/passes/enter_replicas.h"
#include "lockstep/strategies/passes/insert_all_reduce.h"
#include "lockstep/strategies/passes/insert_copies.h"
#include "lockstep/strategies/passes/lower_collectives.h"
#include "lockstep/strategies/passes/mirror_variables.h"
#include "lockstep/strategies/passes/order_collectives.h"
#include "lockstep/strategies/passes/place.h"
#include "lockstep/strategies/passes/prove_sync.h"
#include "lockstep/strategies/passes/replicate.h"
#include "lockstep/strategies/passes/share_mirrored.h"

namespace lockstep {

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

OptionSpec text_option(std::string name, std::string fallback, std::string summary) {
  return {.name = std::move(name),
          .type = OptionType::kString,
          .fallback = std::move(fallback),
          .summary = std::move(summary)};
}

OptionSpec number_option(std::string name, std::int64_t fallback, std::string summary) {
  return {
      .name = std::move(name), .type = OptionType::kInt, .fallback = fallback, .summary = std::move(summary)};
}

OptionSpec required_number_option(std::string name, std::string summary) {
  return {.name = std::move(name), .type = OptionType::kInt, .summary = std::move(summary)};
}

std::int64_t get_count(const PassOptions& options, std::string_view name) {
  const std::int64_t value = options.get_int(name);
  if (value < 0) throw BadOptionValue(str(name, " must be at least 0, got ", value));
  return value;
}

// A pass that refuses what it is given, when it is made from text.
template <class Make>
auto checked(const Make& make) {
  try {
    return make();
  } catch (const BadOptionValue&) {
    throw;
  } catch (const InvalidArgument& error) {
    throw BadOptionValue(error.message());
  }
}

// For replicated regions, up to the pass that makes them flat.
void add_region_passes(PassRegistry& registry) {
  registry.add({.name = "enter-replicas",
                .summary = "the plain step of one replica becomes a replicated region",
                .options = {required_number_option("replicas", "how many there shall be"),
                            list_option("shared", "placeholders that all replicas see")}},
               [](const PassOptions& options) {
                 return make_enter_replicas(
                     {.replicas = options.get_int("replicas"), .shared = options.get_list("shared")});
               });
  registry.add({.name = "insert-all-reduce",
                .summary = "what replicas write into shared variables becomes the same on all of them",
                .options = {list_option("allow", "variables whose copies may drift apart"),
                            flag_option("strict", true, "a name in allow that is no variable is an error")}},
               [](const PassOptions& options) {
                 return make_insert_all_reduce(
                     {.allow = options.get_list("allow"), .strict = options.get_bool("strict")});
               });
  registry.add({.name = "bucket-all-reduce",
                .summary = "many small all-reduces become a few large ones",
                .options = {number_option("bytes_per_pack", BucketAllReduceOptions::kDefaultBytes,
                                          "a pack is closed when it is larger; 0: one pack"),
                            number_option("num_packs", 0, "above 0: that many packs of about equal bytes")}},
               [](const PassOptions& options) {
                 return make_bucket_all_reduce({.bytes_per_pack = options.get_int("bytes_per_pack"),
                                                .num_packs = options.get_int("num_packs")});
               });
  registry.add(
      {.name = "mirror-variables",
       .summary = "a copy of each variable for every replica",
       .options = {list_option("devices", "where the copies live, by replica"),
                   number_option("replicas", 0, "for a graph without replicated regions: how many")}},
      [](const PassOptions& options) {
        return make_mirror_variables(
            {.devices = options.get_list("devices"), .replicas = get_count(options, "replicas")});
      });
  registry.add({.name = "replicate",
                .summary = "replicated regions become their nodes, once per replica",
                .options = {number_option("replicas", 0, "for a graph without replicated regions: how many"),
                            list_option("shared", "its placeholders that all replicas see")}},
               [](const PassOptions& options) {
                 return make_replicate(
                     {.replicas = get_count(options, "replicas"), .shared = options.get_list("shared")});
               });
}

// For flat graphs: what runs after `replicate`.
void add_flat_passes(PassRegistry& registry) {
  registry.add(
      {.name = "prove-sync",
       .summary = "proves that copies of variables stay equal, or says where replicas drift apart",
       .options = {list_option("allow", "variables whose copies may drift apart"),
                   flag_option("strict", true, "a name in allow that is no variable is an error")}},
      [](const PassOptions& options) {
        return make_prove_sync({.allow = options.get_list("allow"), .strict = options.get_bool("strict")});
      });
  registry.add({.name = "share-mirrored",
                .summary = "what is equal on all replicas of one memory is computed and kept once",
                .options = {flag_option("variables", true, "share copies of variables too")}},
               [](const PassOptions& options) {
                 return make_share_mirrored({.variables = options.get_bool("variables")});
               });
  registry.add(
      {.name = "place",
       .summary = "every node and variable gets a device, by its replica",
       .options = {list_option("devices", "one for each replica"),
                   text_option("default", "", "for what belongs to no replica; empty: the first device"),
                   text_option("variables", "", "where all variables live; empty: by replica")}},
      [](const PassOptions& options) {
        return checked([&] {
          return make_place({.devices = options.get_list("devices"),
                             .fallback = options.get_string("default"),
                             .variables = options.get_string("variables")});
        });
      });
  registry.add(
      {.name = "insert-copies",
       .summary = "a copy wherever a value crosses from one memory to another",
       .options = {flag_option("all", false, "between devices that share a memory too")}},
      [](const PassOptions& options) { return make_insert_copies({.all = options.get_bool("all")}); });
  registry.add(
      {.name = "order-collectives", .summary = "collectives run in one order that is known beforehand"},
      [](const PassOptions&) { return make_order_collectives(); });
  registry.add(
      {.name = "lower-collectives",
       .summary = "all-reduces become the nodes that compute them",
       .options = {text_option("ops", "auto",
                               "auto, shared_memory, reduction_to_one_device, hierarchical_copy or ring"),
                   text_option("device", "", "where reduction_to_one_device reduces; empty: replica 0's")}},
      [](const PassOptions& options) {
        return checked([&] {
          const std::string& ops = options.get_string("ops");
          const std::string& device = options.get_string("device");
          if (ops == "auto" && device.empty()) return make_lower_collectives();
          return make_lower_collectives({.ops = cross_device_ops(ops, device)});
        });
      });
}

}  // namespace

void register_strategy_passes(PassRegistry& registry) {
  static std::mutex mutex;  // of two threads that make the first strategies, one adds them
  const std::lock_guard<std::mutex> lock(mutex);
  if (registry.contains("replicate")) return;
  add_region_passes(registry);
  add_flat_passes(registry);
}

}  // namespace lockstep
