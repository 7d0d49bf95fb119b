// strategies/trace/function.h - functions of Values as functions of flat lists, and what a strategy makes of
// them.
//
// Function<Out> is what Strategy::function() gives. The rest is machinery: it finds out what a function
// takes, calls it with a list, and remembers the nest that it gave. Thread safety: a Function may be called
// from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/core/tensor.h"
#include "lockstep/strategies/trace/nest.h"
#include "lockstep/strategies/trace/step.h"
#include "lockstep/strategies/trace/values.h"

namespace lockstep {

// A function that a strategy has distributed: call it like the one it was made from.
template <class Out>
class Function : public Step {
 public:
  Function() = default;
  Function(Step step, std::function<Out(std::span<const PerReplica<Tensor>>)> rebuild)
      : Step(std::move(step)), rebuild_(std::move(rebuild)) {}

  // One argument per input: PerReplica<Tensor>, or a Tensor that all replicas are given.
  template <class... Arguments>
  requires(std::is_convertible_v<const Arguments&, PerReplica<Tensor>>&&...) Out operator()(
      const Arguments&... arguments) const {
    const std::vector<PerReplica<Tensor>> list{PerReplica<Tensor>(arguments)...};
    return call(list);
  }
  Out call(std::span<const PerReplica<Tensor>> arguments, const RunOptions& options = {}) const {
    return call_n(1, arguments, options);
  }
  // `steps` times on the same arguments: Step::run_n.
  Out call_n(std::uint64_t steps, std::span<const PerReplica<Tensor>> arguments,
             const RunOptions& options = {}) const {
    if constexpr (std::is_void_v<Out>) {
      run_n(steps, arguments, options);
    } else {  // into their structure before they are computed: a step that has committed fails no more
      std::optional<Out> out;
      run_n(steps, arguments, options,
            [&](std::span<const PerReplica<Tensor>> results) { out.emplace(rebuild_(results)); });
      return std::move(*out);
    }
  }

 private:
  std::function<Out(std::span<const PerReplica<Tensor>>)> rebuild_;
};

namespace internal {

[[noreturn]] LOCKSTEP_API void wrong_arity(std::size_t takes, std::size_t got, const SourceSite& site);

// Calls fn with the items of the list as its arguments, whose types say how many it takes.
template <class Argument, class F, class R, class... As>
R apply_list(const F& fn, std::span<const Argument> list, R (*)(As...), const SourceSite& site) {
  if constexpr (sizeof...(As) == 1 && (std::is_convertible_v<std::span<const Argument>, As> && ...)) {
    return fn(list);
  } else {
    if (list.size() != sizeof...(As)) wrong_arity(sizeof...(As), list.size(), site);
    return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) { return fn(list[kIndex]...); }
    (std::index_sequence_for<As...>());
  }
}
template <class R, class... As>
struct Signature {
  using Pointer = R (*)(As...);
  using Result = R;
};
template <class R, class... As>
Signature<R, As...> signature_of_call(R (*)(As...));
template <class R, class C, class... As>
Signature<R, As...> signature_of_call(R (C::*)(As...) const);
template <class F>
inline constexpr bool kHasOneCall = requires {
  &F::operator();
};
template <class F>
inline constexpr bool kCallIsConst = requires {
  signature_of_call(&F::operator());
};
template <class F>
auto signature_of() {
  if constexpr (std::is_pointer_v<F>) {
    return decltype(signature_of_call(std::declval<F>()))();
  } else {
    static_assert(
        kHasOneCall<F>,
        "a function of a step names the types of its parameters: write [](Value x), not [](auto x)");
    static_assert(
        kCallIsConst<F> || !kHasOneCall<F>,
        "a function of a step is not mutable: capture by reference what it changes while it is traced");
    if constexpr (kCallIsConst<F>) {
      return decltype(signature_of_call(&F::operator()))();
    } else {
      return Signature<void>();
    }
  }
}

// Traces fn into flat values and remembers the structure of what it gave.
template <class Leaf, class F>
std::pair<std::vector<Leaf>, std::shared_ptr<const void>> flat_call(const F& fn,
                                                                    std::span<const Leaf> arguments,
                                                                    const SourceSite& site) {
  using Sig = decltype(signature_of<F>());
  using R = typename Sig::Result;
  if constexpr (std::is_void_v<R>) {
    apply_list<Leaf>(fn, arguments, typename Sig::Pointer(), site);
    return {};
  } else {
    auto result = std::make_shared<const R>(apply_list<Leaf>(fn, arguments, typename Sig::Pointer(), site));
    return {nest::leaves<Leaf>(*result), result};
  }
}
template <class To, class R, class List>
auto rebuilt(const std::shared_ptr<const void>& structure, const List& flat) {
  if constexpr (!std::is_void_v<R>) {
    return nest::refill<To>(*static_cast<const R*>(structure.get()), flat);
  }
}

// A Function of what `trace` makes of fn: trace(inputs, function of flat values, site) gives the Step.
template <class Leaf, class F, class Trace>
auto make_function(std::vector<InputSpec> inputs, const F& fn, SourceSite site, const Trace& trace) {
  using R = typename decltype(signature_of<F>())::Result;
  using Out = nest::Rebound<R, PerReplica<Tensor>>;
  std::shared_ptr<const void> structure;
  Step step = trace(
      std::move(inputs),
      [&](std::span<const Leaf> values) {
        auto [flat, shape] = flat_call<Leaf>(fn, values, site);
        structure = std::move(shape);
        return std::move(flat);
      },
      site);
  return Function<Out>(std::move(step), [structure](std::span<const PerReplica<Tensor>> results) {
    return rebuilt<PerReplica<Tensor>, R>(structure, results);
  });
}

// What a function that is called with these arguments takes. Throws InvalidArgument if the slots of one
// differ in kind.
LOCKSTEP_API std::vector<InputSpec> specs_of(std::span<const PerReplica<Tensor>> arguments,
                                             const SourceSite& site);

}  // namespace internal

}  // namespace lockstep
