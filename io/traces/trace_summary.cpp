// io/traces/trace_summary.cpp - where the time of traced runs went.
#include "lockstep/io/traces/trace_summary.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/traces/internal/trace_edges.h"

namespace lockstep {

namespace {

using internal::TraceEdges;

// A set of moments: intervals in order that neither touch nor overlap.
class Moments {
 public:
  using Interval = std::pair<std::int64_t, std::int64_t>;

  explicit Moments(std::vector<Interval> intervals) {
    std::ranges::sort(intervals);
    for (const Interval& next : intervals) {
      if (intervals_.empty() || next.first > intervals_.back().second) {
        intervals_.push_back(next);
      } else {
        intervals_.back().second = std::max(intervals_.back().second, next.second);
      }
    }
  }

  std::int64_t length() const {
    std::int64_t sum = 0;
    for (const auto& [begin, end] : intervals_) sum += end - begin;
    return sum;
  }

  // The time that both sets have in common.
  std::int64_t length_with(const Moments& other) const {
    std::int64_t sum = 0;
    auto theirs = other.intervals_.begin();
    for (const auto& [begin, end] : intervals_) {
      while (theirs != other.intervals_.end() && theirs->second <= begin) ++theirs;
      for (auto at = theirs; at != other.intervals_.end() && at->first < end; ++at)
        sum += std::min(end, at->second) - std::max(begin, at->first);
    }
    return sum;
  }

 private:
  std::vector<Interval> intervals_;
};

class Summarizer {
 public:
  Summarizer(const Trace& trace, std::span<const DeviceRates> rates) : trace_(trace), edges_(trace) {
    out_.rates.assign(rates.begin(), rates.end());
  }

  TraceSummary run() {
    out_.dropped = trace_.dropped;
    std::vector<Moments::Interval> runs;
    for (const TracedRun& run : trace_.runs) {
      if (!run.complete) continue;
      runs_.emplace(run.run, &run);
      runs.emplace_back(run.begin, run.end);
    }
    for (std::uint32_t i = 0; i < trace_.calls.size(); ++i) {
      if (runs_.contains(trace_.calls[i].run)) calls_.push_back(i);
    }
    std::ranges::stable_sort(calls_, {}, [&](std::uint32_t i) {
      const TracedCall& call = trace_.calls[i];
      return std::tuple(call.track, call.begin, call.depth);
    });
    out_.runs = runs_.size();
    count_left_out();
    const Moments wall(std::move(runs));
    out_.wall = wall.length();
    add_up(own_times());
    overlap();
    idle(wall);
    for (const TracedWait& wait : trace_.waits) {
      if (runs_.contains(wait.run)) out_.lock_wait += wait.end - wait.begin;
    }
    critical_path();
    return std::move(out_);
  }

 private:
  void count_left_out() {
    std::unordered_set<std::uint64_t> others;
    for (const TracedRun& run : trace_.runs) {
      if (!run.complete) others.insert(run.run);
    }
    for (const TracedCall& call : trace_.calls) {
      if (!runs_.contains(call.run)) others.insert(call.run);
    }
    out_.runs_left_out = others.size();
  }

  // Whether `open`, which comes before `call` in the order of calls_, does not enclose it.
  static bool is_over(const TracedCall& open, const TracedCall& call) {
    return open.track != call.track || open.depth >= call.depth || open.end <= call.begin;
  }

  // The time of each call (in the order of calls_) without the calls inside it on its thread.
  std::vector<std::int64_t> own_times() const {
    std::vector<std::int64_t> own(calls_.size());
    std::vector<std::size_t> around;  // the calls that enclose the current one
    for (std::size_t k = 0; k < calls_.size(); ++k) {
      const TracedCall& call = trace_.calls[calls_[k]];
      while (!around.empty() && is_over(trace_.calls[calls_[around.back()]], call)) around.pop_back();
      own[k] = call.end - call.begin;
      if (!around.empty()) own[around.back()] -= own[k];
      around.push_back(k);
    }
    return own;
  }

  void add_up(const std::vector<std::int64_t>& own) {
    std::map<std::string, Sum> ops;
    std::map<std::pair<std::uint32_t, bool>, Sum> nodes;  // and whether values are copied on its behalf
    std::map<int, Sum> replicas;
    for (std::size_t k = 0; k < calls_.size(); ++k) {
      const TracedCall& call = trace_.calls[calls_[k]];
      for (Sum* sum : {&ops[op_of(call)], &nodes[{call.node, call.copies}], &replicas[call.replica]}) {
        sum->row.time += own[k];
        ++sum->row.calls;
      }
      out_.busy += own[k];
    }
    each_execution([&](std::span<const std::uint32_t> calls) {
      const TracedCall& call = trace_.calls[calls[0]];
      const Sum work = work_of(calls);
      if (work.row.bytes == 0 && work.row.multiply_adds == 0) return;
      ops[op_of(call)].add(work);
      nodes[{call.node, call.copies}].add(work);
      if (computes(call)) replicas[call.replica].add(work);
    });
    for (auto& [name, sum] : ops) out_.by_op.push_back(sum.finish(name));
    for (auto& [key, sum] : nodes) {
      const TracedNode& node = trace_.nodes[key.first];
      out_.by_node.push_back(sum.finish(node.name));
      out_.by_node.back().op = key.second ? kCopied : node.op;
    }
    for (std::vector<TraceSummary::Row>* rows : {&out_.by_op, &out_.by_node})
      std::ranges::stable_sort(*rows, std::ranges::greater(), &TraceSummary::Row::time);
    for (auto& [replica, sum] : replicas)
      out_.by_replica.push_back(sum.finish(replica < 0 ? "all replicas" : str("replica ", replica)));
  }

  // Values that are copied on behalf of nodes count as what the op of that name does.
  static constexpr const char* kCopied = "copy";
  std::string op_of(const TracedCall& call) const {
    return call.copies ? kCopied : trace_.nodes[call.node].op;
  }

  // A row, and how long its work takes at least on the devices that did it.
  struct Sum {
    TraceSummary::Row row;
    double copy_seconds = 0, product_seconds = 0;
    bool copy_known = true, product_known = true;

    void add(const Sum& other) {
      row.bytes += other.row.bytes;
      row.multiply_adds += other.row.multiply_adds;
      row.elapsed += other.row.elapsed;
      copy_seconds += other.copy_seconds;
      product_seconds += other.product_seconds;
      copy_known = copy_known && other.copy_known;
      product_known = product_known && other.product_known;
    }
    TraceSummary::Row finish(std::string name) {
      row.name = std::move(name);
      const double seconds = 1e-9 * static_cast<double>(row.elapsed);
      if (copy_known && seconds > 0) row.copy_share = copy_seconds / seconds;
      if (product_known && seconds > 0) row.product_share = product_seconds / seconds;
      return std::move(row);
    }
  };

  // Calls `found` with the calls of each node in each run and for each replica, and with those that copy for it.
  template <class Found>
  void each_execution(const Found& found) const {
    std::vector<std::uint32_t> order = calls_;
    const auto key = [&](std::uint32_t i) {
      const TracedCall& call = trace_.calls[i];
      return std::tuple(call.node, call.copies, call.run, call.replica);
    };
    std::ranges::sort(order, {}, key);
    for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
      while (end < order.size() && key(order[end]) == key(order[begin])) ++end;
      found(std::span<const std::uint32_t>(order).subspan(begin, end - begin));
    }
  }

  Sum work_of(std::span<const std::uint32_t> calls) const {
    Sum sum;
    std::vector<Moments::Interval> times;
    for (const std::uint32_t i : calls) {
      const TracedCall& call = trace_.calls[i];
      times.emplace_back(call.begin, call.end);
      if (call.shard != 0) continue;  // a call's work is that of all shards together
      sum.row.bytes += call.bytes_moved;
      sum.row.multiply_adds += call.multiply_adds;
      const auto rates = std::ranges::find(out_.rates, device_of_call(trace_, call), &DeviceRates::device);
      double copied = 0, multiplied = 0;
      if (rates != out_.rates.end()) {
        if (computes(call)) copied = rates->bytes_per_second;
        const auto product =
            std::ranges::find(rates->products, trace_.nodes[call.node].dtype, &DeviceRates::Product::dtype);
        if (product != rates->products.end()) multiplied = product->flops_per_second;
      }
      add_least(call.bytes_moved, copied, sum.copy_seconds, sum.copy_known);
      add_least(2 * call.multiply_adds, multiplied, sum.product_seconds, sum.product_known);
    }
    sum.row.elapsed = Moments(std::move(times)).length();
    return sum;
  }

  // Copies from and to the host, and collectives, have other limits than what a device's memory gives.
  bool computes(const TracedCall& call) const {
    return trace_.tracks[call.track].stream == StreamRole::kCompute;
  }

  static void add_least(double work, double rate, double& seconds, bool& known) {
    if (work > 0 && rate > 0) seconds += work / rate;
    known = known && (work == 0 || rate > 0);
  }

  // A compute node whose calls enclose others does not count by itself: the inner calls do.
  bool is_leaf(const TracedCall& call) const {
    return trace_.nodes[call.node].work != TracedWork::kCompute || !has_inner_.contains(call.node);
  }

  void overlap() {
    find_inner();
    std::vector<Moments::Interval> moved, computed;
    for (const std::uint32_t i : calls_) {
      const TracedCall& call = trace_.calls[i];
      if (!is_leaf(call)) continue;
      const bool computes = trace_.nodes[call.node].work == TracedWork::kCompute;
      (computes ? computed : moved).emplace_back(call.begin, call.end);
    }
    const Moments communication(std::move(moved));
    out_.communication = communication.length();
    out_.overlapped = communication.length_with(Moments(std::move(computed)));
  }

  // Finds the nodes whose calls enclose other calls.
  void find_inner() {
    std::vector<std::uint32_t> around;
    for (const std::uint32_t i : calls_) {
      const TracedCall& call = trace_.calls[i];
      while (!around.empty() && is_over(trace_.calls[around.back()], call)) around.pop_back();
      if (!around.empty()) has_inner_.insert(trace_.calls[around.back()].node);
      around.push_back(i);
    }
  }

  void idle(const Moments& wall) {
    std::vector<std::vector<Moments::Interval>> busy(trace_.tracks.size());
    for (const std::uint32_t i : calls_)
      busy[trace_.calls[i].track].emplace_back(trace_.calls[i].begin, trace_.calls[i].end);
    for (std::size_t t = 0; t < busy.size(); ++t) {
      const std::int64_t time = Moments(std::move(busy[t])).length_with(wall);
      out_.workers.push_back({trace_.tracks[t].name, time, out_.wall - time});
      if (!trace_.tracks[t].device.empty()) ++out_.streams;
    }
  }

  void critical_path() {
    if (runs_.empty()) return;
    std::vector<const TracedRun*> by_length;
    for (const auto& [number, run] : runs_) by_length.push_back(run);
    std::ranges::sort(by_length, {},
                      [](const TracedRun* run) { return std::pair(run->end - run->begin, run->run); });
    const TracedRun& run = *by_length[(by_length.size() - 1) / 2];
    out_.path_run = run.run;
    out_.path_length = run.end - run.begin;

    // Only calls of the step's own graph: a call in a region is part of the call around it. In calls_ they
    // are ordered by track, then by begin.
    std::unordered_map<std::uint32_t, std::uint32_t> before;  // call -> the call before it on its thread
    std::uint32_t previous = 0, at = 0;
    bool found = false;
    for (const std::uint32_t i : calls_) {
      const TracedCall& call = trace_.calls[i];
      if (call.run != run.run || trace_.nodes[call.node].in_region) continue;
      if (found && trace_.calls[previous].track == call.track) before.emplace(i, previous);
      if (!found || call.end > trace_.calls[at].end) at = i;
      previous = i;
      found = true;
    }
    if (!found) return;
    for (;;) {
      const TracedCall& call = trace_.calls[at];
      const TracedCall* cause = nullptr;
      const auto consider = [&](const TracedCall& other) {
        if (other.end > call.begin || &other == &call) return;
        if (cause != nullptr && other.end <= cause->end) return;
        cause = &other;
      };
      edges_.each_before(call,
                         [&](const TraceEdges::Turn& turn, bool) { consider(trace_.calls[turn.last]); });
      if (const TracedCall* const shard = edges_.shard_before(call)) consider(*shard);
      if (const auto neighbour = before.find(at); neighbour != before.end())
        consider(trace_.calls[neighbour->second]);
      const TracedNode& node = trace_.nodes[call.node];
      const std::int64_t time = call.end - call.begin;
      out_.path_time += time;
      out_.critical_path.push_back({call.node, node.name, node.op, node.site, call.replica, call.shard,
                                    call.shards, time,
                                    call.begin - (cause == nullptr ? run.begin : cause->end)});
      // Calls without length could hold up each other: such a circle ends here.
      if (cause == nullptr || out_.critical_path.size() > calls_.size()) break;
      at = static_cast<std::uint32_t>(cause - trace_.calls.data());
    }
    std::ranges::reverse(out_.critical_path);
  }

  const Trace& trace_;
  TraceEdges edges_;
  std::unordered_map<std::uint64_t, const TracedRun*> runs_;  // complete ones
  std::vector<std::uint32_t> calls_;                          // of complete runs: by track, then by begin
  std::unordered_set<std::uint32_t> has_inner_;
  TraceSummary out_;
};

// --- text

std::string padded(const std::string& text, std::size_t width) {
  return text.size() < width ? text + std::string(width - text.size(), ' ') : text;
}

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[160];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

// In the largest unit that the duration reaches.
std::string duration(std::int64_t ns) {
  const auto time = static_cast<double>(ns);
  if (ns < 1'000) return format("%10.0f ns", time);
  if (ns < 1'000'000) return format("%10.3f us", time * 1e-3);
  if (ns < 1'000'000'000) return format("%10.3f ms", time * 1e-6);
  return format("%10.3f s ", time * 1e-9);
}

std::string percent(std::int64_t part, std::int64_t whole) {
  return format("%5.1f%%", whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// In the largest unit that the number reaches; of nothing a dash.
std::string bytes_text(double bytes) {
  if (bytes <= 0) return format("%11s", "-");
  if (bytes < 1e3) return format("%8.0f B ", bytes);
  if (bytes < 1e6) return format("%8.2f kB", bytes * 1e-3);
  if (bytes < 1e9) return format("%8.2f MB", bytes * 1e-6);
  if (bytes < 1e12) return format("%8.2f GB", bytes * 1e-9);
  return format("%8.2f TB", bytes * 1e-12);
}

// A dash in place of what is not known.
std::string number_or_dash(double number, int width, int decimals, const char* unit = "") {
  if (!(number > 0)) return format("%*s", width, "-");
  return format("%*.*f%s", width - static_cast<int>(std::char_traits<char>::length(unit)), decimals, number,
                unit);
}

std::string rows(const std::string& title, const std::vector<TraceSummary::Row>& rows,
                 const TraceSummary& summary, std::size_t max_rows) {
  const bool shares = !summary.rates.empty();
  std::string text =
      str("\n", padded(title, 26), format("%13s%8s%9s%11s%10s", "time", "share", "calls", "bytes", "GB/s"),
          shares ? format("%9s", "of copy") : std::string(), format("%11s", "GFLOP/s"),
          shares ? format("%9s", "of peak") : std::string(), "\n");
  for (std::size_t i = 0; i < std::min(rows.size(), max_rows); ++i) {
    const TraceSummary::Row& row = rows[i];
    const auto elapsed = static_cast<double>(row.elapsed);
    text += str("  ", padded(row.op.empty() ? row.name : row.op, 24), duration(row.time), "  ",
                percent(row.time, summary.busy), format("%9zu", row.calls), bytes_text(row.bytes),
                number_or_dash(elapsed > 0 ? row.bytes / elapsed : 0, 10, 2));
    if (shares) text += number_or_dash(100 * row.copy_share, 9, 1, "%");
    text += number_or_dash(elapsed > 0 ? 2 * row.multiply_adds / elapsed : 0, 11, 1);
    if (shares) text += number_or_dash(100 * row.product_share, 9, 1, "%");
    text += row.op.empty() ? "\n" : str("  ", row.name, "\n");
  }
  if (rows.size() > max_rows) text += str("  ... and ", rows.size() - max_rows, " more\n");
  return text;
}

std::string rates_text(const std::vector<DeviceRates>& rates) {
  std::string text;
  for (const DeviceRates& device : rates) {
    std::string reached;
    const auto add = [&](double rate, const char* unit, const std::string& in) {
      if (rate > 0)
        reached += str(reached.empty() ? "" : ", ", format("%.1f ", rate * 1e-9), unit, " in ", in);
    };
    add(device.bytes_per_second, "GB/s", "a copy");
    for (const DeviceRates::Product& product : device.products)
      add(product.flops_per_second, "GFLOP/s",
          str("a product of ", product.dtype, product.tf32 ? " as tf32" : ""));
    text += str(device.device, " reaches ", reached.empty() ? "what could not be measured" : reached, "\n");
  }
  return text;
}

// Which one of its node's calls it is: " (replica 1, shard 2 of 4)"; empty if there is only one.
std::string which_call(const TraceSummary::PathCall& call) {
  std::string text;
  if (call.replica >= 0) text = str("replica ", call.replica);
  if (call.shards > 1 || call.shard == call.shards) {
    if (!text.empty()) text += ", ";
    text += call.shard == call.shards ? str("end of ", call.shards, " shards")
                                      : str("shard ", call.shard + 1, " of ", call.shards);
  }
  return text.empty() ? text : str(" (", text, ")");
}

std::string path(const TraceSummary& summary, std::size_t max_rows) {
  std::string text = str("\ncritical path of run ", summary.path_run, ":", duration(summary.path_time),
                         " in ", summary.critical_path.size(), " calls of", duration(summary.path_length),
                         " (", percent(summary.path_time, summary.path_length), ")\n");
  // The longest, in the order in which they ran.
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < summary.critical_path.size(); ++i) shown.push_back(i);
  std::ranges::stable_sort(shown, std::ranges::greater(), [&](std::size_t i) {
    return summary.critical_path[i].time + summary.critical_path[i].gap;
  });
  if (shown.size() > max_rows) shown.resize(max_rows);
  std::ranges::sort(shown);
  for (const std::size_t i : shown) {
    const TraceSummary::PathCall& call = summary.critical_path[i];
    text +=
        str("  ", padded(call.op, 24), duration(call.time), " after", duration(call.gap), "  ", call.name);
    text += which_call(call);
    if (!call.site.empty()) text += str(" ", call.site);
    text += "\n";
  }
  if (summary.critical_path.size() > shown.size())
    text += str("  ... and ", summary.critical_path.size() - shown.size(),
                " shorter ones between and around them\n");
  return text;
}

}  // namespace

TraceSummary summarize(const Trace& trace, std::span<const DeviceRates> rates) {
  return Summarizer(trace, rates).run();
}

std::string to_text(const TraceSummary& summary, const TraceTextOptions& options) {
  std::string text =
      str(summary.runs, " runs in", duration(summary.wall), ", calls took", duration(summary.busy), " on ",
          summary.workers.size() - summary.streams, " threads");
  text += summary.streams > 0 ? str(" and ", counted(summary.streams, "stream"), "\n") : "\n";
  if (summary.runs_left_out > 0) text += str(summary.runs_left_out, " runs are not all there and left out\n");
  if (summary.dropped > 0)
    text +=
        str(summary.dropped, " events made room for later ones: record with a larger events_per_thread\n");
  text += rates_text(summary.rates);
  text += rows("time by op", summary.by_op, summary, options.max_rows);
  if (options.max_nodes > 0) text += rows("time by node", summary.by_node, summary, options.max_nodes);
  text += rows("time by replica", summary.by_replica, summary, summary.by_replica.size());
  if (!summary.critical_path.empty()) text += path(summary, options.max_rows);
  text += str("\ncommunication:", duration(summary.communication), ", of which", duration(summary.overlapped),
              " (", percent(summary.overlapped, summary.communication), ") while something was computed\n");
  if (summary.lock_wait > 0)
    text += str("waiting for variables that others held:", duration(summary.lock_wait), "\n");
  text += "\nidle while runs were under way\n";
  for (const TraceSummary::Worker& worker : summary.workers) {
    text += str("  ", padded(worker.name, 24), duration(worker.idle), "  ",
                percent(worker.idle, summary.wall), "\n");
  }
  return text;
}

}  // namespace lockstep
