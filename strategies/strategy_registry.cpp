#include "lockstep/strategies/strategy_registry.h"

#include <utility>

#include "lockstep/strategies/central_storage.h"
#include "lockstep/strategies/compat.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/one_device.h"
#include "lockstep/strategies/passes/enter_replicas.h"
#include "lockstep/strategies/passes/register.h"

namespace lockstep {

namespace {

std::vector<OptionSpec> mirrored_specs() {
  const MirroredOptions defaults;
  return {devices_option(),
          {.name = "cross_device_ops",
           .type = OptionType::kString,
           .fallback = defaults.cross_device_ops,
           .summary = "auto, shared_memory, reduction_to_one_device, hierarchical_copy or ring"},
          {.name = "reduce_device",
           .type = OptionType::kString,
           .fallback = defaults.reduce_device,
           .summary = "where reduction_to_one_device reduces; empty: replica 0's device"},
          {.name = "num_gpus",
           .type = OptionType::kInt,
           .fallback = std::int64_t{-1},
           .summary = "in place of devices: so many GPUs, gpu:0 and on; 0: cpu:0; not given: by devices"},
          {.name = "num_gpus_per_worker",
           .type = OptionType::kInt,
           .fallback = std::int64_t{-1},
           .summary = "another name for num_gpus"},
          {.name = "bytes_per_pack",
           .type = OptionType::kInt,
           .fallback = defaults.bytes_per_pack,
           .summary = "gradients are packed into buckets of about so many bytes; 0: one bucket"},
          {.name = "num_packs",
           .type = OptionType::kInt,
           .fallback = defaults.num_packs,
           .summary = "above 0: so many buckets of about equal size instead"},
          {.name = "pack",
           .type = OptionType::kBool,
           .fallback = defaults.pack,
           .summary = "false: all-reduces are not packed"},
          {.name = "share_mirrored",
           .type = OptionType::kBool,
           .fallback = defaults.share_mirrored,
           .summary = "compute and store once what is equal on all replicas of one memory"},
          {.name = "may_drift",
           .type = OptionType::kList,
           .fallback = std::vector<std::string>(),
           .summary = "variables whose copies may drift apart"},
          {.name = "step_passes",
           .type = OptionType::kString,
           .fallback = defaults.step_passes,
           .summary = "passes on one replica's step before it is distributed"},
          {.name = "optimize",
           .type = OptionType::kBool,
           .fallback = defaults.optimize,
           .summary = "run the general passes too; off for graphs that are to be looked at"}};
}

MirroredOptions mirrored_options(const PassOptions& given, const StrategyOptions& base) {
  MirroredOptions options;
  if (given.is_given("devices")) options.devices = given.get_list("devices");
  if (given.is_given("num_gpus")) options.num_gpus = given.get_int("num_gpus");
  if (given.is_given("num_gpus_per_worker"))
    options = compat::mirrored_options(given.get_int("num_gpus_per_worker"), std::move(options));
  options.cross_device_ops = given.get_string("cross_device_ops");
  options.reduce_device = given.get_string("reduce_device");
  options.bytes_per_pack = given.get_int("bytes_per_pack");
  options.num_packs = given.get_int("num_packs");
  options.pack = given.get_bool("pack");
  options.share_mirrored = given.get_bool("share_mirrored");
  const std::vector<std::string>& drifting = given.get_list("may_drift");
  options.may_drift = {drifting.begin(), drifting.end()};
  options.step_passes = given.get_string("step_passes");
  options.optimize = given.get_bool("optimize");
  options.base = base;
  return options;
}

}  // namespace

StrategyRegistry::StrategyRegistry() = default;
StrategyRegistry::~StrategyRegistry() = default;

StrategyRegistry& StrategyRegistry::global() {
  static StrategyRegistry* const registry = [] {
    static StrategyRegistry instance;
    register_strategies(instance);
    return &instance;
  }();
  return *registry;
}

void StrategyRegistry::add(StrategyInfo info, StrategyFactory factory) {
  factories_.add(std::move(info), std::move(factory));
}

bool StrategyRegistry::contains(std::string_view name) const { return factories_.contains(name); }

std::vector<StrategyInfo> StrategyRegistry::strategies() const { return factories_.infos(); }

std::unique_ptr<Strategy> StrategyRegistry::make(std::string_view text, const StrategyOptions& base) const {
  return factories_.make(factories_.read(text), base);
}

PassPipeline StrategyRegistry::parse_pipeline(std::string_view text, const PassRegistry& passes) const {
  register_strategy_passes();
  PassPipeline pipeline;
  const std::vector<PassText> parts = parse_passes(text);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t end = i + 1 < parts.size() ? parts[i + 1].position : text.size();
    std::string_view part = text.substr(parts[i].position, end - parts[i].position);
    if (i + 1 < parts.size()) part = part.substr(0, part.rfind(','));
    if (passes.contains(parts[i].name) || !contains(parts[i].name)) {
      pipeline.add(passes.make(part));
      continue;
    }
    const std::unique_ptr<Strategy> strategy = make(part);
    pipeline.add(make_enter_replicas({.replicas = strategy->num_replicas_in_sync()}));
    pipeline.append(strategy->pipeline());
  }
  return pipeline;
}

OptionSpec devices_option() {
  return {.name = "devices",
          .type = OptionType::kList,
          .fallback = std::vector<std::string>(),
          .summary = "one for each replica; not given: every GPU, else the CPU"};
}

void register_strategies(StrategyRegistry& registry) {
  registry.add({.name = "mirrored",
                .summary = "one replica per device, variables mirrored, gradients all-reduced",
                .options = mirrored_specs()},
               [](const PassOptions& given, const StrategyOptions& base) {
                 return std::make_unique<MirroredStrategy>(mirrored_options(given, base));
               });
  std::vector<OptionSpec> central = mirrored_specs();
  central.push_back({.name = "parameter_device",
                     .type = OptionType::kString,
                     .fallback = std::string("cpu:0"),
                     .summary = "where variables live"});
  registry.add({.name = "central-storage",
                .summary = "variables in one place, replicas that compute on their slices",
                .options = std::move(central)},
               [](const PassOptions& given, const StrategyOptions& base) {
                 return std::make_unique<CentralStorageStrategy>(mirrored_options(given, base),
                                                                 given.get_string("parameter_device"));
               });
  registry.add({.name = "one-device",
                .summary = "everything on one device",
                .options = {{.name = "device",
                             .type = OptionType::kString,
                             .fallback = std::string("cpu:0"),
                             .summary = "which"}}},
               [](const PassOptions& given, const StrategyOptions& base) {
                 return std::make_unique<OneDeviceStrategy>(given.get_string("device"), base);
               });
}

}  // namespace lockstep
