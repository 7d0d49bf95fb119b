#include "lockstep/strategies/make_strategy.h"

#include "lockstep/graph/pass_options.h"
#include "lockstep/strategies/central_storage.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/one_device.h"

namespace lockstep {

namespace {

std::vector<OptionSpec> mirrored_specs() {
  const MirroredOptions defaults;
  return {{.name = "devices", .type = OptionType::kList, .fallback = std::vector<std::string>()},
          {.name = "cross_device_ops", .type = OptionType::kString, .fallback = defaults.cross_device_ops},
          {.name = "bytes_per_pack", .type = OptionType::kInt, .fallback = defaults.bytes_per_pack},
          {.name = "num_packs", .type = OptionType::kInt, .fallback = defaults.num_packs},
          {.name = "share_mirrored", .type = OptionType::kBool, .fallback = defaults.share_mirrored},
          {.name = "step_passes", .type = OptionType::kString, .fallback = defaults.step_passes},
          {.name = "optimize", .type = OptionType::kBool, .fallback = defaults.optimize}};
}

MirroredOptions mirrored_options(const PassOptions& given) {
  MirroredOptions options;
  if (!given.get_list("devices").empty()) options.devices = given.get_list("devices");
  options.cross_device_ops = given.get_string("cross_device_ops");
  options.bytes_per_pack = given.get_int("bytes_per_pack");
  options.num_packs = given.get_int("num_packs");
  options.share_mirrored = given.get_bool("share_mirrored");
  options.step_passes = given.get_string("step_passes");
  options.optimize = given.get_bool("optimize");
  return options;
}

}  // namespace

std::vector<std::string> strategy_names() { return {"central-storage", "mirrored", "one-device"}; }

std::unique_ptr<Strategy> make_strategy(std::string_view text) {
  const std::vector<PassText> parts = parse_passes(text);
  if (parts.size() != 1) {
    throw PipelineSyntaxError(parts.size() < 2 ? 0 : parts[1].position,
                              str("expected one strategy, got ", parts.size(), " in '", text, "'"));
  }
  const PassText& part = parts[0];
  if (part.name == "mirrored")
    return std::make_unique<MirroredStrategy>(mirrored_options(resolve_options(part, mirrored_specs())));
  if (part.name == "central-storage") {
    std::vector<OptionSpec> specs = mirrored_specs();
    specs.push_back(
        {.name = "parameter_device", .type = OptionType::kString, .fallback = std::string("cpu:0")});
    const PassOptions options = resolve_options(part, specs);
    return std::make_unique<CentralStorageStrategy>(mirrored_options(options),
                                                    options.get_string("parameter_device"));
  }
  if (part.name == "one-device") {
    const PassOptions options = resolve_options(
        part, {{.name = "device", .type = OptionType::kString, .fallback = std::string("cpu:0")}});
    return std::make_unique<OneDeviceStrategy>(options.get_string("device"));
  }
  throw NotFound(
      str("no strategy is called '", part.name, "': there are central-storage, mirrored and one-device"));
}

}  // namespace lockstep
