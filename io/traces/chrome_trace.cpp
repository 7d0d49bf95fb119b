// io/traces/chrome_trace.cpp - a trace in the JSON that Chrome and Perfetto read.
#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/files/internal/json_writer.h"
#include "lockstep/io/traces/internal/chrome_events.h"
#include "lockstep/io/traces/internal/trace_edges.h"
#include "lockstep/io/traces/trace.h"

namespace lockstep {

namespace {

constexpr int kStreams = 1000;  // tracks of streams come after those of threads

using internal::JsonWriter;
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
  ChromeWriter(const Trace& trace, const ChromeTraceOptions& options, const internal::ChromeProcess& process)
      : trace_(trace), options_(options), process_(process), edges_(trace) {
    for (const TracedRun& run : trace.runs) runs_.emplace(run.run, &run);
  }

  std::string write() {
    json_.begin_list();
    name_tracks();
    for (const TracedRun& run : trace_.runs) write_run(run);
    for (const TracedWait& wait : trace_.waits) write_wait(wait);
    for (const TracedCall& call : trace_.calls) write_call(call);
    write_gaps();
    if (options_.flows) write_flows();
    write_live_bytes();
    json_.end_list();
    return text_.substr(1, text_.size() - 2);
  }

 private:
  // One event: its phase, track and time, then the fields that `rest` writes.
  template <class Rest>
  void event(char phase, std::uint32_t track, std::int64_t at, const Rest& rest) {
    json_.new_line().begin_object().key("ph").text({&phase, 1}).key("pid").number(process_.number);
    json_.key("tid").number(track + 1).key("ts").raw(microseconds(at + process_.later_ns));
    rest();
    json_.end_object();
  }
  template <class Args>
  void slice(std::uint32_t track, std::int64_t begin, std::int64_t end, const std::string& name,
             std::string_view cat, const Args& args) {
    event('X', track, begin, [&] {
      json_.key("dur").raw(microseconds(end - begin)).key("name").text(name).key("cat").text(cat);
      json_.key("args").begin_object();
      args();
      json_.end_object();
    });
  }

  void name_tracks() {
    const auto name = [&](std::uint32_t track, std::string_view what, const auto& args) {
      event('M', track, 0, [&] {
        json_.key("name").text(what).key("args").begin_object();
        args();
        json_.end_object();
      });
    };
    if (!trace_.tracks.empty()) name(0, "process_name", [&] { json_.key("name").text(process_.name); });
    for (std::uint32_t t = 0; t < trace_.tracks.size(); ++t) {
      const TraceTrack& track = trace_.tracks[t];
      name(t, "thread_name", [&] { json_.key("name").text(track.name); });
      name(t, "thread_sort_index", [&] {
        json_.key("sort_index")
            .number(track.device.empty() ? track.worker + 1 : kStreams + static_cast<int>(t));
      });
    }
  }

  void write_run(const TracedRun& run) {
    const std::string name = str("run ", run.run);
    slice(run.track, run.begin, run.end, name, "run", [&] {
      json_.key("step").number(run.step).key("program").number(run.program);
      json_.key("planned_bytes").number(run.planned_bytes);
      json_.key("complete").raw(run.complete ? "true" : "false");
    });
    // Lines across all tracks at the start and at the end of the run.
    for (const auto& [at, what] : {std::pair(run.begin, " begins"), std::pair(run.end, " ends")}) {
      const std::string line = name + what;
      event('i', run.track, at,
            [&] { json_.key("s").text("p").key("name").text(line).key("cat").text("run"); });
    }
  }

  void write_wait(const TracedWait& wait) {
    const std::string what = wait.variable.empty()  ? "wait for the random step"
                             : wait.variable == "*" ? "wait for a checkpoint"
                                                    : str("wait for variable ", wait.variable);
    slice(wait.track, wait.begin, wait.end, what, "wait",
          [&] { json_.key("run").number(wait.run).key("variable").text(wait.variable); });
  }

  // The fields that describe a node, for a call of it and for a wait for one.
  void describe(const TracedNode& node, int replica) {
    json_.key("op").text(node.op);
    if (replica >= 0) json_.key("replica").number(replica);
    if (!node.device.empty()) json_.key("device").text(node.device);
    if (!node.site.empty()) json_.key("site").text(node.site);
  }

  void write_call(const TracedCall& call) {
    const TracedNode& node = trace_.nodes[call.node];
    slice(call.track, call.begin, call.end, node.name, category(node.work), [&] {
      describe(node, call.replica);
      json_.key("run").number(call.run).key("bytes_read").number(call.bytes_read);
      json_.key("bytes_written").number(call.bytes_written);
      write_work(call);
      if (call.shard == call.shards) json_.key("shard").text("finish");
      if (call.shards > 1 && call.shard < call.shards)
        json_.key("shard").text(str(call.shard + 1, " of ", call.shards));
    });
  }

  // What the call had to do, and at what rates if it did all of it.
  void write_work(const TracedCall& call) {
    const auto time = static_cast<double>(call.end - call.begin);
    const bool alone = call.shards == 1 && time > 0;
    if (call.bytes_moved > 0) {
      json_.key("bytes_moved").number(static_cast<std::int64_t>(call.bytes_moved));
      if (alone) json_.key("GB/s").number(call.bytes_moved / time);
    }
    if (call.multiply_adds > 0) {
      const double flops = 2 * call.multiply_adds;
      json_.key("flops").number(static_cast<std::int64_t>(flops));
      if (alone) json_.key("GFLOP/s").number(flops / time);
    }
  }

  // Marks as waits the gaps on a track that end when a value arrives that the next call there reads.
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
        free_since.push_back(here.begin);  // for the slices inside this one
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
    slice(call.track, begin, last->end, str("wait for ", node.name), "wait", [&] {
      describe(node, last->replica);
      json_.key("run").number(call.run).key("before").text(trace_.nodes[call.node].name);
    });
  }

  // One arrow for each value that a turn of a node reads: from the last call of the turn that made the value
  // to the first call of the turn that reads it.
  void write_flows() {
    std::uint64_t id = static_cast<std::uint64_t>(process_.number - 1) << 32U;  // no two processes share one
    for (const TraceEdges::Turn& turn : edges_.turns()) {
      const TracedCall& to = trace_.calls[turn.first];
      edges_.each_before(to, [&](const TraceEdges::Turn& source, bool is_data) {
        if (!is_data) return;
        const TracedCall& from = trace_.calls[source.last];
        // An arrow is attached to the slice that contains its endpoint: the last nanosecond of a call is
        // still inside.
        ++id;
        const auto arrow = [&] {
          json_.key("id").number(id).key("name").text("data").key("cat").text("data");
        };
        event('s', from.track, std::max(from.begin, from.end - 1), arrow);
        event('f', to.track, to.begin, [&] {
          arrow();
          json_.key("bp").text("e");
        });
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
      event('C', 0, changes[i].first, [&] {
        json_.key("name").text("live memory").key("args").begin_object().key("bytes").number(alive);
        json_.end_object();
      });
    }
  }

  // Maps each node whose value may be a result under another name to those results.
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

  // Whether none of the nodes from `alias` down to `node`, without `node` itself, made a call: then `alias`
  // is the value of `node`.
  bool is_silent_between(std::uint64_t run, std::uint32_t alias, std::uint32_t node) const {
    for (; alias != node; alias = trace_.nodes[alias].inputs.front()) {
      if (edges_.made_calls(run, alias)) return false;
    }
    return true;
  }

  // For each turn of a node of a step's own graph, in complete runs: when the last reader of its value ended.
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
  const internal::ChromeProcess& process_;
  TraceEdges edges_;
  std::unordered_map<std::uint64_t, const TracedRun*> runs_;
  std::string text_;
  JsonWriter json_{text_, JsonWriter::Style::kSpaced};
};

}  // namespace

std::string internal::chrome_events(const Trace& trace, const ChromeTraceOptions& options,
                                    const ChromeProcess& process) {
  return ChromeWriter(trace, options, process).write();
}

std::string internal::chrome_file(
    std::span<const std::string> events,
    std::initializer_list<std::pair<std::string_view, std::uint64_t>> other_data) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::kSpaced);
  json.begin_object().key("displayTimeUnit").text("ns");
  json.key("otherData").begin_object();
  for (const auto& [name, number] : other_data) json.key(name).number(number);
  json.end_object().key("traceEvents").begin_list();
  for (const std::string& some : events) {
    if (!some.empty()) json.raw(some);
  }
  json.new_line().end_list().end_object();
  text += '\n';
  return text;
}

std::string to_chrome_trace(const Trace& trace, const ChromeTraceOptions& options) {
  const std::string events = internal::chrome_events(trace, options, {});
  return internal::chrome_file({&events, 1}, {{"dropped_events", trace.dropped}});
}

}  // namespace lockstep
