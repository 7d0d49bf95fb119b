// strategies/strategy_registry.cpp - strategies by name, so that they can be named in text.
#include "lockstep/strategies/strategy_registry.h"

#include <utility>

#include "lockstep/graph/transform/option_table.h"
#include "lockstep/strategies/central_storage.h"
#include "lockstep/strategies/compat.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/one_device.h"
#include "lockstep/strategies/passes/enter_replicas.h"
#include "lockstep/strategies/passes/register.h"

namespace lockstep {

namespace {

OptionTable<MirroredOptions> mirrored_table(std::string name, std::string summary) {
  const auto gpus = [](std::string option, std::string what) {
    return OptionSpec{std::move(option), OptionType::kInt, std::int64_t{-1}, std::move(what)};
  };
  return OptionTable<MirroredOptions>(std::move(name), std::move(summary))
      .option(devices_option(),
              [](MirroredOptions& into, const PassOptions& given) {
                if (given.is_given("devices")) into.devices = given.get_list("devices");
              })
      .option("cross_device_ops", &MirroredOptions::cross_device_ops,
              "auto, shared_memory, reduction_to_one_device, hierarchical_copy, ring or nccl")
      .option("reduce_device", &MirroredOptions::reduce_device,
              "where reduction_to_one_device reduces; empty: replica 0's device")
      .option(gpus("num_gpus",
                   "in place of devices: so many GPUs, gpu:0 and on; 0: cpu:0; not given: by devices"),
              [](MirroredOptions& into, const PassOptions& given) {
                if (given.is_given("num_gpus")) into.num_gpus = given.get_int("num_gpus");
              })
      .option(gpus("num_gpus_per_worker", "another name for num_gpus"),
              [](MirroredOptions& into, const PassOptions& given) {
                if (given.is_given("num_gpus_per_worker"))
                  into = compat::mirrored_options(given.get_int("num_gpus_per_worker"), std::move(into));
              })
      .option("bytes_per_pack", &MirroredOptions::bytes_per_pack,
              "gradients are packed into buckets of about so many bytes; 0: one bucket")
      .option("num_packs", &MirroredOptions::num_packs,
              "above 0: so many buckets of about equal size instead")
      .option("pack", &MirroredOptions::pack, "false: all-reduces are not packed")
      .option("share_mirrored", &MirroredOptions::share_mirrored,
              "compute and store once what is equal on all replicas of one memory")
      .option({"may_drift", OptionType::kList, std::vector<std::string>(),
               "variables whose copies may drift apart"},
              [](MirroredOptions& into, const PassOptions& given) {
                const std::vector<std::string>& names = given.get_list("may_drift");
                into.may_drift = {names.begin(), names.end()};
              })
      .option("step_passes", &MirroredOptions::step_passes,
              "passes on one replica's step before it is distributed")
      .option("optimize", &MirroredOptions::optimize,
              "run the general passes too; off for graphs that are to be looked at");
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

// The line of an error is that of the call that gives the text.
void register_strategies(StrategyRegistry& registry) {
  const auto mirrored =
      mirrored_table("mirrored", "one replica per device, variables mirrored, gradients all-reduced");
  registry.add(mirrored.info(), [mirrored](const PassOptions& given, const StrategyOptions& base) {
    MirroredOptions options = mirrored.read(given);
    options.base = base;
    return std::make_unique<MirroredStrategy>(std::move(options), SourceSite());
  });
  const auto central =
      mirrored_table("central-storage", "variables in one place, replicas that compute on their slices");
  StrategyInfo central_info = central.info();
  central_info.options.push_back(
      {"parameter_device", OptionType::kString, std::string("cpu:0"), "where variables live"});
  registry.add(std::move(central_info), [central](const PassOptions& given, const StrategyOptions& base) {
    MirroredOptions options = central.read(given);
    options.base = base;
    return std::make_unique<CentralStorageStrategy>(std::move(options), given.get_string("parameter_device"),
                                                    SourceSite());
  });
  registry.add({.name = "one-device",
                .summary = "everything on one device",
                .options = {{"device", OptionType::kString, std::string("cpu:0"), "which"}}},
               [](const PassOptions& given, const StrategyOptions& base) {
                 return std::make_unique<OneDeviceStrategy>(given.get_string("device"), base, SourceSite());
               });
}

}  // namespace lockstep
