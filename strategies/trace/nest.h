// strategies/trace/nest.h - the parameters and results of step functions: values in any nest of standard
// containers.
//
// A nest is a leaf, a std::vector, std::array, std::map<std::string, ...>, std::pair or std::tuple of nests,
// or your own struct that is a template over its leaves and lists its members:
//
//   template <class T>
//   struct Metrics {
//     T loss, accuracy;
//     auto fields() { return std::tie(loss, accuracy); }
//     auto fields() const { return std::tie(loss, accuracy); }
//   };
//
// A function that returns Metrics<Value> then becomes one that returns Metrics<PerReplica<Tensor>>.
//   nest::flatten(n, visit)      calls visit(leaf) for every leaf, in order
//   nest::rebuild<To>(n, make)   the same structure with make(leaf), a To, in place of each leaf
//   nest::leaves<To>(n)          all leaves, each as a To, in order
//   nest::refill<To>(n, list)    the same structure with the elements of the list, in order, in place of the leaves
//   nest::kLeavesAre<N, To>      whether every leaf of N converts to To
//   nest::kHolds<N, X>           whether an X is N, or part of it
//   nest::kFixedLeaves<N>        how many leaves an N has, whatever it holds; -1 for vectors and maps
//
// Thread safety: functions of their arguments.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/source_site.h"

namespace lockstep::nest {

template <class N>
concept HasFields = requires(const N& n) {
  n.fields();
};

// The type of a nest with other leaves.
template <class N, class To>
struct Rebind {
  using Type = To;  // a leaf
};
template <class N, class To>
struct Rebind<std::vector<N>, To> {
  using Type = std::vector<typename Rebind<N, To>::Type>;
};
template <class N, std::size_t kSize, class To>
struct Rebind<std::array<N, kSize>, To> {
  using Type = std::array<typename Rebind<N, To>::Type, kSize>;
};
template <class N, class To>
struct Rebind<std::map<std::string, N>, To> {
  using Type = std::map<std::string, typename Rebind<N, To>::Type>;
};
template <class A, class B, class To>
struct Rebind<std::pair<A, B>, To> {
  using Type = std::pair<typename Rebind<A, To>::Type, typename Rebind<B, To>::Type>;
};
template <class... Ns, class To>
struct Rebind<std::tuple<Ns...>, To> {
  using Type = std::tuple<typename Rebind<Ns, To>::Type...>;
};
template <template <class> class S, class Leaf, class To>
requires HasFields<S<Leaf>>
struct Rebind<S<Leaf>, To> {
  using Type = S<typename Rebind<Leaf, To>::Type>;
};
template <class To>
struct Rebind<void, To> {
  using Type = void;
};
template <class N, class To>
using Rebound = typename Rebind<std::remove_cvref_t<N>, To>::Type;

// What the type of a nest says about its leaves.
template <class N>
struct Leaves {  // of a leaf
  template <class To>
  static constexpr bool kAre = std::is_convertible_v<const N&, To>;
  template <class X>
  static constexpr bool kHolds = std::is_same_v<N, X>;
  static constexpr int kCount = 1;
};
template <class... Ns>
struct LeavesOfAll {
  template <class To>
  static constexpr bool kAre = (Leaves<Ns>::template kAre<To> && ...);
  template <class X>
  static constexpr bool kHolds = ((std::is_same_v<Ns, X> || Leaves<Ns>::template kHolds<X>) || ...);
  static constexpr int kCount = ((Leaves<Ns>::kCount < 0) || ...) ? -1 : (0 + ... + Leaves<Ns>::kCount);
};
template <class N>
struct LeavesOfMany : LeavesOfAll<N> {
  static constexpr int kCount = -1;
};
template <class N>
struct Leaves<std::vector<N>> : LeavesOfMany<N> {};
template <class N>
struct Leaves<std::map<std::string, N>> : LeavesOfMany<N> {};
template <class N, std::size_t kSize>
struct Leaves<std::array<N, kSize>> : LeavesOfAll<N> {
  static constexpr int kCount = Leaves<N>::kCount < 0 ? -1 : static_cast<int>(kSize) * Leaves<N>::kCount;
};
template <class A, class B>
struct Leaves<std::pair<A, B>> : LeavesOfAll<A, B> {};
template <class... Ns>
struct Leaves<std::tuple<Ns...>> : LeavesOfAll<Ns...> {};
template <class... Fields>
LeavesOfAll<std::remove_cvref_t<Fields>...> leaves_of_fields(std::tuple<Fields...>);
template <class N>
requires HasFields<N>
struct Leaves<N> : decltype(leaves_of_fields(std::declval<const N&>().fields())) {
};
template <class N, class To>
inline constexpr bool kLeavesAre = Leaves<std::remove_cvref_t<N>>::template kAre<To>;
template <class N, class X>
inline constexpr bool kHolds = std::is_same_v<N, X> || Leaves<std::remove_cvref_t<N>>::template kHolds<X>;
template <class N>
inline constexpr int kFixedLeaves = Leaves<std::remove_cvref_t<N>>::kCount;

template <class N, class Visit>
void flatten(const N& n, const Visit& visit);

template <class N, class Visit>
struct Flatten {
  static void run(const N& n, const Visit& visit) {
    if constexpr (HasFields<N>) {
      std::apply([&](const auto&... fields) { (flatten(fields, visit), ...); }, n.fields());
    } else {
      visit(n);
    }
  }
};
template <class N, class Visit>
struct Flatten<std::vector<N>, Visit> {
  static void run(const std::vector<N>& n, const Visit& visit) {
    for (const N& item : n) flatten(item, visit);
  }
};
template <class N, std::size_t kSize, class Visit>
struct Flatten<std::array<N, kSize>, Visit> {
  static void run(const std::array<N, kSize>& n, const Visit& visit) {
    for (const N& item : n) flatten(item, visit);
  }
};
template <class N, class Visit>
struct Flatten<std::map<std::string, N>, Visit> {
  static void run(const std::map<std::string, N>& n, const Visit& visit) {
    for (const auto& [key, item] : n) flatten(item, visit);
  }
};
template <class A, class B, class Visit>
struct Flatten<std::pair<A, B>, Visit> {
  static void run(const std::pair<A, B>& n, const Visit& visit) {
    flatten(n.first, visit);
    flatten(n.second, visit);
  }
};
template <class... Ns, class Visit>
struct Flatten<std::tuple<Ns...>, Visit> {
  static void run(const std::tuple<Ns...>& n, const Visit& visit) {
    std::apply([&](const auto&... items) { (flatten(items, visit), ...); }, n);
  }
};

template <class N, class Visit>
void flatten(const N& n, const Visit& visit) {
  Flatten<N, Visit>::run(n, visit);
}

template <class To, class N, class Make>
Rebound<N, To> rebuild(const N& n, const Make& make);

template <class To, class N, class Make>
struct Rebuild {
  static Rebound<N, To> run(const N& n, const Make& make) {
    if constexpr (HasFields<N>) {
      Rebound<N, To> made{};
      fill(made.fields(), n.fields(), make,
           std::make_index_sequence<std::tuple_size_v<decltype(n.fields())>>());
      return made;
    } else {
      return make(n);
    }
  }
  template <class Into, class From, std::size_t... kIndex>
  static void fill(Into into, From from, const Make& make, std::index_sequence<kIndex...>) {
    ((std::get<kIndex>(into) = rebuild<To>(std::get<kIndex>(from), make)), ...);
  }
};
template <class To, class N, class Make>
struct Rebuild<To, std::vector<N>, Make> {
  static Rebound<std::vector<N>, To> run(const std::vector<N>& n, const Make& make) {
    Rebound<std::vector<N>, To> made;
    for (const N& item : n) made.push_back(rebuild<To>(item, make));
    return made;
  }
};
template <class To, class N, std::size_t kSize, class Make>
struct Rebuild<To, std::array<N, kSize>, Make> {
  static Rebound<std::array<N, kSize>, To> run(const std::array<N, kSize>& n, const Make& make) {
    return std::apply(
        [&](const auto&... items) { return Rebound<std::array<N, kSize>, To>{rebuild<To>(items, make)...}; },
        n);
  }
};
template <class To, class N, class Make>
struct Rebuild<To, std::map<std::string, N>, Make> {
  static Rebound<std::map<std::string, N>, To> run(const std::map<std::string, N>& n, const Make& make) {
    Rebound<std::map<std::string, N>, To> made;
    for (const auto& [key, item] : n) made.emplace(key, rebuild<To>(item, make));
    return made;
  }
};
template <class To, class A, class B, class Make>
struct Rebuild<To, std::pair<A, B>, Make> {
  static Rebound<std::pair<A, B>, To> run(const std::pair<A, B>& n, const Make& make) {
    auto first = rebuild<To>(n.first, make);  // in order
    auto second = rebuild<To>(n.second, make);
    return {std::move(first), std::move(second)};
  }
};
template <class To, class... Ns, class Make>
struct Rebuild<To, std::tuple<Ns...>, Make> {
  static Rebound<std::tuple<Ns...>, To> run(const std::tuple<Ns...>& n, const Make& make) {
    // Braces guarantee the order of evaluation.
    return std::apply(
        [&](const auto&... items) { return Rebound<std::tuple<Ns...>, To>{rebuild<To>(items, make)...}; }, n);
  }
};

template <class To, class N, class Make>
Rebound<N, To> rebuild(const N& n, const Make& make) {
  return Rebuild<To, N, Make>::run(n, make);
}

template <class To, class N>
std::vector<To> leaves(const N& n) {
  std::vector<To> list;
  flatten(n, [&](const auto& leaf) { list.push_back(To(leaf)); });
  return list;
}

template <class To, class N, class List>
Rebound<N, To> refill(const N& n, const List& list) {
  std::size_t next = 0;
  return rebuild<To>(n, [&](const auto&) { return list[next++]; });
}

}  // namespace lockstep::nest

namespace lockstep::internal {

// What a function of a step returned, leaf by leaf: values, and variables, which are read.
template <class Leaf, class R>
std::vector<Leaf> given_leaves(const R& given, [[maybe_unused]] const SourceSite& site) {
  std::vector<Leaf> list;
  nest::flatten(given, [&](const auto& leaf) {
    using Given = std::remove_cvref_t<decltype(leaf)>;
    constexpr bool kIsValue = std::is_constructible_v<Leaf, const Given&>;
    constexpr bool kReads = requires { Leaf(leaf.read(site)); };
    static_assert(
        kIsValue || kReads,
        "a function of a step gives Values, Variables, or nests of them (std::vector, std::array, "
        "std::map, std::pair, std::tuple, structs with fields()): write constant(5.F) for a number");
    if constexpr (kIsValue) {
      list.push_back(Leaf(leaf));
    } else if constexpr (kReads) {
      list.push_back(Leaf(leaf.read(site)));
    }
  });
  return list;
}

}  // namespace lockstep::internal
