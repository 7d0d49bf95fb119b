// io/traces/trace_summary.cpp - where the time of traced runs went.
#include "lockstep/io/traces/trace_summary.h"

#include <algorithm>
#include <cstdio>
#include <map>
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
  explicit Summarizer(const Trace& trace) : trace_(trace), edges_(trace) {}

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
    std::map<std::string, TraceSummary::Row> ops;
    std::map<int, TraceSummary::Row> replicas;
    for (std::size_t k = 0; k < calls_.size(); ++k) {
      const TracedCall& call = trace_.calls[calls_[k]];
      TraceSummary::Row& op = ops[trace_.nodes[call.node].op];
      TraceSummary::Row& replica = replicas[call.replica];
      for (TraceSummary::Row* row : {&op, &replica}) {
        row->time += own[k];
        ++row->calls;
        // A call's bytes are those of all shards together: count them with the first shard.
        if (call.shard == 0) row->bytes += call.bytes_read + call.bytes_written;
      }
      out_.busy += own[k];
    }
    for (auto& [name, row] : ops) {
      row.name = name;
      out_.by_op.push_back(std::move(row));
    }
    std::ranges::stable_sort(out_.by_op, std::ranges::greater(), &TraceSummary::Row::time);
    for (auto& [replica, row] : replicas) {
      row.name = replica < 0 ? "all replicas" : str("replica ", replica);
      out_.by_replica.push_back(std::move(row));
    }
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

std::string rows(const std::string& title, const std::vector<TraceSummary::Row>& rows, std::int64_t whole,
                 std::size_t max_rows) {
  std::string text = str("\n", title, "\n");
  for (std::size_t i = 0; i < std::min(rows.size(), max_rows); ++i) {
    const TraceSummary::Row& row = rows[i];
    const double gigabytes =
        row.time == 0 ? 0 : static_cast<double>(row.bytes) / static_cast<double>(row.time);
    text += str("  ", padded(row.name, 24), duration(row.time), "  ", percent(row.time, whole),
                format("  %8zu calls  %7.2f GB/s\n", row.calls, gigabytes));
  }
  if (rows.size() > max_rows) text += str("  ... and ", rows.size() - max_rows, " more\n");
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

TraceSummary summarize(const Trace& trace) { return Summarizer(trace).run(); }

std::string to_text(const TraceSummary& summary, const TraceTextOptions& options) {
  std::string text =
      str(summary.runs, " runs in", duration(summary.wall), ", calls took", duration(summary.busy), " on ",
          summary.workers.size() - summary.streams, " threads");
  text += summary.streams > 0 ? str(" and ", counted(summary.streams, "stream"), "\n") : "\n";
  if (summary.runs_left_out > 0) text += str(summary.runs_left_out, " runs are not all there and left out\n");
  if (summary.dropped > 0)
    text +=
        str(summary.dropped, " events made room for later ones: record with a larger events_per_thread\n");
  text += rows("time by op", summary.by_op, summary.busy, options.max_rows);
  text += rows("time by replica", summary.by_replica, summary.busy, summary.by_replica.size());
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
