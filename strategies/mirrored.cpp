#include "lockstep/strategies/mirrored.h"

#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/strategies/passes/bucket_all_reduce.h"
#include "lockstep/strategies/passes/internal/memories.h"
#include "lockstep/strategies/passes/lower_collectives.h"

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
  // There are no GPU devices yet: a runtime without any gives the CPU.
  return options.devices.names().value_or(std::vector<std::string>{"cpu:0"});
}

// With a runtime that has the device to reduce on, if none is given.
StrategyOptions base_options(const MirroredOptions& options) {
  StrategyOptions base = options.base;
  if (!base.runtime && !options.reduce_device.empty()) {
    std::vector<std::string> used = replica_devices(options);
    used.push_back(options.reduce_device);
    base.runtime = internal::runtime_with(used);
  }
  return base;
}

std::string list_of(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += str(list.empty() ? "" : ",", name);
  return str("[", list, "]");
}

}  // namespace

DeviceList::DeviceList(std::initializer_list<std::string_view> names)
    : names_(std::in_place, names.begin(), names.end()) {}

DeviceList::DeviceList(std::vector<std::string> names) : names_(std::move(names)) {}

MirroredStrategy::MirroredStrategy(MirroredOptions options)
    : Strategy(replica_devices(options), base_options(options)), options_(std::move(options)) {
  pipeline();  // so that a wrong option is refused here
  if (!options_.reduce_device.empty()) internal::check_device(runtime(), options_.reduce_device);
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
  if (options_.cross_device_ops != "auto") return {options_.cross_device_ops, "the options name it"};
  return choose_cross_device_ops(worker_devices(), bytes);
}

PassPipeline MirroredStrategy::pipeline() const {
  const std::string devices = list_of(worker_devices());
  const std::vector<std::string> homes(worker_devices().size(), parameter_devices()[0]);
  const bool central = parameter_devices() != worker_devices();
  // On one replica's step, while there is one copy of it: what is inserted here is cloned along with the
  // rest. What the user wants of the step comes first: it may declare variables.
  std::string passes = options_.step_passes.empty() ? "" : options_.step_passes + ",";
  passes += str("mirror-variables(devices=", central ? list_of(homes) : devices, "),insert-all-reduce");
  const bool drifts = !options_.may_drift.empty();
  const std::string drifting =
      print_option(std::vector<std::string>(options_.may_drift.begin(), options_.may_drift.end()));
  const std::string allow = str("(allow=", drifting, ",strict=false)");
  if (drifts) passes += allow;
  const bool sized = options_.bytes_per_pack != BucketAllReduceOptions::kDefaultBytes;
  if (!options_.pack && (sized || options_.num_packs != 0))
    throw InvalidArgument(
        "pack is false, and bytes_per_pack or num_packs says how large packs are; leave one out");
  if (options_.pack) {
    passes += ",bucket-all-reduce(";
    // Both, where the user says both: the pass refuses them.
    if (options_.num_packs == 0 || sized)
      passes += str("bytes_per_pack=", options_.bytes_per_pack, options_.num_packs == 0 ? "" : ",");
    if (options_.num_packs != 0) passes += str("num_packs=", options_.num_packs);
    passes += ")";
  }
  if (options_.optimize) {
    passes +=
        ",recompute-checkpoints,identity-removal,constant-folding,common-subexpression-elimination,"
        "dead-node-elimination,fuse-elementwise";
  }
  passes += str(",replicate,place(devices=", devices, central ? ",variables=" + homes[0] : "", ")");
  // The proof comes before anything relies on it, and after everything that could break it.
  const std::string proof = drifts ? "prove-sync" + allow : "prove-sync";
  passes += "," + proof;
  if (options_.share_mirrored) passes += ",share-mirrored";
  // Ordered while they are still collectives; then each becomes what its devices need, and copies where
  // memories differ.
  passes += ",order-collectives";
  const PassRegistry& registry = PassRegistry::global();
  if (const CrossDeviceOpsPtr& own = options_.custom_cross_device_ops) {
    if (options_.cross_device_ops != "auto" || !options_.reduce_device.empty())
      throw InvalidArgument(
          "custom_cross_device_ops stand in place of a name: leave cross_device_ops and reduce_device out");
    PassPipeline pipeline = registry.parse_pipeline(passes);
    pipeline.add(make_lower_collectives({.ops = own}));
    // Do the user's ops give all replicas the same? Those that come along do.
    return std::move(pipeline.append(registry.parse_pipeline(proof + ",insert-copies")));
  }
  passes += str(",lower-collectives(ops=", options_.cross_device_ops);
  if (!options_.reduce_device.empty()) passes += str(",device=", options_.reduce_device);
  return registry.parse_pipeline(passes + "),insert-copies");
}

}  // namespace lockstep
