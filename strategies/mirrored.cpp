// strategies/mirrored.cpp - the recipe of MirroredStrategy, as a pipeline of passes, and the devices it stands for.
#include "lockstep/strategies/mirrored.h"

#include "lockstep/graph/passes/merge_updates.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/strategies/passes/allow_drift.h"
#include "lockstep/strategies/passes/bucket_all_reduce.h"
#include "lockstep/strategies/passes/insert_all_reduce.h"
#include "lockstep/strategies/passes/insert_copies.h"
#include "lockstep/strategies/passes/internal/device_checks.h"
#include "lockstep/strategies/passes/lower_collectives.h"
#include "lockstep/strategies/passes/mirror_variables.h"
#include "lockstep/strategies/passes/order_collectives.h"
#include "lockstep/strategies/passes/place.h"
#include "lockstep/strategies/passes/prove_sync.h"
#include "lockstep/strategies/passes/replicate.h"
#include "lockstep/strategies/passes/share_mirrored.h"

namespace lockstep {

namespace {

// The devices that num_gpus stands for.
std::optional<std::vector<std::string>> counted_devices(const MirroredOptions& options) {
  const std::optional<std::int64_t>& count = options.num_gpus;
  if (!count) return std::nullopt;
  if (options.devices.names())
    throw InvalidArgument("Must only specify one of devices and num_gpus; name the devices, or count them");
  if (*count < 0) throw InvalidArgument(str("num_gpus must be 0 or more, got ", *count));
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(*count));
  for (std::int64_t i = 0; i < *count; ++i) names.push_back(str("gpu:", i));
  if (names.empty()) names.emplace_back("cpu:0");
  return names;
}

std::vector<std::string> replica_devices(const MirroredOptions& options) {
  if (const auto counted = counted_devices(options)) return *counted;
  if (options.devices.names()) return *options.devices.names();
  std::vector<std::string> gpus;
  if (options.base.runtime) {
    for (const Device& device : options.base.runtime->devices()) {
      if (device.kind == DeviceKind::kGpu) gpus.push_back(device.to_string());
    }
  }
  return gpus.empty() ? std::vector<std::string>{"cpu:0"} : gpus;
}

// With a runtime that has the reduce device, if no runtime is given.
StrategyOptions base_options(const MirroredOptions& options) {
  StrategyOptions base = options.base;
  if (!base.runtime && !options.reduce_device.empty()) {
    std::vector<std::string> used = replica_devices(options);
    used.push_back(options.reduce_device);
    base.runtime = internal::runtime_with(used);
  }
  return base;
}

std::vector<std::string> drifting_variables(const MirroredOptions& options, std::int64_t replicas) {
  if (replicas == 1) return {};  // one copy is the variable
  return {options.may_drift.begin(), options.may_drift.end()};
}

void check_options(const MirroredOptions& options) {
  const bool is_named = options.cross_device_ops != "auto" || !options.reduce_device.empty();
  if (options.custom_cross_device_ops != nullptr && is_named)
    throw InvalidArgument(
        "custom_cross_device_ops stand in place of a name: leave cross_device_ops and reduce_device out");
  const bool sized = options.bytes_per_pack != BucketAllReduceOptions::kDefaultBytes;
  if (!options.pack && (sized || options.num_packs != 0))
    throw InvalidArgument(
        "pack is false, and bytes_per_pack or num_packs says how large packs are; leave one out");
}

}  // namespace

DeviceList::DeviceList(std::initializer_list<std::string_view> names)
    : names_(std::in_place, names.begin(), names.end()) {}

DeviceList::DeviceList(std::vector<std::string> names) : names_(std::move(names)) {}

MirroredStrategy::MirroredStrategy(MirroredOptions options, SourceSite site) try
    : Strategy(replica_devices(options), base_options(options), site), options_(std::move(options)) {
  check_options(options_);
  pipeline();  // so that a wrong option is refused here
  if (!options_.reduce_device.empty()) internal::check_device(runtime(), options_.reduce_device);
} catch (Error& error) {
  error.add_call("MirroredStrategy", site);
  throw;
}

MirroredStrategy::~MirroredStrategy() = default;

bool MirroredStrategy::may_drift(std::string_view variable) const {
  return options_.may_drift.contains(std::string(variable));
}

void MirroredStrategy::check_step(const Graph& step) const {
  Strategy::check_step(step);
  for (const std::string& name : options_.may_drift) {
    if (step.find_variable(name) != nullptr || variables().contains(name)) continue;
    throw InvalidArgument(str("may_drift names '", name,
                              "', which is no variable of this step or strategy; variables are made before ",
                              "the functions that use them"));
  }
}

CrossDeviceChoice MirroredStrategy::cross_device_choice(std::int64_t bytes) const {
  if (options_.custom_cross_device_ops != nullptr)
    return {std::string(options_.custom_cross_device_ops->name()), "it is the user's own"};
  if (options_.cross_device_ops != "auto")
    return choose_cross_device_ops(options_.cross_device_ops, worker_devices(), &runtime().topology());
  return choose_cross_device_ops(worker_devices(), bytes, &runtime().topology());
}

PassPipeline MirroredStrategy::pipeline() const {
  const bool central = parameter_devices() != worker_devices();
  const std::string home = central ? parameter_devices()[0] : "";  // for all variables; empty: by replica
  const std::vector<std::string> homes =
      central ? std::vector<std::string>(worker_devices().size(), home) : worker_devices();

  // While there is one copy of the step: nodes inserted here are cloned along with the rest.
  PassPipeline passes =
      PassRegistry::global().parse_pipeline(options_.step_passes);  // first: may declare variables
  if (const std::vector<std::string> drifting = drifting_variables(options_, num_replicas_in_sync());
      !drifting.empty())
    passes.add(make_allow_drift({.variables = drifting, .strict = false}));  // some may belong to other steps
  passes.add(make_mirror_variables({.devices = homes}));
  passes.add(make_insert_all_reduce());
  if (options_.pack)
    passes.add(
        make_bucket_all_reduce({.bytes_per_pack = options_.bytes_per_pack, .num_packs = options_.num_packs}));
  if (options_.optimize)
    passes.append(standard_passes({.attention = {.device = worker_devices()[0]},
                                   .products = {.device = worker_devices()[0]},
                                   .merge_updates = false}));

  // From here on the graph has the nodes of all replicas.
  const bool over_workers = num_replicas_in_sync() != num_local_replicas();
  passes.add(make_replicate());
  passes.add(make_place({.devices = worker_devices(), .variables = home}));
  passes.add(make_prove_sync(
      {.workers = over_workers}));  // after everything that could break it, before anything relies on it
  if (options_.share_mirrored) passes.add(make_share_mirrored());
  passes.add(make_order_collectives());  // while they are still collectives
  passes.add(make_lower_collectives({.ops = options_.cross_device_ops,
                                     .device = options_.reduce_device,
                                     .custom = options_.custom_cross_device_ops,
                                     .joins_first = workers_exchange().joins_first,
                                     .exchange = workers_exchange().device}));
  if (options_.custom_cross_device_ops != nullptr)
    passes.add(make_prove_sync());                         // do the custom ops give all replicas the same?
  if (over_workers) passes.add(make_order_collectives());  // the calls of the group that they became
  passes.add(make_insert_copies());                        // it needs to know where every value is
  // Last: all passes above look at single updates.
  if (options_.optimize) passes.add(make_merge_updates());
  return passes;
}

}  // namespace lockstep
