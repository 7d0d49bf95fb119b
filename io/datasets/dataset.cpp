// io/datasets/dataset.cpp - whether the elements of a dataset are what its types say.
#include "lockstep/io/datasets/dataset.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/internal/node.h"

namespace lockstep::internal {

namespace {

bool is_of_kind(const ElementSpec& spec, char kind) {
  if (kind == 'e') return true;
  if (!spec.is_leaf()) return false;
  if (kind == 't') return spec.leaf().is_tensor();
  return spec.leaf().kind == (kind == 's' ? LeafSpec::Kind::kString : LeafSpec::Kind::kStrings);
}

std::string_view kind_name(char kind) {
  switch (kind) {
    case 't': return "Tensor";
    case 's': return "std::string";
    case 'l': return "Strings";
    default: return "Element";
  }
}

}  // namespace

void check_components(const ElementSpec& spec, std::string_view kinds, const SourceSite& site) {
  bool fits = false;
  if (kinds.size() == 1) {
    fits = is_of_kind(spec, kinds[0]);
  } else if (spec.kind() == NestKind::kTuple && spec.size() == kinds.size()) {
    fits = std::ranges::equal(spec.parts(), kinds, is_of_kind);
  }
  if (fits) return;
  std::string types;
  for (const char kind : kinds) types += str(types.empty() ? "" : ", ", kind_name(kind));
  refuse(str("Dataset<", types, ">"), site, str("the elements of this dataset are ", spec));
}

}  // namespace lockstep::internal
