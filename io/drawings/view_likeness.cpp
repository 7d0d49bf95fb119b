// io/drawings/view_likeness.cpp - which nodes of a view are alike.
#include "lockstep/io/drawings/internal/view_likeness.h"

#include <algorithm>
#include <variant>

#include "lockstep/graph/ir/attribute_hash.h"

namespace lockstep::internal {

namespace {

constexpr std::size_t kMaxHashed = 4096;    // bytes of a constant that count between replicas
constexpr std::size_t kMaxOfOneLayer = 64;  // bytes; larger constants do not tell layers apart

void add_tensor(Hasher& hasher, const Tensor& tensor, SamePlace place) {
  if (!tensor.defined()) return;
  hasher.add(tensor.spec());
  const std::size_t bytes = tensor.num_bytes();
  if (place == SamePlace::kOtherLayer && bytes > kMaxOfOneLayer) return;
  hasher.add_bytes(tensor.raw(), std::min(bytes, kMaxHashed));
}

void add_attribute(Hasher& hasher, const AttributeValue& value, SamePlace place) {
  add_value(
      hasher, value, [place](Hasher& to, const Tensor& tensor) { add_tensor(to, tensor, place); },
      [place](Hasher& to, const VariableRef& variable) {
        if (place == SamePlace::kOtherReplica) to.add(without_replica(variable.name));
      });
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
  Hasher hasher;
  hasher.add(node.op().name);
  for (const TensorSpec& spec : node.outputs()) hasher.add(spec);
  const bool any_key = place == SamePlace::kOtherLayer && has(node.op().effects, Effect::kRandom);
  for (const Attribute& attribute : node.attributes()) {
    hasher.add(attribute.name);
    if (!any_key || type_of(attribute.value) != AttributeType::kInt)
      add_attribute(hasher, attribute.value, place);
  }
  for (const Graph& region : node.regions()) {
    hasher.add(region.size());
    for (const Node& inner : region.nodes()) {
      hasher.add(hash_of_node(inner, place));
      for (const ValueId input : inner.inputs()) hasher.add(input.node.value).add(input.output);
    }
  }
  return hasher.result();
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
