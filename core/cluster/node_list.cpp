// core/cluster/node_list.cpp - expands brackets of Slurm's lists of hosts.
#include "lockstep/core/cluster/internal/node_list.h"

#include <charconv>
#include <cstddef>
#include <cstdint>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostHosts = 65536;
constexpr std::size_t kLongestName = 255;  // of a host
constexpr std::size_t kMostDigits = 9, kMostBrackets = 8;

struct Range {
  std::uint32_t first = 0, last = 0;
  std::size_t width = 0;  // of the number with its leading zeros; 0: none lead it
};

class Expansion {
 public:
  Expansion(std::string_view list, std::string_view variable)
      : list_(list), left_(list), variable_(variable) {}

  std::vector<std::string> run() {
    if (left_.empty()) fail("it is empty");
    do {
      add_host();
    } while (take(','));
    if (!left_.empty()) fail(str("what is '", printable(left_.substr(0, 20)), "'?"));
    return std::move(hosts_);
  }

 private:
  [[noreturn]] void fail(std::string_view why) const {
    throw InvalidArgument(str(variable_, " is '", printable(list_.substr(0, 120)),
                              "', which is no list of hosts such as node[001,007-015],host2: ", why));
  }

  bool take(char c) {
    if (!left_.starts_with(c)) return false;
    left_.remove_prefix(1);
    return true;
  }

  // Up to the next comma outside brackets.
  void add_host() {
    std::vector<std::string> names = {""};
    bool is_empty = true;
    std::size_t brackets = 0;
    while (!left_.empty() && left_.front() != ',') {
      is_empty = false;
      if (take('[')) {
        if (++brackets > kMostBrackets) fail("the name of a host has too many brackets");
        if (names.front().size() + kMostDigits > kLongestName) fail("the name of a host is too long");
        names = each_with(names, ranges());
        continue;
      }
      const std::size_t end = left_.find_first_of(",[]");
      const std::string_view piece = left_.substr(0, end);
      if (piece.empty()) fail("a bracket is closed that was not opened");
      if (names.front().size() + piece.size() > kLongestName) fail("the name of a host is too long");
      for (std::string& name : names) name += piece;
      left_.remove_prefix(piece.size());
    }
    if (is_empty) fail("the name of a host is empty");
    check_count(hosts_.size() + names.size());
    hosts_.insert(hosts_.end(), names.begin(), names.end());
  }

  void check_count(std::size_t count) const {
    if (count > kMostHosts) fail(str("it has more than ", kMostHosts, " hosts"));
  }

  std::vector<Range> ranges() {
    std::vector<Range> all;
    do {
      Range range;
      range.first = range.last = number(&range.width);
      std::size_t width = 0;
      if (take('-')) range.last = number(&width);
      if (range.last < range.first) fail("a range goes downwards");
      all.push_back(range);
    } while (take(','));
    if (!take(']')) fail("a bracket is not closed");
    return all;
  }

  std::uint32_t number(std::size_t* width) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value);
    if (error != std::errc() || value > 999'999'999) fail("a number is expected in a bracket");
    const auto digits = static_cast<std::size_t>(end - left_.data());
    if (digits > kMostDigits) fail("a number is too long");
    if (left_.front() == '0' && digits > 1) *width = digits;
    left_.remove_prefix(digits);
    return value;
  }

  std::vector<std::string> each_with(const std::vector<std::string>& names,
                                     const std::vector<Range>& ranges) const {
    std::size_t numbers = 0;
    for (const Range& range : ranges) {
      check_count(std::size_t{range.last} - range.first + 1);
      numbers += std::size_t{range.last} - range.first + 1;
      check_count(names.size() * numbers);
    }
    std::vector<std::string> all;
    all.reserve(names.size() * numbers);
    for (const std::string& name : names) {
      for (const Range& range : ranges) {
        for (std::uint32_t i = range.first; i <= range.last; ++i) {
          const std::string digits = std::to_string(i);
          const std::size_t zeros = range.width > digits.size() ? range.width - digits.size() : 0;
          all.emplace_back(name).append(zeros, '0').append(digits);
        }
      }
    }
    return all;
  }

  std::string_view list_, left_, variable_;
  std::vector<std::string> hosts_;
};

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list, std::string_view variable) {
  return Expansion(list, variable).run();
}

}  // namespace lockstep::internal
