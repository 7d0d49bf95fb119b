// io/formats/match_files.cpp - the files that a pattern names, folder by folder.
#include "lockstep/io/formats/match_files.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <system_error>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// Does the character match the class that begins at pattern[at] == '['? Moves `at` behind its end.
bool matches_class(std::string_view pattern, std::size_t& at, char c) {
  ++at;
  const bool negated = pattern[at] == '!' || pattern[at] == '^';
  if (negated) ++at;
  bool found = false;
  for (bool first = true; first || pattern[at] != ']'; first = false) {
    const char low = pattern[at++];
    char high = low;
    if (pattern[at] == '-' && pattern[at + 1] != ']') {
      high = pattern[at + 1];
      at += 2;
    }
    const auto byte = static_cast<unsigned char>(c);
    found = found || (static_cast<unsigned char>(low) <= byte && byte <= static_cast<unsigned char>(high));
  }
  ++at;
  return found != negated;
}

// The end of the class that begins at `at`, or npos.
std::size_t end_of_class(std::string_view part, std::size_t at) {
  std::size_t first = at + 1;
  if (first < part.size() && (part[first] == '!' || part[first] == '^')) ++first;
  return first < part.size() ? part.find(']', first + 1) : std::string_view::npos;
}

// Classes of the pattern have ends. Of several stars only the last one is tried again: what stands before it
// matched as early as possible. So this takes no more than size * size steps.
bool matches_part(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0;
  std::size_t star = std::string_view::npos, star_name = 0;
  while (n < name.size()) {
    std::size_t next = p + 1;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
      continue;
    }
    bool fits = false;
    if (p < pattern.size() && pattern[p] == '[') {
      next = p;
      fits = matches_class(pattern, next, name[n]);
    } else if (p < pattern.size()) {
      fits = pattern[p] == '?' || pattern[p] == name[n];
    }
    if (fits) {
      p = next;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_pattern(std::string_view part) { return part.find_first_of("*?[") != std::string_view::npos; }

void check_classes(std::string_view pattern, std::string_view part) {
  for (std::size_t at = part.find('['); at != std::string_view::npos; at = part.find('[', at + 1)) {
    at = end_of_class(part, at);
    if (at == std::string_view::npos) {
      throw InvalidArgument(
          str("the pattern '", printable(pattern), "' has a [ without a ]; write [[] for a bracket itself"));
    }
  }
}

using Paths = std::vector<std::filesystem::path>;

// What of `folder` matches the part; folders only, or everything else only.
void match_in(const std::filesystem::path& folder, const std::string& part, bool folders, Paths& found) {
  std::error_code error;
  if (!is_pattern(part)) {
    const std::filesystem::path path = folder / part;
    const auto status = std::filesystem::status(path, error);
    if (std::filesystem::exists(status) && std::filesystem::is_directory(status) == folders)
      found.push_back(path);
    return;
  }
  const std::filesystem::path listed = folder.empty() ? std::filesystem::path(".") : folder;
  for (std::filesystem::directory_iterator it(listed, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if ((name.front() == '.' && part.front() != '.') || !matches_part(part, name)) continue;
    std::error_code ignored;
    if (it->is_directory(ignored) == folders) found.push_back(folder / name);
  }
}

}  // namespace

std::vector<std::filesystem::path> match_files(std::string_view pattern) {
  const std::filesystem::path whole(pattern);
  Paths found = {whole.root_path()};
  std::vector<std::string> parts;
  for (const std::filesystem::path& part : whole.relative_path()) parts.push_back(part.string());
  for (const std::string& part : parts) check_classes(pattern, part);
  for (std::size_t i = 0; i < parts.size() && !found.empty(); ++i) {
    Paths next;
    for (const std::filesystem::path& folder : found) match_in(folder, parts[i], i + 1 < parts.size(), next);
    found = std::move(next);
  }
  if (parts.empty() || found.empty())
    throw NotFound(str("no file matches '", printable(pattern), "'; the current folder is ",
                       std::filesystem::current_path().string()));
  std::ranges::sort(found, {},
                    [](const std::filesystem::path& path) -> const std::string& { return path.native(); });
  return found;
}

}  // namespace lockstep
