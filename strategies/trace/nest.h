// strategies/trace/nest.h - what functions of a step may take and give: values in any nest of standard
// containers.
//
// A nest is a leaf, a std::vector, std::array, std::map<std::string, ...>, std::pair or std::tuple of nests,
// or a struct of one's own that is a template over its leaves and lists its members:
//
//   template <class T>
//   struct Metrics {
//     T loss, accuracy;
//     auto fields() { return std::tie(loss, accuracy); }
//     auto fields() const { return std::tie(loss, accuracy); }
//   };
//
// A function that gives Metrics<Value> then comes back as Metrics<PerReplica<Tensor>>.
//   nest::flatten(n, visit)      calls visit(leaf) for every leaf, in order
//   nest::rebuild<To>(n, make)   the same structure with make(leaf), a To, in place of each leaf
//   nest::leaves<To>(n)          all leaves, each as a To, in order
//   nest::refill<To>(n, list)    the same structure with the elements of the list, in order, in place of the leaves
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
    // Braces keep the order.
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
