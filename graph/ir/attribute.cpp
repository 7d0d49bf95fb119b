// graph/ir/attribute.cpp - typed attributes of nodes.
#include "lockstep/graph/ir/attribute.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace lockstep {

Attribute::Attribute() = default;
Attribute::Attribute(std::string own_name, AttributeValue own_value)
    : name(std::move(own_name)), value(std::move(own_value)) {}
Attribute::Attribute(const Attribute&) = default;
Attribute::Attribute(Attribute&&) noexcept = default;
Attribute& Attribute::operator=(const Attribute&) = default;
Attribute& Attribute::operator=(Attribute&&) noexcept = default;
Attribute::~Attribute() = default;

std::string_view to_string(AttributeType type) {
  switch (type) {
    case AttributeType::kBool: return "bool";
    case AttributeType::kInt: return "int";
    case AttributeType::kFloat: return "float";
    case AttributeType::kString: return "string";
    case AttributeType::kDType: return "dtype";
    case AttributeType::kShape: return "shape";
    case AttributeType::kTensor: return "tensor";
    case AttributeType::kVariable: return "variable";
    case AttributeType::kInts: return "ints";
    case AttributeType::kFloats: return "floats";
    case AttributeType::kStrings: return "strings";
    case AttributeType::kLambda: return "lambda";
  }
  return "?";
}

namespace {

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool equal(double a, double b) { return same_bits(a, b); }
bool equal(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, same_bits);
}
bool equal(const Tensor& a, const Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || a.bit_equal(b));
}
template <class T>
bool equal(const T& a, const T& b) {
  return a == b;
}

}  // namespace

bool same_value(const AttributeValue& a, const AttributeValue& b) {
  if (a.index() != b.index()) return false;
  return std::visit([&](const auto& x) { return equal(x, std::get<std::decay_t<decltype(x)>>(b)); }, a);
}

const AttributeValue* find_attribute(const std::vector<Attribute>& attributes, std::string_view name) {
  for (const Attribute& attribute : attributes) {  // few: a linear search beats a binary one
    if (attribute.name == name) return &attribute.value;
  }
  return nullptr;
}

}  // namespace lockstep
