#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/files/internal/json_text.h"
#include "lockstep/io/traces/internal/trace_edges.h"
#include "lockstep/io/traces/trace.h"

namespace lockstep {

namespace {

using internal::json_quoted;
using internal::TraceEdges;

std::string_view category(TracedWork work) {
  switch (work) {
    case TracedWork::kCompute: return "compute";
    case TracedWork::kCollective: return "collective";
    case TracedWork::kCopy: return "copy";
  }
  return "compute";
}

// The format counts in microseconds, with decimals.
std::string microseconds(std::int64_t ns) {
  const std::int64_t rest = ns % 1000;
  return str(ns / 1000, rest < 10 ? ".00" : rest < 100 ? ".0" : ".", rest);
}

class ChromeWriter {
 public:
  ChromeWriter(const Trace& trace, const ChromeTraceOptions& options)
      : trace_(trace), options_(options), edges_(trace) {
    for (const TracedRun& run : trace.runs) runs_.emplace(run.run, &run);
  }

  std::string write() {
    text_ = str("{\"displayTimeUnit\": \"ns\", \"otherData\": {\"dropped_events\": ", trace_.dropped,
                "}, \"traceEvents\": [");
    name_tracks();
    for (const TracedRun& run : trace_.runs) write_run(run);
    for (const TracedWait& wait : trace_.waits) write_wait(wait);
    for (const TracedCall& call : trace_.calls) write_call(call);
    write_gaps();
    if (options_.flows) write_flows();
    write_live_bytes();
    text_ += "\n]}\n";
    return std::move(text_);
  }

 private:
  // One event: its phase, track and time, then `rest`, which starts with a comma.
  void event(char phase, std::uint32_t track, std::int64_t at, std::string_view rest) {
    text_ += str(first_ ? "\n" : ",\n", "{\"ph\": \"", phase, "\", \"pid\": 1, \"tid\": ", track + 1,
                 ", \"ts\": ", microseconds(at), rest, "}");
    first_ = false;
  }
  void slice(std::uint32_t track, std::int64_t begin, std::int64_t end, const std::string& name,
             std::string_view cat, const std::string& args) {
    event('X', track, begin,
          str(", \"dur\": ", microseconds(end - begin), ", \"name\": ", json_quoted(name), ", \"cat\": \"",
              cat, "\", \"args\": {", args, "}"));
  }

  void name_tracks() {
    if (!trace_.tracks.empty()) event('M', 0, 0, R"(, "name": "process_name", "args": {"name": "lockstep"})");
    for (std::uint32_t t = 0; t < trace_.tracks.size(); ++t) {
      const TraceTrack& track = trace_.tracks[t];
      event('M', t, 0,
            str(", \"name\": \"thread_name\", \"args\": {\"name\": ", json_quoted(track.name), "}"));
      event('M', t, 0,
            str(", \"name\": \"thread_sort_index\", \"args\": {\"sort_index\": ", track.worker + 1, "}"));
    }
  }

  void write_run(const TracedRun& run) {
    const std::string name = str("run ", run.run);
    slice(run.track, run.begin, run.end, name, "run",
          str("\"step\": ", run.step, ", \"program\": ", run.program, ", \"planned_bytes\": ",
              run.planned_bytes, ", \"complete\": ", run.complete ? "true" : "false"));
    // Lines through all tracks, where the run begins and ends.
    for (const auto& [at, what] : {std::pair(run.begin, " begins"), std::pair(run.end, " ends")})
      event('i', run.track, at,
            str(", \"s\": \"p\", \"name\": ", json_quoted(name + what), ", \"cat\": \"run\""));
  }

  void write_wait(const TracedWait& wait) {
    const std::string what = wait.variable.empty()  ? "wait for the random step"
                             : wait.variable == "*" ? "wait for a checkpoint"
                                                    : str("wait for variable ", wait.variable);
    slice(wait.track, wait.begin, wait.end, what, "wait",
          str("\"run\": ", wait.run, ", \"variable\": ", json_quoted(wait.variable)));
  }

  // What a call or a wait for one says of its node.
  std::string describe(const TracedNode& node, int replica) const {
    std::string args = str("\"op\": ", json_quoted(node.op));
    if (replica >= 0) args += str(", \"replica\": ", replica);
    if (!node.device.empty()) args += str(", \"device\": ", json_quoted(node.device));
    if (!node.site.empty()) args += str(", \"site\": ", json_quoted(node.site));
    return args;
  }

  void write_call(const TracedCall& call) {
    const TracedNode& node = trace_.nodes[call.node];
    std::string args = describe(node, call.replica);
    args += str(", \"run\": ", call.run, ", \"bytes_read\": ", call.bytes_read,
                ", \"bytes_written\": ", call.bytes_written);
    if (call.shard == call.shards) args += R"(, "shard": "finish")";
    if (call.shards > 1 && call.shard < call.shards)
      args += str(", \"shard\": \"", call.shard + 1, " of ", call.shards, "\"");
    slice(call.track, call.begin, call.end, node.name, category(node.work), args);
  }

  // Gaps on a track that ended when a value came which the next call there reads.
  void write_gaps() {
    struct Slice {
      std::int64_t begin, end;
      std::uint32_t depth;
      const TracedCall* call;  // null: a run or a wait
    };
    std::vector<std::vector<Slice>> tracks(trace_.tracks.size());
    for (const TracedRun& run : trace_.runs)
      tracks[run.track].push_back({run.begin, run.end, run.depth, nullptr});
    for (const TracedWait& wait : trace_.waits)
      tracks[wait.track].push_back({wait.begin, wait.end, wait.depth, nullptr});
    for (const TracedCall& call : trace_.calls)
      tracks[call.track].push_back({call.begin, call.end, call.depth, &call});
    for (std::vector<Slice>& slices : tracks) {
      std::ranges::stable_sort(slices, {}, [](const Slice& s) { return std::pair(s.begin, s.depth); });
      std::vector<std::int64_t> free_since = {0};  // by depth
      for (const Slice& here : slices) {
        free_since.resize(here.depth + 1, here.begin);
        if (here.call != nullptr) write_gap(*here.call, free_since[here.depth]);
        free_since[here.depth] = here.end;
        free_since.push_back(here.begin);  // of what is inside
      }
    }
  }

  void write_gap(const TracedCall& call, std::int64_t free_since) {
    const auto run = runs_.find(call.run);
    if (run == runs_.end()) return;  // still under way, or forgotten
    const std::int64_t begin = std::max(free_since, run->second->begin);
    if (call.begin - begin < options_.min_wait_ns) return;
    const TraceEdges::Turn* last = nullptr;
    edges_.each_before(call, [&](const TraceEdges::Turn& turn, bool) {
      if (last == nullptr || turn.end > last->end) last = &turn;
    });
    if (last == nullptr || last->end - begin < options_.min_wait_ns) return;
    const TracedNode& node = trace_.nodes[last->node];
    slice(call.track, begin, last->end, str("wait for ", node.name), "wait",
          str(describe(node, last->replica), ", \"run\": ", call.run,
              ", \"before\": ", json_quoted(trace_.nodes[call.node].name)));
  }

  // One arrow for each value that a turn of a node reads, from the last call of the turn that made it to the first.
  void write_flows() {
    std::uint64_t id = 0;
    for (const TraceEdges::Turn& turn : edges_.turns()) {
      const TracedCall& to = trace_.calls[turn.first];
      edges_.each_before(to, [&](const TraceEdges::Turn& source, bool is_data) {
        if (!is_data) return;
        const TracedCall& from = trace_.calls[source.last];
        // An arrow belongs to the slice that its end lies in: the last nanosecond still does.
        const std::string rest = str(", \"id\": ", ++id, R"(, "name": "data", "cat": "data")");
        event('s', from.track, std::max(from.begin, from.end - 1), rest);
        event('f', to.track, to.begin, rest + R"(, "bp": "e")");
      });
    }
  }

  void write_live_bytes() {
    std::vector<std::pair<std::int64_t, std::int64_t>> changes;  // when, by how many bytes
    for (const auto& [turn, end] : lives()) {
      const std::int64_t bytes = trace_.calls[turn->first].bytes_written;
      changes.emplace_back(turn->begin, bytes);
      changes.emplace_back(end, -bytes);
    }
    std::ranges::stable_sort(changes, {}, [](const auto& change) { return change.first; });
    std::int64_t alive = 0;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      alive += changes[i].second;
      if (i + 1 < changes.size() && changes[i + 1].first == changes[i].first) continue;
      event('C', 0, changes[i].first, str(R"(, "name": "live memory", "args": {"bytes": )", alive, "}"));
    }
  }

  // Nodes whose values may be results under another name, each with such a result.
  std::unordered_multimap<std::uint32_t, std::uint32_t> aliases_of_results() const {
    std::unordered_multimap<std::uint32_t, std::uint32_t> aliases;
    for (std::uint32_t result = 0; result < trace_.nodes.size(); ++result) {
      if (!trace_.nodes[result].is_result) continue;
      std::uint32_t at = result;
      while (trace_.nodes[at].passes_on && !trace_.nodes[at].inputs.empty()) {
        at = trace_.nodes[at].inputs.front();
        aliases.emplace(at, result);
      }
    }
    return aliases;
  }

  // Whether all from `alias` down to the node whose value it may be made no call: then it is that value.
  bool is_silent_between(std::uint64_t run, std::uint32_t alias, std::uint32_t node) const {
    for (; alias != node; alias = trace_.nodes[alias].inputs.front()) {
      if (edges_.made_calls(run, alias)) return false;
    }
    return true;
  }

  // For each turn of a node of a step's graph in a run that is all there: when the last reader of what it made had ended.
  std::vector<std::pair<const TraceEdges::Turn*, std::int64_t>> lives() const {
    std::vector<std::pair<const TraceEdges::Turn*, std::int64_t>> lives;
    std::unordered_map<const TraceEdges::Turn*, std::size_t> place;
    const auto counts = [&](const TraceEdges::Turn& turn) {
      const TracedNode& node = trace_.nodes[turn.node];
      const auto run = runs_.find(turn.run);
      return !node.in_region && !node.updates_variable && run != runs_.end() && run->second->complete;
    };
    const std::unordered_multimap<std::uint32_t, std::uint32_t> aliases = aliases_of_results();
    for (const TraceEdges::Turn& turn : edges_.turns()) {
      if (!counts(turn) || trace_.calls[turn.first].bytes_written == 0) continue;
      const auto [begin, end] = aliases.equal_range(turn.node);
      const bool is_result =
          trace_.nodes[turn.node].is_result || std::any_of(begin, end, [&](const auto& alias) {
            return is_silent_between(turn.run, alias.second, turn.node);
          });
      place.emplace(&turn, lives.size());
      lives.emplace_back(&turn, is_result ? runs_.at(turn.run)->end : turn.end);
    }
    for (const TraceEdges::Turn& reader : edges_.turns()) {
      edges_.each_before(trace_.calls[reader.first], [&](const TraceEdges::Turn& made, bool is_data) {
        const auto found = place.find(&made);
        if (!is_data || found == place.end()) return;
        std::int64_t& end = lives[found->second].second;
        end = std::max(end, reader.end);
      });
    }
    return lives;
  }

  const Trace& trace_;
  const ChromeTraceOptions& options_;
  TraceEdges edges_;
  std::unordered_map<std::uint64_t, const TracedRun*> runs_;
  std::string text_;
  bool first_ = true;
};

}  // namespace

std::string to_chrome_trace(const Trace& trace, const ChromeTraceOptions& options) {
  return ChromeWriter(trace, options).write();
}

}  // namespace lockstep
