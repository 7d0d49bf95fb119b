#include "support/profile.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <utility>

#include <time.h>

#include "lockstep/core/error.h"

namespace lockstep::bench {
namespace {

// CPU time of this thread: what others take of the core does not count.
std::int64_t nanoseconds_now() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

// A thread runs one kernel call at a time.
thread_local std::int64_t begun = 0;

struct Sum {
  double seconds = 0;
  std::int64_t calls = 0;
  std::size_t nodes = 0;
};

}  // namespace

void Profile::on_node_begin(const NodeEvent&) noexcept { begun = nanoseconds_now(); }

void Profile::on_node_end(const NodeEvent& event) noexcept {
  Entry& entry = entries_[event.node.id().index()];
  entry.nanoseconds.fetch_add(nanoseconds_now() - begun, std::memory_order_relaxed);
  entry.calls.fetch_add(1, std::memory_order_relaxed);
}

void Profile::on_span(const SpanEvent& event) noexcept {
  Entry& entry = entries_[event.node.id().index()];
  entry.nanoseconds.fetch_add(
      std::chrono::duration_cast<std::chrono::nanoseconds>(event.end - event.begin).count(),
      std::memory_order_relaxed);
  entry.calls.fetch_add(1, std::memory_order_relaxed);
}

std::string Profile::describe(const Node& node) const {
  std::string text(node.op().name);
  text += "(";
  for (std::size_t i = 0; i < node.inputs().size(); ++i) {
    if (i > 0) text += ", ";
    text += str(graph_.spec(node.inputs()[i]).shape);
  }
  for (const Attribute& attribute : node.attributes()) {
    const bool* flag = std::get_if<bool>(&attribute.value);
    if (flag != nullptr && *flag) text += str(", ", attribute.name);
  }
  text += ")";
  for (const TensorSpec& output : node.outputs()) text += str(" -> ", output.shape);
  return text;
}

std::string Profile::table(double seconds, double cpu_seconds, std::size_t steps) const {
  const double per_step = 1e-9 / static_cast<double>(steps);
  std::map<std::string, Sum> rows;
  double busy = 0;
  std::int64_t calls = 0;
  for (std::size_t n = 0; n < entries_.size(); ++n) {
    const std::int64_t made = entries_[n].calls.load();
    if (made == 0) continue;
    const double took = per_step * static_cast<double>(entries_[n].nanoseconds.load());
    Sum& row = rows[describe(graph_.node(NodeId(static_cast<std::uint32_t>(n))))];
    row.seconds += took;
    row.calls += made;
    ++row.nodes;
    busy += took;
    calls += made;
  }
  std::vector<std::pair<std::string, Sum>> sorted(rows.begin(), rows.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });

  const double step = cpu_seconds / static_cast<double>(steps);
  std::string out;
  char line[256];
  const auto add = [&](double took, std::size_t nodes, double made, const char* what) {
    std::snprintf(line, sizeof line, "%10.1f us %5.1f%% %5zu nodes %7.1f calls  %s\n", took * 1e6,
                  100 * took / step, nodes, made, what);
    out += line;
  };
  std::snprintf(line, sizeof line, "%10.1f us a step, %.1f us of CPU time\n",
                seconds / static_cast<double>(steps) * 1e6, step * 1e6);
  out += line;
  for (const auto& [what, sum] : sorted) {
    add(sum.seconds, sum.nodes, static_cast<double>(sum.calls) / static_cast<double>(steps), what.c_str());
  }
  add(step - busy, 0, static_cast<double>(calls) / static_cast<double>(steps),
      "outside of kernels: scheduling, waiting awake, committing, this table's clock");
  return out;
}

}  // namespace lockstep::bench
