#include "lockstep/strategies/passes/insert_copies.h"
#include "lockstep/strategies/passes/internal/flat_passes.h"
#include "lockstep/strategies/passes/lower_collectives.h"
#include "lockstep/strategies/passes/order_collectives.h"
#include "lockstep/strategies/passes/place.h"
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

OptionSpec text_option(std::string name, std::string fallback, std::string summary) {
  return {.name = std::move(name),
          .type = OptionType::kString,
          .fallback = std::move(fallback),
          .summary = std::move(summary)};
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

}  // namespace

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

}  // namespace lockstep::internal
