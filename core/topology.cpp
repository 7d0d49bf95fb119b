// core/topology.cpp - which devices there are, which memories they compute in, and how fast both are.
#include "lockstep/core/topology.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace lockstep {
namespace {

constexpr std::uint32_t kMaxMemory = 1U << 20U;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == ','; }

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < line.size();) {
    const auto begin = std::find_if_not(line.begin() + static_cast<std::ptrdiff_t>(at), line.end(), is_space);
    const auto end = std::find_if(begin, line.end(), is_space);
    if (begin != end) words.emplace_back(begin, end);
    at = static_cast<std::size_t>(end - line.begin());
  }
  return words;
}

// Do CPUs of one process, or equal devices, meet here?
bool assumed_same(const Device& a, const Device& b) {
  if (a == b) return true;
  return a.kind == DeviceKind::kCpu && b.kind == DeviceKind::kCpu && a.job == b.job && a.task == b.task;
}

// One statement of the text.
class Statement {
 public:
  Statement(Topology& topology, std::string_view text, std::size_t line)
      : topology_(topology), text_(text), line_(line), words_(words_of(text)) {}

  void read() {
    if (words_.empty()) return;
    if (words_[0] == "link") return read_link();
    if (words_[0] == "worker") return read_worker();
    read_devices();
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw InvalidArgument(str("topology, line ", line_, ", '", text_, "': ", why));
  }

  template <class Number>
  Number number(std::string_view text, std::string_view what) const {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) refuse(str("'", text, "' is no ", what));
    return value;
  }
  double rate(std::string_view text, std::string_view what) const {
    const auto value = number<double>(text, what);
    if (!std::isfinite(value) || value < 0) refuse(str("'", text, "' is no ", what));
    return value;
  }
  MemoryId memory(std::string_view text) const {
    const auto value = number<std::uint32_t>(text, "number of a memory");
    if (value > kMaxMemory) refuse(str("'", text, "' is too large a number for a memory"));
    return {value};
  }
  std::int64_t bytes(std::string_view text) const {
    std::string_view digits = text;
    int shift = 0;
    for (const auto& [unit, bits] : {std::pair("KiB", 10), std::pair("MiB", 20), std::pair("GiB", 30)}) {
      if (!digits.ends_with(unit)) continue;
      digits.remove_suffix(3);
      shift = bits;
      break;
    }
    const auto value = number<std::int64_t>(digits, "number of bytes");
    if (value < 0 || value > (std::int64_t{1} << (62 - shift)))
      refuse(str("'", text, "' is no number of bytes"));
    return value << shift;
  }

  // Splits "key=value"; empty if the word is none.
  static std::optional<std::pair<std::string_view, std::string_view>> option(std::string_view word) {
    const std::size_t at = word.find('=');
    if (at == std::string_view::npos) return std::nullopt;
    return std::pair(word.substr(0, at), word.substr(at + 1));
  }

  void read_devices() {
    std::vector<Device> devices;
    DeviceFacts common;
    std::optional<MemoryId> given;
    for (const std::string_view word : words_) {
      const auto found = option(word);
      if (!found) {
        if (common.card != -1 || given || common.flops > 0 || common.bytes_per_second > 0 ||
            common.memory_bytes > 0 || !common.kernels.empty() || !common.collectives.empty())
          refuse(str("'", word, "' stands behind a fact: devices come first"));
        devices.push_back(parse_device(word));
        continue;
      }
      const std::string_view key = found->first, value = found->second;
      if (key == "memory") {
        given = memory(value);
      } else if (key == "card") {
        common.card = number<int>(value, "number of a card");
      } else if (key == "bytes") {
        common.memory_bytes = bytes(value);
      } else if (key == "kernels") {
        if (value.empty()) refuse("'kernels=' names no kernel set");
        common.kernels = std::string(value);
      } else if (key == "collectives") {
        if (value.empty()) refuse("'collectives=' names none");
        common.collectives = std::string(value);
      } else if (key == "flops") {
        common.flops = rate(value, "rate");
      } else if (key == "bandwidth") {
        common.bytes_per_second = rate(value, "rate");
      } else {
        refuse(str("there is no fact '", key,
                   "'; there are memory, card, bytes, kernels, collectives, flops and bandwidth"));
      }
    }
    if (devices.empty()) refuse("facts belong to devices: name some before them");
    for (const Device& device : devices) {
      common.device = topology_.own(device);
      common.memory = given ? *given : default_memory(common.device);
      try {
        topology_.add(common);
      } catch (const InvalidArgument& error) {
        refuse(error.message());
      }
    }
  }

  Device parse_device(std::string_view word) const {
    try {
      return Device::parse(word);
    } catch (const InvalidArgument& error) {
      refuse(error.message());
    }
  }

  MemoryId default_memory(const Device& device) const {
    std::uint32_t next = 1;
    for (const DeviceFacts& facts : topology_.devices()) {
      if (facts.device.kind == DeviceKind::kCpu && device.kind == DeviceKind::kCpu &&
          assumed_same(facts.device, device))
        return facts.memory;
      next = std::max(next, facts.memory.value + 1);
    }
    if (device.kind == DeviceKind::kCpu && device.job.empty()) return kHostMemory;
    return {next};
  }

  void read_link() {
    if (words_.size() < 3) refuse("a link needs two memories: link 0 1 latency=1e-5 bandwidth=25e9");
    MemoryLink link{memory(words_[1]), memory(words_[2])};
    for (std::size_t i = 3; i < words_.size(); ++i) {
      const auto found = option(words_[i]);
      if (found && found->first == "latency") {
        link.latency = rate(found->second, "number of seconds");
      } else if (found && found->first == "bandwidth") {
        link.bytes_per_second = rate(found->second, "rate");
      } else {
        refuse(str("'", words_[i], "' is no fact of a link; there are latency and bandwidth"));
      }
    }
    try {
      topology_.add_link(link);
      std::swap(link.from, link.to);
      topology_.add_link(link);
    } catch (const InvalidArgument& error) {
      refuse(error.message());
    }
  }

  void read_worker() {
    if (words_.size() != 2) refuse("expected one name, as in worker /job:worker/task:1");
    const Device device = parse_device(str(words_[1], "/cpu:0"));
    if (device.job.empty()) refuse("expected a job, as in worker /job:worker/task:1");
    if (!topology_.devices().empty()) refuse("the worker comes before the devices");
    topology_.set_worker(device.job, device.task);
  }

  Topology& topology_;
  std::string_view text_;
  std::size_t line_;
  std::vector<std::string_view> words_;
};

std::string number_text(double value) {
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), value).ptr;
  return {std::begin(text), end};
}

}  // namespace

Topology Topology::parse(std::string_view text) {
  Topology topology;
  std::size_t line = 0;
  for (std::size_t at = 0; at <= text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view whole = text.substr(at, end - at);
    whole = whole.substr(0, whole.find('#'));
    for (std::size_t from = 0; from <= whole.size();) {
      const std::size_t to = std::min(whole.find(';', from), whole.size());
      Statement(topology, whole.substr(from, to - from), line + 1).read();
      from = to + 1;
    }
    at = end + 1;
  }
  return topology;
}

namespace {

std::string_view default_kernels(const Device& device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : "";
}

}  // namespace

std::string Topology::to_string() const {
  std::string text;
  if (!job_.empty()) {
    text += "worker /job:" + job_;
    if (task_ >= 0) text += str("/task:", task_);
    text += '\n';
  }
  for (const DeviceFacts& facts : devices_) {
    text += str(facts.device, " memory=", facts.memory.value);
    if (facts.card >= 0) text += str(" card=", facts.card);
    if (facts.memory_bytes > 0) text += str(" bytes=", facts.memory_bytes);
    if (facts.kernels != default_kernels(facts.device)) text += str(" kernels=", facts.kernels);
    if (!facts.collectives.empty()) text += str(" collectives=", facts.collectives);
    if (facts.flops > 0) text += " flops=" + number_text(facts.flops);
    if (facts.bytes_per_second > 0) text += " bandwidth=" + number_text(facts.bytes_per_second);
    text += '\n';
  }
  for (const MemoryLink& link : links_) {
    if (link.to < link.from && this->link(link.to, link.from) != nullptr) continue;  // printed with the other
    text += str("link ", link.from.value, " ", link.to.value);
    if (link.latency > 0) text += " latency=" + number_text(link.latency);
    if (link.bytes_per_second > 0) text += " bandwidth=" + number_text(link.bytes_per_second);
    text += '\n';
  }
  return text;
}

void Topology::add(DeviceFacts facts) {
  facts.device = own(std::move(facts.device));
  if (find(facts.device) != nullptr) throw InvalidArgument(str("device ", facts.device, " is listed twice"));
  if (facts.device.kind == DeviceKind::kCpu && facts.device.job.empty() && facts.memory != kHostMemory)
    throw InvalidArgument(str(facts.device,
                              " is a CPU of this process, which computes in memory 0, got memory ",
                              facts.memory.value));
  if (facts.kernels.empty()) facts.kernels = default_kernels(facts.device);
  devices_.push_back(std::move(facts));
}

void Topology::add_link(const MemoryLink& link) {
  if (link.from == link.to)
    throw InvalidArgument(str("memory ", link.from.value, " needs no link to itself"));
  if (this->link(link.from, link.to) != nullptr)
    throw InvalidArgument(
        str("the link between memories ", link.from.value, " and ", link.to.value, " is listed twice"));
  links_.push_back(link);
}

void Topology::set_worker(const std::string& job, int task) {
  job_ = job;
  task_ = task;
}

Device Topology::own(Device device) const {
  if (!job_.empty() && device.job == job_ && device.task == task_) {
    device.job.clear();
    device.task = -1;
  }
  return device;
}

const DeviceFacts* Topology::find(const Device& device) const {
  const Device wanted = own(device);
  const auto found = std::ranges::find(devices_, wanted, &DeviceFacts::device);
  return found == devices_.end() ? nullptr : &*found;
}

Decision Topology::has_device(const Device& device) const {
  if (find(device) != nullptr) return Decision::yes();
  std::string list;
  for (const DeviceFacts& facts : devices_) list += str(list.empty() ? "" : ", ", facts.device);
  return Decision::no(str("there is no device ", device, "; there ", devices_.size() == 1 ? "is " : "are ",
                          list.empty() ? "none" : list));
}

const DeviceFacts& Topology::facts(const Device& device) const {
  const DeviceFacts* found = find(device);
  if (found == nullptr) throw NotFound(has_device(device).reason());
  return *found;
}

bool Topology::same_memory(const Device& a, const Device& b) const {
  const DeviceFacts *left = find(a), *right = find(b);
  if (left != nullptr && right != nullptr) return left->memory == right->memory;
  return assumed_same(own(a), own(b));
}

const MemoryLink* Topology::link(MemoryId from, MemoryId to) const {
  const auto found = std::ranges::find_if(
      links_, [&](const MemoryLink& link) { return link.from == from && link.to == to; });
  return found == links_.end() ? nullptr : &*found;
}

}  // namespace lockstep
