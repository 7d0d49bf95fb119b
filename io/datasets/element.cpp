// io/datasets/element.cpp - comparing, joining and printing elements and their specs.
#include "lockstep/io/datasets/element.h"

#include <algorithm>
#include <numeric>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace {

std::string_view name_of(NestKind kind) {
  switch (kind) {
    case NestKind::kLeaf: return "another leaf";
    case NestKind::kTuple: return "a tuple";
    case NestKind::kDict: break;
  }
  return "a dictionary";
}

template <class Leaf, class Print>
void print_nest(std::ostream& out, const Nest<Leaf>& nest, const Print& print) {
  if (nest.is_leaf()) return print(nest.leaf());
  const bool dict = nest.kind() == NestKind::kDict;
  out << (dict ? '{' : '(');
  for (std::size_t i = 0; i < nest.size(); ++i) {
    if (i > 0) out << ", ";
    if (dict) out << printable(nest.names()[i]) << ": ";
    print_nest(out, nest.parts()[i], print);
  }
  out << (dict ? '}' : ')');
}

void print_leaf_spec(std::ostream& out, const LeafSpec& leaf) {
  switch (leaf.kind) {
    case LeafSpec::Kind::kTensor: out << leaf.tensor; break;
    case LeafSpec::Kind::kAnyTensor: out << "tensor"; break;
    case LeafSpec::Kind::kString: out << "string"; break;
    case LeafSpec::Kind::kStrings: out << "strings"; break;
  }
}

// Nothing is known of tensors that have no spec together.
LeafSpec join_leaves(const LeafSpec& a, const LeafSpec& b, bool& fits) {
  if (a.kind == LeafSpec::Kind::kTensor && b.kind == LeafSpec::Kind::kTensor) {
    if (a.tensor.dtype == b.tensor.dtype && a.tensor.shape.rank() == b.tensor.shape.rank())
      return TensorSpec{a.tensor.dtype, join_shapes(a.tensor.shape, b.tensor.shape)};
    fits = fits && a.tensor.dtype == b.tensor.dtype;
    return LeafSpec::any_tensor();
  }
  if (a.is_tensor() && b.is_tensor()) return LeafSpec::any_tensor();
  fits = fits && a.kind == b.kind;
  return a;
}

ElementSpec join_nests(const ElementSpec& a, const ElementSpec& b, bool& fits) {
  if (a.is_leaf()) return join_leaves(a.leaf(), b.leaf(), fits);
  ElementSpec joined = a;
  for (std::size_t i = 0; i < a.size(); ++i) joined.parts()[i] = join_nests(a[i], b[i], fits);
  return joined;
}

}  // namespace

void internal::wrong_nest(std::string_view expected, NestKind kind) {
  throw InvalidArgument(str("element: expected ", expected, ", this is ", name_of(kind)));
}

void internal::no_such_part(std::size_t index, std::size_t size) {
  throw InvalidArgument(str("element: there is no part ", index, " of ", counted(size, "part")));
}

void internal::no_such_part(std::string_view name, const std::vector<std::string>& names) {
  std::string known;
  for (const std::string& other : names) known += str(known.empty() ? "" : ", ", "'", printable(other), "'");
  throw InvalidArgument(
      str("element: there is no part '", printable(name), "'; there is ", known.empty() ? "none" : known));
}

void internal::check_part_names(const std::vector<std::string>& sorted) {
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end())
    throw InvalidArgument(str("element: the name '", printable(*twice), "' comes twice"));
}

std::vector<std::size_t> internal::order_of_names(const std::vector<std::string>& names) {
  std::vector<std::size_t> order(names.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) -> std::string_view { return names[i]; });
  return order;
}

LeafSpec::LeafSpec(TensorSpec spec) : kind(Kind::kTensor), tensor(std::move(spec)) {}

LeafSpec LeafSpec::of(Kind kind) {
  LeafSpec spec;
  spec.kind = kind;
  return spec;
}

bool LeafSpec::admits(const ElementLeaf& leaf) const {
  switch (kind) {
    case Kind::kString: return std::holds_alternative<std::string>(leaf);
    case Kind::kStrings: return std::holds_alternative<Strings>(leaf);
    case Kind::kTensor:
    case Kind::kAnyTensor: break;
  }
  const Tensor* const value = std::get_if<Tensor>(&leaf);
  if (value == nullptr || !value->defined()) return false;
  return kind == Kind::kAnyTensor || (tensor.dtype == value->dtype() && tensor.shape.admits(value->shape()));
}

ElementSpec spec_of(const Element& element) {
  return element.with_leaves<LeafSpec>([](const ElementLeaf& leaf) -> LeafSpec {
    if (const Tensor* const tensor = std::get_if<Tensor>(&leaf)) {
      return tensor->defined() ? LeafSpec(tensor->spec()) : LeafSpec::any_tensor();
    }
    return std::holds_alternative<std::string>(leaf) ? LeafSpec::string() : LeafSpec::strings();
  });
}

bool admits(const ElementSpec& spec, const Element& element) {
  if (spec.kind() != element.kind()) return false;
  if (spec.is_leaf()) return spec.leaf().admits(element.leaf());
  if (spec.size() != element.size() || spec.names() != element.names()) return false;
  for (std::size_t i = 0; i < spec.size(); ++i) {
    if (!admits(spec.parts()[i], element.parts()[i])) return false;
  }
  return true;
}

ElementSpec join_specs(const ElementSpec& a, const ElementSpec& b) {
  bool fits = a.has_structure_of(b);
  ElementSpec joined = fits ? join_nests(a, b, fits) : ElementSpec();
  if (!fits) throw InvalidArgument(str("elements of ", a, " and of ", b, " do not fit together"));
  return joined;
}

std::uint64_t num_bytes(const Element& element) {
  std::uint64_t bytes = 0;
  element.for_each_leaf([&](const ElementLeaf& leaf) {
    if (const Tensor* const tensor = std::get_if<Tensor>(&leaf)) {
      bytes += tensor->defined() ? tensor->num_bytes() : 0;
    } else if (const std::string* const text = std::get_if<std::string>(&leaf)) {
      bytes += text->size();
    } else {
      for (const std::string& one : std::get<Strings>(leaf)) bytes += one.size();
    }
  });
  return bytes;
}

bool bit_equal(const Element& a, const Element& b) {
  if (!a.has_structure_of(b)) return false;
  if (!a.is_leaf()) {
    return std::ranges::equal(a.parts(), b.parts(),
                              [](const Element& x, const Element& y) { return bit_equal(x, y); });
  }
  if (a.leaf().index() != b.leaf().index()) return false;
  if (const Tensor* const tensor = std::get_if<Tensor>(&a.leaf())) return tensor->bit_equal(b.tensor());
  const std::string* const text = std::get_if<std::string>(&a.leaf());
  return text != nullptr ? *text == b.string() : a.strings() == b.strings();
}

std::ostream& operator<<(std::ostream& out, const ElementSpec& spec) {
  print_nest(out, spec, [&](const LeafSpec& leaf) { print_leaf_spec(out, leaf); });
  return out;
}

std::string to_string(const ElementSpec& spec) { return str(spec); }

std::ostream& operator<<(std::ostream& out, const Element& element) {
  print_nest(out, element, [&](const ElementLeaf& leaf) {
    if (const Tensor* const tensor = std::get_if<Tensor>(&leaf)) {
      out << *tensor;
    } else if (const std::string* const text = std::get_if<std::string>(&leaf)) {
      out << '\'' << printable(*text) << '\'';
    } else {
      const Strings& texts = std::get<Strings>(leaf);
      out << '[';
      for (std::size_t i = 0; i < texts.size(); ++i)
        out << (i > 0 ? ", '" : "'") << printable(texts[i]) << '\'';
      out << ']';
    }
  });
  return out;
}

}  // namespace lockstep
