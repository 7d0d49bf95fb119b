// core/cluster/address.cpp - what an address may look like.
#include "lockstep/core/cluster/internal/address.h"

#include <charconv>
#include <string>
#include <system_error>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

bool is_port(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535;
}

constexpr std::size_t kLongestHost = 255;
constexpr std::string_view kInNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";

bool has_only(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

// A name, or a number; of IPv6 in brackets, perhaps with the name of a link.
bool is_host(std::string_view text) {
  if (text.size() > kLongestHost) return false;
  if (!text.starts_with('[')) return has_only(text, kInNames);
  if (!text.ends_with(']')) return false;
  text = text.substr(1, text.size() - 2);
  const std::size_t link = text.find('%');
  return has_only(text.substr(0, link), "0123456789abcdefABCDEF:.") &&
         (link == std::string_view::npos || has_only(text.substr(link + 1), kInNames));
}

}  // namespace

void check_address(std::string_view address, std::string_view what) {
  const std::size_t colon = address.rfind(':');
  if (colon != std::string_view::npos && is_host(address.substr(0, colon)) &&
      is_port(address.substr(colon + 1)))
    return;
  throw InvalidArgument(
      str(what, " is '", printable(address.substr(0, 120)),
          "', and must be host:port, such as 10.0.0.1:2222, node-1.example:2222 or [::1]:2222"));
}

}  // namespace lockstep::internal
