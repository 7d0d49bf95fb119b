// graph/transform/pass_registry.h - passes by name, so that a pipeline can be written as text.
//
//   PassRegistry::global().add({.name = "remove-double-relu", .summary = "relu(relu(x)) is relu(x)"},
//                              [](const PassOptions&) { return std::make_unique<RemoveDoubleRelu>(); });
//   PassPipeline pipeline = PassRegistry::global().parse_pipeline("remove-double-relu,constant-folding(max_bytes=4KiB)");
//
// graph/transform/pass_options.h describes the text of options, and the errors that make() and
// parse_pipeline() throw. Thread safety: all methods may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/pipeline.h"

namespace lockstep {

using PassInfo = FactoryInfo;
// Makes the pass; throws InvalidArgument (BadOptionValue) for a value it refuses.
using PassFactory = std::function<std::unique_ptr<Pass>(const PassOptions&)>;

class LOCKSTEP_API PassRegistry {
 public:
  // The registry that tools use; it contains the general passes.
  static PassRegistry& global();

  PassRegistry();  // an empty one
  ~PassRegistry();
  PassRegistry(const PassRegistry&) = delete;
  PassRegistry& operator=(const PassRegistry&) = delete;

  // Throws InvalidArgument for a taken or malformed name, two options of one name, or a default of the wrong
  // type.
  void add(PassInfo info, PassFactory factory);
  bool contains(std::string_view name) const;
  std::vector<PassInfo> passes() const;  // by name

  // One pass from "name" or "name(option=value,...)".
  std::unique_ptr<Pass> make(std::string_view text) const;
  // Any number, separated by commas.
  PassPipeline parse_pipeline(std::string_view text) const;

 private:
  std::unique_ptr<Pass> make(const PassText& text) const;

  struct State;
  std::unique_ptr<State> state_;
};

// Called once by PassRegistry::global(); adds the passes of graph/passes to any registry.
LOCKSTEP_API void register_general_passes(PassRegistry& registry);

}  // namespace lockstep
