// strategies/trace/function.h - functions of Values as functions of flat lists, and the handles that
// strategies return.
//
// Strategy::function() returns a Function<Out>. The rest is machinery: it finds out what a function takes,
// calls it with a list, and remembers the nest that it returned. Thread safety: a Function may be called from
// any thread.
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

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"
#include "lockstep/core/source_site.h"
#include "lockstep/core/tensor.h"
#include "lockstep/strategies/trace/nest.h"
#include "lockstep/strategies/trace/step.h"
#include "lockstep/strategies/trace/values.h"

namespace lockstep {

namespace internal {

template <class T>
concept FunctionArgument = nest::kLeavesAre<T, PerReplica<Tensor>>;

// The leaves of an argument, and the line of the call.
struct CallArgument {
  template <FunctionArgument A>
  CallArgument(const A& argument,
               SourceSite at = SourceSite::current())  // NOLINT(google-explicit-constructor)
      : leaves(nest::leaves<PerReplica<Tensor>>(argument)), site(at) {}

  std::vector<PerReplica<Tensor>> leaves;
  SourceSite site;
};

}  // namespace internal

// A function that a strategy has distributed: call it like the one it was made from.
template <class Out>
class Function : public Step {
 public:
  Function() = default;
  Function(Step step, std::function<Out(std::span<const PerReplica<Tensor>>)> rebuild)
      : Step(std::move(step)), rebuild_(std::move(rebuild)) {}

  // One argument per input: PerReplica<Tensor>, or a Tensor that all replicas get. If the function takes
  // nests, nests of these.
  Out operator()(SourceSite site = SourceSite::current()) const { return call_with(site); }
  template <internal::FunctionArgument A>
  Out operator()(const A& a, SourceSite site = SourceSite::current()) const {
    return call_with(site, a);
  }
  template <internal::FunctionArgument A, internal::FunctionArgument B>
  Out operator()(const A& a, const B& b, SourceSite site = SourceSite::current()) const {
    return call_with(site, a, b);
  }
  template <internal::FunctionArgument A, internal::FunctionArgument B, internal::FunctionArgument C>
  Out operator()(const A& a, const B& b, const C& c, SourceSite site = SourceSite::current()) const {
    return call_with(site, a, b, c);
  }
  template <internal::FunctionArgument B, internal::FunctionArgument C, internal::FunctionArgument D,
            internal::FunctionArgument... More>
  Out operator()(const internal::CallArgument& a, const B& b, const C& c, const D& d,
                 const More&... more) const {
    return call_with(a.site, a.leaves, b, c, d, more...);
  }
  Out call(std::span<const PerReplica<Tensor>> arguments, const RunOptions& options = {},
           SourceSite site = SourceSite::current()) const {
    return call_n(1, arguments, options, site);
  }
  // `steps` times on the same arguments: Step::run_n.
  Out call_n(std::uint64_t steps, std::span<const PerReplica<Tensor>> arguments,
             const RunOptions& options = {}, SourceSite site = SourceSite::current()) const {
    if constexpr (std::is_void_v<Out>) {
      run_n(steps, arguments, options, site);
    } else {  // build the structure before the run: after a commit nothing may fail
      std::optional<Out> out;
      run_n(
          steps, arguments, options,
          [&](std::span<const PerReplica<Tensor>> results) { out.emplace(rebuild_(results)); }, site);
      return std::move(*out);
    }
  }

 private:
  template <class... Arguments>
  Out call_with(const SourceSite& site, const Arguments&... arguments) const {
    std::vector<PerReplica<Tensor>> list;
    [[maybe_unused]] const auto add = [&](const auto& leaf) { list.push_back(PerReplica<Tensor>(leaf)); };
    (nest::flatten(arguments, add), ...);
    return call(list, {}, site);
  }

  std::function<Out(std::span<const PerReplica<Tensor>>)> rebuild_;
};

namespace internal {

[[noreturn]] LOCKSTEP_API void wrong_arity(std::size_t takes, std::size_t got, const SourceSite& site);

// Calls fn with the items of the list as its arguments. The parameter types say how many items each takes:
// one for a leaf, as many as it has leaves for a nest of fixed size, all for a single parameter that is a
// list.
template <class Argument, class F, class R, class... As>
R apply_list(const F& fn, std::span<const Argument> list, R (*)(As...), const SourceSite& site) {
  constexpr bool kOne = sizeof...(As) == 1;
  if constexpr (!std::is_invocable_v<const F&, As...>) {
    wrong_arity(0, list.size(), site);  // signature_of() has already refused it
  } else if constexpr (kOne && (std::is_convertible_v<std::span<const Argument>, As> && ...)) {
    return fn(list);
  } else if constexpr (kOne && (std::is_same_v<std::vector<Argument>, std::remove_cvref_t<As>> && ...)) {
    return fn(std::vector<Argument>(list.begin(), list.end()));
  } else {
    constexpr bool kKnown = ((nest::kFixedLeaves<As> >= 0) && ...);
    static_assert(kKnown,
                  "function() cannot tell how many inputs a std::vector or std::map among several parameters "
                  "takes: make it a std::array, a std::tuple or a struct, or the only parameter");
    constexpr bool kFits = std::is_invocable_v<const F&, const nest::Rebound<As, Argument>&...>;
    static_assert(
        kFits || !kKnown,
        "the parameters of a function given to cross_function() are PerReplica<Value>, one for each "
        "input, those of one given to function() or run() are Value, or nests of these");
    if constexpr (kKnown && kFits) {
      constexpr std::size_t kTakes =
          (std::size_t{0} + ... + static_cast<std::size_t>(nest::kFixedLeaves<As>));
      if (list.size() != kTakes) wrong_arity(kTakes, list.size(), site);
      [[maybe_unused]] std::size_t next = 0;
      [[maybe_unused]] const auto take = [&](const auto&) { return list[next++]; };
      // Braces guarantee the order of evaluation.
      const std::tuple<nest::Rebound<As, Argument>...> parts{
          nest::rebuild<Argument>(std::remove_cvref_t<As>(), take)...};
      return std::apply(fn, parts);
    } else {
      wrong_arity(0, list.size(), site);
    }
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

// Turns fn, which takes nests, into a function of one list of their leaves; the arguments give the structure.
template <class Leaf, class F, class... Arguments>
auto function_of_leaves(const F& fn, const Arguments&... arguments) {
  using R = typename decltype(signature_of<F>())::Result;
  return [&](std::span<const Leaf> list) -> R {
    [[maybe_unused]] std::size_t next = 0;
    [[maybe_unused]] const auto take = [&](const auto&) { return list[next++]; };
    const std::tuple<nest::Rebound<Arguments, Leaf>...> parts{nest::rebuild<Leaf>(arguments, take)...};
    return std::apply(fn, parts);
  };
}

// Traces fn into flat values and remembers the structure of what it returned.
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
    return {given_leaves<Leaf>(*result, site), result};
  }
}
template <class To, class R, class List>
auto rebuilt(const std::shared_ptr<const void>& structure, const List& flat) {
  if constexpr (!std::is_void_v<R>) {
    return nest::refill<To>(*static_cast<const R*>(structure.get()), flat);
  }
}

// Makes a Function from fn: trace(inputs, function of flat values, site) returns the Step.
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

// For Strategy::update().
template <class Copy, class F, std::size_t... kIndex>
Value call_update(const Copy& copy, const F& fn, std::span<const Value> values, const SourceSite& site,
                  std::index_sequence<kIndex...>) {
  constexpr bool kFits = std::is_invocable_v<const F&, const Copy&, decltype(values[kIndex])...>;
  static_assert(kFits, "the function of update() takes the variable and one Value for each argument");
  if constexpr (kFits) {
    if constexpr (std::is_void_v<std::invoke_result_t<const F&, const Copy&, decltype(values[kIndex])...>>) {
      fn(copy, values[kIndex]...);
      return copy.read(site);
    } else {
      return given_leaves<Value>(fn(copy, values[kIndex]...), site).at(0);
    }
  } else {
    return {};
  }
}

// The inputs of a function that is called with these arguments. Throws InvalidArgument if the slots of one
// argument differ in kind.
LOCKSTEP_API std::vector<InputSpec> specs_of(std::span<const PerReplica<Tensor>> arguments,
                                             const SourceSite& site);

}  // namespace internal

}  // namespace lockstep
