// graph/ir/graph_parts.cpp - parts of a Graph: interned strings and source lines, declared variables.
#include "lockstep/graph/ir/graph_parts.h"

#include <algorithm>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/error.h"
#include "lockstep/core/hasher.h"

namespace lockstep::internal {

// --- lists that hold each element once

namespace {

// Lists up to this length are searched linearly and have no index: most regions are small, and there are many
// of them, and an index would have to be copied with each.
constexpr std::size_t kShortList = 8;

// The number for which is_it(number) holds; NumberTable::kNone if there is none.
template <class Hash, class IsIt>
std::uint32_t find_in(std::size_t size, const NumberTable& index, Hash hash, IsIt is_it) {
  if (size > kShortList) return index.find(hash(), is_it);
  for (std::uint32_t i = 0; i < size; ++i) {
    if (is_it(i)) return i;
  }
  return NumberTable::kNone;
}

// Makes room in the index for one more element.
template <class HashOf>
void make_room(std::size_t size, NumberTable& index, HashOf hash_of) {
  if (size < kShortList || index.has_room()) return;
  index.reset(2 * (size + 1));
  for (std::size_t i = 0; i < size; ++i) index.insert(hash_of(i), i);
}

}  // namespace

StringId InternedStrings::add(std::string_view text) {
  const auto hash_of = [this](std::size_t i) { return hash_name(*list_[i]); };
  const std::uint32_t found = find_in(
      list_.size(), index_, [&] { return hash_name(text); },
      [&](std::uint32_t i) { return *list_[i] == text; });
  if (found != NumberTable::kNone) return StringId(found);
  make_room(list_.size(), index_, hash_of);
  list_.push_back(std::make_shared<const std::string>(text));
  if (list_.size() > kShortList) index_.insert(hash_of(list_.size() - 1), list_.size() - 1);
  return StringId(list_.size() - 1);
}

std::uint32_t InternedSites::add(const SourceSite& site, InternedStrings& strings) {
  if (!site.known()) return 0;
  const bool any = last_ != 0;
  const Site last = any ? list_[last_ - 1] : Site{};
  const bool same_file = any && strings[last.file] == site.file;
  const bool same_function = any && strings[last.function] == site.function;
  if (same_file && same_function && last.line == site.line) return last_;
  const Site key{same_file ? last.file : strings.add(site.file),
                 same_function ? last.function : strings.add(site.function), site.line};
  const auto hash = [](const Site& s) {
    return Hasher().add((std::uint64_t{s.file.value} << 32U) | s.function.value).add(s.line).result();
  };
  const auto hash_of = [&](std::size_t i) { return hash(list_[i]); };
  const std::uint32_t found = find_in(
      list_.size(), index_, [&] { return hash(key); }, [&](std::uint32_t i) { return list_[i] == key; });
  if (found != NumberTable::kNone) return last_ = found + 1;
  make_room(list_.size(), index_, hash_of);
  list_.push_back(key);
  if (list_.size() > kShortList) index_.insert(hash(key), list_.size() - 1);
  return last_ = static_cast<std::uint32_t>(list_.size());
}

SourceSite InternedSites::get(std::uint32_t number, const InternedStrings& strings) const {
  if (number == 0) return {};
  const Site& site = list_[number - 1];
  return {strings[site.file].c_str(), strings[site.function].c_str(), site.line};
}

// --- variables

const VariableDecl* VariableTable::find(std::string_view name) const {
  const std::uint32_t found =
      index_.find(hash_name(name), [&](std::uint32_t i) { return list_[i].name == name; });
  return found == NumberTable::kNone ? nullptr : &list_[found];
}

void VariableTable::index_all(std::size_t room) {
  index_.reset(room);
  for (std::size_t i = 0; i < list_.size(); ++i) index_.insert(hash_name(list_[i].name), i);
}

namespace {

// Checks what a declaration says about its copies, without looking at other declarations.
void check_copies(const VariableDecl& decl) {
  const bool sliced = decl.aggregation == Aggregation::kSlices;
  if (!sliced && (decl.slice_axis != 0 || decl.slice_extent != 0))
    throw InvalidArgument(
        str("variable '", decl.name, "' has an axis or extent of slices, but not their aggregation"));
  if (sliced && decl.synchronization != Synchronization::kOnRead) {
    throw InvalidArgument(str("variable '", decl.name,
                              "' has slices for copies, which differ: its synchronization must be on_read"));
  }
  const auto rank = static_cast<std::int32_t>(decl.spec.shape.rank());
  if (sliced && (decl.slice_axis < 0 || decl.slice_axis >= rank || decl.slice_extent < 0)) {
    throw InvalidArgument(str("variable '", decl.name, "', ", decl.spec, ", has no slices of ",
                              decl.slice_extent, " along axis ", decl.slice_axis));
  }
  if (!decl.copy_of.empty() && decl.initial.defined() && decl.synchronization != Synchronization::kOnRead) {
    throw InvalidArgument(str("variable '", decl.name, "' is a copy of '", decl.copy_of,
                              "' that is kept equal to it: it cannot have an initial value of its own"));
  }
}

}  // namespace

void VariableTable::declare(VariableDecl decl) {
  if (decl.name.empty()) throw InvalidArgument("a variable needs a name");
  check_copies(decl);
  if (!decl.spec.shape.is_known()) {
    throw InvalidArgument(str("variable '", decl.name, "' needs a known shape, got ", decl.spec));
  }
  if (decl.initial.defined() && decl.initial.spec() != decl.spec) {
    throw InvalidArgument(str("variable '", decl.name, "' is declared ", decl.spec,
                              " but its initial value is ", decl.initial.spec()));
  }
  if (!decl.copy_of.empty()) {
    const VariableDecl* original = find(decl.copy_of);
    if (original == nullptr || !original->copy_of.empty() || original->spec != decl.spec) {
      throw InvalidArgument(str("variable '", decl.name, "' is a copy of '", decl.copy_of,
                                "', which must be declared before it, as ", decl.spec,
                                " and as no copy itself"));
    }
  } else if (decl.shares) {
    throw InvalidArgument(str("variable '", decl.name, "' shares memory but is no copy of another"));
  }
  if (find(decl.name) != nullptr)
    throw InvalidArgument(str("variable '", decl.name, "' is declared already"));
  if (!index_.has_room()) index_all(2 * (list_.size() + 1));
  list_.push_back(std::move(decl));
  index_.insert(hash_name(list_.back().name), list_.size() - 1);
}

void VariableTable::redeclare(VariableDecl decl) {
  const VariableDecl* const found = find(decl.name);
  if (found == nullptr)
    throw InvalidArgument(str("variable '", decl.name, "' is not declared, so nothing can be changed of it"));
  check_copies(decl);
  VariableDecl& held = list_[static_cast<std::size_t>(found - list_.data())];
  const bool reshaped = held.spec != decl.spec;
  if (decl.initial.defined() && decl.initial.spec() != decl.spec) {
    throw InvalidArgument(str("variable '", decl.name, "' is declared ", decl.spec,
                              " but its initial value is ", decl.initial.spec()));
  }
  if (held.copy_of != decl.copy_of || (decl.shares && decl.copy_of.empty()) || !decl.spec.shape.is_known() ||
      (reshaped && !decl.copy_of.empty())) {
    throw InvalidArgument(str("variable '", decl.name, "' is declared ", held.spec,
                              held.copy_of.empty() ? "" : str(" as a copy of '", held.copy_of, "'"),
                              ", which cannot become ", decl.spec,
                              decl.copy_of.empty() ? "" : str(", a copy of '", decl.copy_of, "'")));
  }
  for (VariableDecl& copy : list_) {
    if (!reshaped || copy.copy_of != decl.name) continue;
    copy.spec = decl.spec;
    copy.initial = Tensor();
  }
  held = std::move(decl);
}

void VariableTable::remove(std::string_view name) {
  if (find(name) == nullptr)
    throw InvalidArgument(str("variable '", name, "' is not declared, so that it cannot be removed"));
  std::erase_if(list_, [name = std::string(name)](const VariableDecl& decl) {
    return decl.name == name || decl.copy_of == name;
  });
  index_all(list_.size());
}

}  // namespace lockstep::internal
