// core/device.cpp - names of places to compute.
#include "lockstep/core/device.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

constexpr const char* kAccepted =
    "expected a name such as \"cpu:0\", \"/gpu:1\", \"/device:GPU:1\" or \"/job:worker/task:1/gpu:0\"";

// ASCII only, whatever the locale says.
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
constexpr bool is_letter(char c) { return lower(c) >= 'a' && lower(c) <= 'z'; }

// Reads one name from its left to its right end.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), rest_(text) {}

  Device parse() {
    if (text_.empty()) refuse("it is empty");
    Device device;
    if (rest_.front() != '/') {  // "cpu:0"
      parse_kind(rest_, device);
      return device;
    }
    std::string_view part = next_part();
    if (std::optional<std::string_view> job = after("job:", part)) {
      device.job = parse_job(*job);
      part = next_part();
    }
    if (const std::optional<std::string_view> replica = after("replica:", part)) {
      if (parse_number(*replica, part) != 0) refuse_part(part, "a replica can only be 0");
      part = next_part();
    }
    if (const std::optional<std::string_view> task = after("task:", part)) {
      if (device.job.empty())
        refuse_part(part, "a task needs a job before it, as in /job:worker/task:1/cpu:0");
      device.task = parse_number(*task, part);
      part = next_part();
    }
    parse_kind(after("device:", part).value_or(part), device);
    if (!rest_.empty()) refuse_part(rest_, "nothing may follow the device");
    return device;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw InvalidArgument(str("cannot read the device name '", text_, "': ", why, "; ", kAccepted));
  }
  [[noreturn]] void refuse_part(std::string_view part, const std::string& why) const {
    refuse(str("'", part, "' is not understood: ", why));
  }

  static std::optional<std::string_view> after(std::string_view prefix, std::string_view part) {
    if (part.substr(0, prefix.size()) != prefix) return std::nullopt;
    return part.substr(prefix.size());
  }

  // The text between this '/' and the next.
  std::string_view next_part() {
    if (rest_.empty()) refuse("it names no device after the job and task");
    const std::size_t end = std::min(rest_.find('/', 1), rest_.size());
    const std::string_view part = rest_.substr(1, end - 1);
    rest_.remove_prefix(end);
    return part;
  }

  std::string parse_job(std::string_view name) const {
    const bool good =
        !name.empty() && is_letter(name.front()) &&
        std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || is_digit(c) || c == '_'; });
    if (!good) {
      refuse_part(str("job:", name), "a job name is a letter followed by letters, digits and underscores");
    }
    return std::string(name);
  }

  int parse_number(std::string_view digits, std::string_view part) const {
    int value = 0;
    const char* end = digits.data() + digits.size();
    const std::from_chars_result result = std::from_chars(digits.data(), end, value);
    if (digits.empty() || !is_digit(digits.front()) || result.ec != std::errc() || result.ptr != end) {
      refuse_part(part, "a whole number of at most 2147483647 is missing after ':'");
    }
    return value;
  }

  void parse_kind(std::string_view part, Device& device) const {
    const std::size_t colon = std::min(part.find(':'), part.size());
    std::string kind(part.substr(0, colon));
    std::transform(kind.begin(), kind.end(), kind.begin(), lower);
    if (kind == "cpu") {
      device.kind = DeviceKind::kCpu;
    } else if (kind == "gpu") {
      device.kind = DeviceKind::kGpu;
    } else {
      refuse_part(part, "the kind of a device is cpu or gpu");
    }
    if (colon < part.size()) device.index = parse_number(part.substr(colon + 1), part);
  }

  std::string_view text_;
  std::string_view rest_;
};

}  // namespace

std::string_view to_string(DeviceKind kind) { return kind == DeviceKind::kCpu ? "cpu" : "gpu"; }

Device Device::parse(std::string_view text) { return Parser(text).parse(); }

std::string Device::to_string() const {
  std::string text;
  if (!job.empty()) {
    text = "/job:" + job;
    if (task >= 0) text += "/task:" + std::to_string(task);
    text += '/';
  }
  text += lockstep::to_string(kind);
  return text + ":" + std::to_string(index);
}

std::ostream& operator<<(std::ostream& out, const Device& device) { return out << device.to_string(); }

}  // namespace lockstep
