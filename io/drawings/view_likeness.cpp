#include "lockstep/io/drawings/internal/view_likeness.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <type_traits>
#include <variant>

namespace lockstep::internal {

namespace {

constexpr std::size_t kMaxHashed = 4096;    // bytes of a constant, between replicas
constexpr std::size_t kMaxOfOneLayer = 64;  // bytes of a constant that tells layers apart

std::uint64_t hash_of_spec(const TensorSpec& spec, std::uint64_t seed) {
  std::uint64_t h = mix(seed, static_cast<std::uint64_t>(spec.dtype));
  for (const std::int64_t dim : spec.shape.dims()) h = mix(h, static_cast<std::uint64_t>(dim));
  return mix(h, spec.shape.rank());
}

std::uint64_t hash_of_tensor(const Tensor& tensor, SamePlace place) {
  if (!tensor.defined()) return 0;
  const std::uint64_t spec = hash_of_spec(tensor.spec(), 1);
  const std::size_t bytes = tensor.num_bytes();
  if (place == SamePlace::kOtherLayer && bytes > kMaxOfOneLayer) return spec;
  return hash_text({static_cast<const char*>(tensor.raw()), std::min(bytes, kMaxHashed)}, spec);
}

std::uint64_t hash_of_attribute(const AttributeValue& value, SamePlace place) {
  return std::visit(
      [&]<class T>(const T& one) -> std::uint64_t {
        if constexpr (std::is_same_v<T, Tensor>) {
          return hash_of_tensor(one, place);
        } else if constexpr (std::is_same_v<T, VariableRef>) {
          return place == SamePlace::kOtherLayer ? 4 : hash_text(without_replica(one.name));
        } else if constexpr (std::is_same_v<T, Lambda>) {
          return 2;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return hash_text(one);
        } else if constexpr (std::is_same_v<T, Shape>) {
          return hash_of_spec({DType::kF32, one}, 3);
        } else if constexpr (std::is_same_v<T, double>) {
          return std::hash<double>()(one);
        } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
          return static_cast<std::uint64_t>(one);
        } else {
          std::uint64_t h = one.size();
          for (const auto& element : one) h = mix(h, hash_of_attribute(AttributeValue(element), place));
          return h;
        }
      },
      value);
}

bool same_attribute(const Attribute& a, const Attribute& b) {
  if (a.name != b.name) return false;
  if (type_of(a.value) == AttributeType::kLambda && type_of(b.value) == AttributeType::kLambda) return true;
  const auto *x = std::get_if<Tensor>(&a.value), *y = std::get_if<Tensor>(&b.value);
  const bool shared = x != nullptr && y != nullptr && x->defined() && y->defined() && x->raw() == y->raw() &&
                      x->spec() == y->spec();  // large ones are seldom copied
  return shared || same_value(a.value, b.value);
}

}  // namespace

std::uint64_t hash_of_node(const Node& node, SamePlace place) {
  std::uint64_t h = hash_text(node.op().name);
  for (const TensorSpec& spec : node.outputs()) h = hash_of_spec(spec, h);
  const bool any_key = place == SamePlace::kOtherLayer && has(node.op().effects, Effect::kRandom);
  for (const Attribute& attribute : node.attributes()) {
    h = mix(h, hash_text(attribute.name));
    if (!any_key || type_of(attribute.value) != AttributeType::kInt)
      h = mix(h, hash_of_attribute(attribute.value, place));
  }
  for (const Graph& region : node.regions()) {
    h = mix(h, region.size());
    for (const Node& inner : region.nodes()) {
      h = mix(h, hash_of_node(inner, place));
      for (const ValueId input : inner.inputs()) h = mix(mix(h, input.node.value), input.output);
    }
  }
  return h;
}

bool same_but_for_wires(const Node& a, const Node& b) {
  if (a.op().name != b.op().name || !std::ranges::equal(a.outputs(), b.outputs())) return false;
  if (!std::ranges::equal(a.attributes(), b.attributes(), same_attribute)) return false;
  return std::ranges::equal(a.regions(), b.regions(), [](const Graph& x, const Graph& y) {
    const auto same = [](const Node& one, const Node& other) {
      return std::ranges::equal(one.inputs(), other.inputs()) && same_but_for_wires(one, other);
    };
    return x.size() == y.size() && std::equal(x.nodes().begin(), x.nodes().end(), y.nodes().begin(), same);
  });
}

std::string without_replica(std::string_view name) {
  constexpr std::string_view kPrefix = "replica_";
  std::string out;
  while (!name.empty()) {
    const std::size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    name = slash == std::string_view::npos ? std::string_view() : name.substr(slash + 1);
    const bool numbered = part.starts_with(kPrefix) && part.size() > kPrefix.size() &&
                          part.find_first_not_of("0123456789", kPrefix.size()) == std::string_view::npos;
    if (numbered) continue;
    if (!out.empty()) out += '/';
    out += part;
  }
  return out;
}

}  // namespace lockstep::internal
