// io/datasets/dataset.h - datasets with types: Dataset<Tensor, Tensor> gives pairs of tensors.
//
//   Dataset<Tensor, Tensor> digits = datasets::from_slices(images, labels);
//   const auto input = digits.shuffle(10'000, {.seed = 7})
//                          .map([](Tensor x, Tensor y) { return std::tuple(scaled(x), y); }, {.threads = 2})
//                          .batch(64)
//                          .prefetch(2);
//   for (auto [x, y] : input) step(x, y);
//
// A facade over AnyDataset (io/datasets/any_dataset.h), which says what the operations do, and to which it converts. A
// component is a Tensor, a std::string, Strings (a list of them), or an Element of any structure. One component is an
// element by itself; several are a tuple.
//
// Thread safety: as AnyDataset; one thread at a time per iterator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/io/datasets/any_dataset.h"
#include "lockstep/io/datasets/dataset_iterator.h"
#include "lockstep/io/datasets/element.h"
#include "lockstep/io/datasets/sources.h"

namespace lockstep {

namespace internal {

template <class T>
inline constexpr bool is_component = std::is_same_v<T, Tensor> || std::is_same_v<T, std::string> ||
                                     std::is_same_v<T, Strings> || std::is_same_v<T, Element>;

template <class... Ts>
struct ItemOf {
  using Type = std::tuple<Ts...>;
};
template <class T>
struct ItemOf<T> {
  using Type = T;
};

template <class T>
T component_of(Element&& element) {
  if constexpr (std::is_same_v<T, Element>) {
    return std::move(element);
  } else {
    return std::get<T>(std::move(element.leaf()));
  }
}
template <class... Ts>
typename ItemOf<Ts...>::Type item_of(Element&& element) {
  if constexpr (sizeof...(Ts) == 1) {
    return component_of<Ts...>(std::move(element));
  } else {
    return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
      return std::tuple<Ts...>(component_of<Ts>(std::move(element.parts()[kIndex]))...);
    }
    (std::index_sequence_for<Ts...>());
  }
}
template <class T>
Element element_of(T&& item) {
  return Element(std::forward<T>(item));
}
template <class... Ts>
Element element_of(std::tuple<Ts...>&& item) {
  std::vector<Element> parts;
  parts.reserve(sizeof...(Ts));
  std::apply([&](Ts&... part) { (parts.push_back(Element(std::move(part))), ...); }, item);
  return Element::tuple(std::move(parts));
}
template <class A, class B>
Element element_of(std::pair<A, B>&& item) {
  return element_of(std::tuple<A, B>(std::move(item.first), std::move(item.second)));
}

// What is known of a component by its type alone. An Element may be anything: its spec has to be given.
template <class T>
LeafSpec spec_of_component() {
  static_assert(!std::is_same_v<T, Element>,
                "map() cannot know what an Element holds: use AnyDataset::map, which takes a spec");
  if constexpr (std::is_same_v<T, std::string>) return LeafSpec::string();
  if constexpr (std::is_same_v<T, Strings>) return LeafSpec::strings();
  return LeafSpec::any_tensor();
}
// Throws InvalidArgument if elements of the spec are not these components. 't', 's', 'l' and 'e' are the four kinds.
LOCKSTEP_API void check_components(const ElementSpec& spec, std::string_view kinds, const SourceSite& site);
template <class T>
constexpr char kind_of_component() {
  if (std::is_same_v<T, Element>) return 'e';
  if (std::is_same_v<T, Tensor>) return 't';
  return std::is_same_v<T, std::string> ? 's' : 'l';
}

// What a function returns, as a dataset's components.
template <class R>
struct ComponentsOf {
  using Type = Dataset<R>;
  static ElementSpec spec() { return spec_of_component<R>(); }
};
template <class... Ts>
struct ComponentsOf<std::tuple<Ts...>> {
  using Type = Dataset<Ts...>;
  static ElementSpec spec() { return ElementSpec::tuple({ElementSpec(spec_of_component<Ts>())...}); }
};
template <class A, class B>
struct ComponentsOf<std::pair<A, B>> : ComponentsOf<std::tuple<A, B>> {};

template <class T>
using Batched = std::conditional_t<std::is_same_v<T, std::string>, Strings, T>;
template <class T>
using Unbatched = std::conditional_t<std::is_same_v<T, Strings>, std::string, T>;

}  // namespace internal

// An iterator with types; io/datasets/dataset_iterator.h says what it does.
template <class... Ts>
class TypedIterator {
 public:
  using Item = typename internal::ItemOf<Ts...>::Type;

  explicit TypedIterator(DatasetIterator iterator) : iterator_(std::move(iterator)) {}
  std::optional<Item> next() {
    std::optional<Element> element = iterator_.next();
    if (!element) return std::nullopt;
    return internal::item_of<Ts...>(*std::move(element));
  }
  void give_back(Item item) { iterator_.give_back(internal::element_of(std::move(item))); }
  std::string save() const { return iterator_.save(); }
  void restore(std::string_view state) { iterator_.restore(state); }
  void cancel() { iterator_.cancel(); }
  std::vector<DatasetStage> stats() const { return iterator_.stats(); }
  DatasetIterator& untyped() { return iterator_; }

 private:
  DatasetIterator iterator_;
};

template <class... Ts>
class Dataset {
  static_assert(sizeof...(Ts) > 0 && (internal::is_component<Ts> && ...),
                "components are Tensor, std::string, Strings (a list of strings) or Element");

 public:
  using Item = typename internal::ItemOf<Ts...>::Type;

  // Throws InvalidArgument if its elements are something else.
  explicit Dataset(AnyDataset dataset) : dataset_(std::move(dataset)) {
    constexpr char kinds[] = {internal::kind_of_component<Ts>()...};
    internal::check_components(dataset_.element_spec(), std::string_view(kinds, sizeof...(Ts)),
                               dataset_.site());
  }
  operator const AnyDataset&() const { return dataset_; }  // NOLINT(google-explicit-constructor): it is one
  const AnyDataset& untyped() const { return dataset_; }

  const ElementSpec& element_spec() const { return dataset_.element_spec(); }
  std::string to_string() const { return dataset_.to_string(); }
  TypedIterator<Ts...> iterator(IteratorOptions options = {}) const {
    return TypedIterator<Ts...>(dataset_.iterator(std::move(options)));
  }

  // The function takes the components, and returns one, or a tuple or a pair of them.
  template <class F>
  auto map(F function, MapOptions options = {}, SourceSite site = SourceSite::current()) const {
    using Components = internal::ComponentsOf<std::remove_cvref_t<std::invoke_result_t<const F&, Ts...>>>;
    ElementFunction untyped = [function = std::move(function)](Element element) {
      Item item = internal::item_of<Ts...>(std::move(element));
      if constexpr (sizeof...(Ts) == 1) {
        return internal::element_of(function(std::move(item)));
      } else {
        return internal::element_of(std::apply(function, std::move(item)));
      }
    };
    return typename Components::Type(
        dataset_.map(std::move(untyped), options.spec ? *std::move(options.spec) : Components::spec(),
                     options.threads, site));
  }
  template <class F>
  Dataset filter(F keep, SourceSite site = SourceSite::current()) const {
    return Dataset(dataset_.filter(
        [keep = std::move(keep)](const Element& element) -> bool {
          Item item = internal::item_of<Ts...>(Element(element));
          if constexpr (sizeof...(Ts) == 1) {
            return keep(std::move(item));
          } else {
            return std::apply(keep, std::move(item));
          }
        },
        site));
  }
  Dataset take(std::int64_t count, SourceSite site = SourceSite::current()) const {
    return Dataset(dataset_.take(count, site));
  }
  Dataset skip(std::int64_t count, SourceSite site = SourceSite::current()) const {
    return Dataset(dataset_.skip(count, site));
  }
  Dataset shard(std::int64_t count, std::int64_t index, SourceSite site = SourceSite::current()) const {
    return Dataset(dataset_.shard(count, index, site));
  }
  Dataset repeat(std::int64_t count = -1, SourceSite site = SourceSite::current()) const {
    return Dataset(dataset_.repeat(count, site));
  }
  Dataset shuffle(std::int64_t buffer, ShuffleOptions options = {},
                  SourceSite site = SourceSite::current()) const {
    return Dataset(dataset_.shuffle(buffer, options, site));
  }
  Dataset concatenate(const Dataset& next, SourceSite site = SourceSite::current()) const {
    return Dataset(dataset_.concatenate(next, site));
  }
  Dataset<internal::Batched<Ts>...> batch(std::int64_t size, BatchOptions options = {},
                                          SourceSite site = SourceSite::current()) const {
    return Dataset<internal::Batched<Ts>...>(dataset_.batch(size, options, site));
  }
  Dataset<internal::Batched<Ts>...> padded_batch(std::int64_t size, PaddedBatchOptions options = {},
                                                 SourceSite site = SourceSite::current()) const {
    return Dataset<internal::Batched<Ts>...>(dataset_.padded_batch(size, std::move(options), site));
  }
  Dataset<internal::Batched<Ts>...> window(std::int64_t size, WindowOptions options = {},
                                           SourceSite site = SourceSite::current()) const {
    return Dataset<internal::Batched<Ts>...>(dataset_.window(size, options, site));
  }
  Dataset<internal::Unbatched<Ts>...> unbatch(SourceSite site = SourceSite::current()) const {
    return Dataset<internal::Unbatched<Ts>...>(dataset_.unbatch(site));
  }
  Dataset cache(SourceSite site = SourceSite::current()) const { return Dataset(dataset_.cache(site)); }
  Dataset prefetch(std::int64_t count, SourceSite site = SourceSite::current()) const {
    return Dataset(dataset_.prefetch(count, site));
  }
  Dataset with_options(DatasetOptions options, SourceSite site = SourceSite::current()) const {
    return Dataset(dataset_.with_options(options, site));
  }
  Dataset with_spec(ElementSpec spec, SourceSite site = SourceSite::current()) const {
    return Dataset(dataset_.with_spec(std::move(spec), site));
  }

  // A pass from the beginning, for range-for.
  class Pass {
   public:
    using value_type = Item;
    using difference_type = std::ptrdiff_t;
    struct End {};
    explicit Pass(const AnyDataset& dataset) : iterator_(dataset.iterator()) { ++*this; }
    Item operator*() { return *std::move(item_); }
    Pass& operator++() {
      item_ = iterator_.next();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Pass& pass, End /*end*/) { return !pass.item_; }

   private:
    TypedIterator<Ts...> iterator_;
    std::optional<Item> item_;
  };
  Pass begin() const { return Pass(dataset_); }
  typename Pass::End end() const { return {}; }

 private:
  AnyDataset dataset_;
};

template <class... Ts>
Dataset<Ts...> AnyDataset::as() const {
  return Dataset<Ts...>(*this);
}

// Pairs and triples of datasets of one component each; ends with the shortest.
template <class A, class B>
Dataset<A, B> zip(const Dataset<A>& a, const Dataset<B>& b, SourceSite site = SourceSite::current()) {
  return Dataset<A, B>(zip(std::vector<AnyDataset>{a, b}, site));
}
template <class A, class B, class C>
Dataset<A, B, C> zip(const Dataset<A>& a, const Dataset<B>& b, const Dataset<C>& c,
                     SourceSite site = SourceSite::current()) {
  return Dataset<A, B, C>(zip(std::vector<AnyDataset>{a, b, c}, site));
}

namespace datasets {

// The rows of tensors, and of lists of strings, that have equally many.
template <class A>
requires(internal::is_component<A> && !std::is_same_v<A, Element>)
    Dataset<internal::Unbatched<A>> from_slices(const A& a, SourceSite site = SourceSite::current()) {
  return Dataset<internal::Unbatched<A>>(from_slices(Element(a), site));
}
template <class A, class B>
requires(internal::is_component<A>&& internal::is_component<B>)
    Dataset<internal::Unbatched<A>, internal::Unbatched<B>> from_slices(
        const A& a, const B& b, SourceSite site = SourceSite::current()) {
  return Dataset<internal::Unbatched<A>, internal::Unbatched<B>>(from_slices(Element::tuple({a, b}), site));
}
template <class A, class B, class C>
requires(internal::is_component<A>&& internal::is_component<B>&& internal::is_component<C>)
    Dataset<internal::Unbatched<A>, internal::Unbatched<B>, internal::Unbatched<C>> from_slices(
        const A& a, const B& b, const C& c, SourceSite site = SourceSite::current()) {
  return Dataset<internal::Unbatched<A>, internal::Unbatched<B>, internal::Unbatched<C>>(
      from_slices(Element::tuple({a, b, c}), site));
}
// A dataset of one element: the components.
template <class... Ts>
Dataset<Ts...> from_tensors(Ts... components) {
  return Dataset<Ts...>(from_elements(
      {internal::element_of(typename internal::ItemOf<Ts...>::Type(std::move(components)...))}));
}

}  // namespace datasets
}  // namespace lockstep
