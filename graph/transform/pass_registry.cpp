// graph/transform/pass_registry.cpp - passes by name, so that a pipeline can be written as text.
#include "lockstep/graph/transform/pass_registry.h"

#include <utility>

#include "lockstep/graph/transform/named_factories.h"

namespace lockstep {

struct PassRegistry::State {
  NamedFactories<Pass, UnknownPass> factories{"pass"};
};

PassRegistry::PassRegistry() : state_(std::make_unique<State>()) {}
PassRegistry::~PassRegistry() = default;

PassRegistry& PassRegistry::global() {
  static PassRegistry* const registry = [] {
    static PassRegistry instance;
    register_general_passes(instance);
    return &instance;
  }();
  return *registry;
}

void PassRegistry::add(PassInfo info, PassFactory factory) {
  state_->factories.add(std::move(info), std::move(factory));
}

bool PassRegistry::contains(std::string_view name) const { return state_->factories.contains(name); }

std::vector<PassInfo> PassRegistry::passes() const { return state_->factories.infos(); }

std::unique_ptr<Pass> PassRegistry::make(std::string_view text) const {
  return make(state_->factories.read(text));
}

PassPipeline PassRegistry::parse_pipeline(std::string_view text) const {
  PassPipeline pipeline;
  for (const PassText& pass : parse_passes(text)) pipeline.add(make(pass));
  return pipeline;
}

std::unique_ptr<Pass> PassRegistry::make(const PassText& text) const {
  if (!contains(text.name) && !contains("replicate")) {  // neither are other passes of strategies
    std::vector<std::string> known;
    for (const PassInfo& info : passes()) known.push_back(info.name);
    throw UnknownPass(
        str(internal::unknown_name("pass", text.name, std::move(known)),
            " (passes of strategies are registered by register_strategy_passes(), and when the first "
            "Strategy is made)"));
  }
  std::unique_ptr<Pass> pass = state_->factories.make(text);
  std::vector<std::pair<std::string, OptionValue>> given;
  for (const OptionText& option : text.options) {
    if (option.is_list) {
      given.emplace_back(option.name, option.values);
    } else {
      given.emplace_back(option.name, option.values.front());
    }
  }
  pass->text_ = print_pass(text.name, given);
  return pass;
}

}  // namespace lockstep
