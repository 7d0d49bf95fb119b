// graph/ir/internal/edit_distance.h - "did you mean ...?"
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::internal {

// How many letters must be inserted, removed or changed to get from one to the other.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// Up to three of the names, closest first: "'a', 'b', 'c'". Empty if there are none. Only the beginning of
// `wanted` counts if it is longer than any sensible name.
inline std::string closest_names(std::string_view wanted, std::vector<std::string> names) {
  wanted = wanted.substr(0, 64);
  std::ranges::stable_sort(names, {}, [&](const std::string& name) { return edit_distance(wanted, name); });
  names.resize(std::min<std::size_t>(names.size(), 3));
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

}  // namespace lockstep::internal
