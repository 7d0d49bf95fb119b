// Tests: io/traces/chrome_trace.cpp, io/traces/trace.cpp, io/traces/trace_summary.cpp
#include "lockstep/io/traces/trace.h"

#include <atomic>
#include <chrono>
#include <latch>
#include <map>
#include <set>
#include <thread>

#include <cereal/archives/json.hpp>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/io/drawings/graph_view.h"
#include "lockstep/io/files/internal/json_text.h"
#include "lockstep/io/traces/internal/event_ring.h"
#include "lockstep/io/traces/trace_summary.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/testing/fake_gpu.h"
#include "support/program_test.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

#ifdef CEREAL_RAPIDJSON_NAMESPACE
namespace json = CEREAL_RAPIDJSON_NAMESPACE;
#else
namespace json = RAPIDJSON_NAMESPACE;
#endif

using testing::test_devices;
using testing::vec;
using testing::with_lanes;
using Clock = std::chrono::steady_clock;

std::vector<std::string> called_nodes(const Trace& trace) {
  std::vector<std::string> names;
  for (const TracedCall& call : trace.calls) names.push_back(trace.nodes[call.node].name);
  std::ranges::sort(names);
  return names;
}

// --- recording

TEST(TraceRecorder, KeepsEveryCallWithItsRunReplicaBytesAndLine) {
  for (const CompileOptions& way : {CompileOptions(), with_lanes(Clustering::kOff)}) {
    TraceRecorder recorder;
    {
      GraphBuilder b;
      const Value x = b.placeholder("x", DType::kF32, {kUnknown});
      const Value y = reshape(relu(x), {kUnknown, 1});
      b.result(sum(y + 1.0F));
      const Program program = compile(b.finish(), Runtime({.threads = 2}), way);
      for (int i = 0; i < 2; ++i) program.run({{"x", vec({1, 2, 3})}}, {.observer = &recorder});
    }
    const Trace trace = recorder.trace();  // the program and its graph are gone
    EXPECT_EQ(called_nodes(trace), (std::vector<std::string>{"add", "add", "relu", "relu", "sum", "sum"}));
    ASSERT_EQ(trace.runs.size(), 2U);
    EXPECT_EQ(trace.dropped, 0U);
    std::map<std::uint64_t, int> calls_of;
    for (const TracedCall& call : trace.calls) {
      ++calls_of[call.run];
      EXPECT_LE(call.begin, call.end);
      if (trace.nodes[call.node].name != "relu") continue;
      EXPECT_EQ(call.bytes_read, 12);
      EXPECT_EQ(call.bytes_written, 12);
      EXPECT_EQ(call.bytes_moved, 24);
      EXPECT_EQ(call.multiply_adds, 0);
      EXPECT_EQ(call.replica, -1);
      EXPECT_NE(trace.nodes[call.node].site.find("trace_test.cpp:"), std::string::npos);
    }
    for (const TracedRun& run : trace.runs) {
      EXPECT_TRUE(run.complete);
      EXPECT_EQ(calls_of[run.run], 3);
    }
  }
}

TEST(TraceRecorder, CallsOfRegionsLieInsideTheNodeAroundThem) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  b.result(while_loop(
      std::vector<Value>{b.constant(0), x}, [](std::span<const Value> now) { return now[0] < 3; },
      [](std::span<const Value> now) -> std::vector<Value> {
        return {now[0] + 1, relu(now[1])};
      })[1]);
  TraceRecorder recorder;
  compile(b.finish(), Runtime({.threads = 1})).run({{"x", vec({1, 2})}}, {.observer = &recorder});
  const Trace trace = recorder.trace();
  const auto is = [&](const char* op) {
    return [&trace, op](const TracedCall& call) { return trace.nodes[call.node].op == op; };
  };
  EXPECT_EQ(std::ranges::count_if(trace.calls, is("relu")), 3);
  const auto loop = std::ranges::find_if(
      trace.calls, [&](const TracedCall& call) { return !trace.nodes[call.node].in_region; });
  ASSERT_NE(loop, trace.calls.end());
  for (const TracedCall& call : trace.calls) {
    if (!is("relu")(call)) continue;
    EXPECT_TRUE(trace.nodes[call.node].in_region);
    EXPECT_GT(call.depth, loop->depth);
    EXPECT_GE(call.begin, loop->begin);
    EXPECT_LE(call.end, loop->end);
  }
}

TEST(TraceRecorder, StampsAreNanoseconds) {
  std::int64_t inside = 0;
  GraphBuilder b;
  b.call("spins", [&] {
    const auto since = Clock::now();
    while (Clock::now() - since < std::chrono::milliseconds(3)) {
    }
    inside = std::chrono::nanoseconds(Clock::now() - since).count();
  });
  const Program program = compile(b.finish(), Runtime({.threads = 1}));
  TraceRecorder recorder;
  const auto since = Clock::now();
  program.run({}, {.observer = &recorder});
  const std::int64_t outside = std::chrono::nanoseconds(Clock::now() - since).count();
  const Trace trace = recorder.trace();
  ASSERT_EQ(trace.calls.size(), 1U);
  const std::int64_t length = trace.calls[0].end - trace.calls[0].begin;
  EXPECT_GE(static_cast<double>(length), 0.99 * static_cast<double>(inside));
  EXPECT_LE(static_cast<double>(length), 1.01 * static_cast<double>(outside));
}

TEST(TraceRecorder, NeighboursShareAStamp) {
  GraphBuilder b;
  NodeId last = b.call("node", [] {});
  for (int i = 0; i < 9; ++i) last = b.call("node", [] {}, {}, {&last, 1});
  TraceRecorder recorder;
  compile(b.finish(), Runtime({.threads = 1})).run({}, {.observer = &recorder});
  const Trace trace = recorder.trace();
  ASSERT_EQ(trace.calls.size(), 10U);
  for (std::size_t i = 1; i < 10; ++i) EXPECT_EQ(trace.calls[i].begin, trace.calls[i - 1].end);
}

TEST(TraceRecorder, WhatALaneGoesOnWithSharesTheStampToo) {
  GraphBuilder b;
  for (const char* name : {"left", "right"}) {
    NodeId last = b.call(name, [] {});
    for (int i = 0; i < 9; ++i) last = b.call(name, [] {}, {}, {&last, 1});
  }
  TraceRecorder recorder;
  compile(b.finish(), Runtime({.threads = 2}), with_lanes(Clustering::kOff)).run({}, {.observer = &recorder});
  const Trace trace = recorder.trace();
  ASSERT_EQ(trace.calls.size(), 20U);
  std::map<std::uint32_t, const TracedCall*> by_node;
  for (const TracedCall& call : trace.calls) by_node[call.node] = &call;
  for (const auto& [node, call] : by_node) {
    if (trace.nodes[node].controls.empty()) continue;
    const TracedCall& before = *by_node.at(trace.nodes[node].controls[0]);
    EXPECT_EQ(call->track, before.track) << trace.nodes[node].name;
    EXPECT_EQ(call->begin, before.end) << trace.nodes[node].name;
  }
}

// What other lanes ran before a join may end after this lane's last call did.
TEST(TraceRecorder, NothingBeginsBeforeWhatItNeedsHasEnded) {
  const auto work = [] {  // long enough for two lanes to share a layer
    for (int i = 0; i < 1000; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
  };
  GraphBuilder b;
  std::vector<NodeId> layer = {b.call("start", [] {})};
  for (int i = 0; i < 20; ++i) {
    const NodeId before = layer.back();
    layer = {b.call("left", work, {}, {&before, 1}), b.call("right", work, {}, {&before, 1})};
    layer.push_back(b.call(
        "join", [] {}, {}, layer));
  }
  const Program program = compile(b.finish(), Runtime({.threads = 2}), with_lanes(Clustering::kOff));
  for (int run = 0; run < 200; ++run) {
    TraceRecorder recorder({.events_per_thread = 1000});
    program.run({}, {.observer = &recorder});
    const Trace trace = recorder.trace();
    ASSERT_EQ(trace.calls.size(), 61U);
    std::map<std::uint32_t, const TracedCall*> by_node;
    for (const TracedCall& call : trace.calls) by_node[call.node] = &call;
    for (const auto& [node, call] : by_node) {
      for (const std::uint32_t before : trace.nodes[node].controls)
        ASSERT_GE(call->begin, by_node.at(before)->end) << trace.nodes[node].name << " in run " << run;
    }
  }
}

// Calls on streams are told when they are over, on a track for each stream; the run waits for them.
TEST(TraceRecorder, StreamsOfDevicesHaveTracks) {
  const auto gpus = std::make_shared<testing::FakeGpu>(testing::FakeGpuOptions{.devices = 2});
  gpus->set_delays(std::chrono::microseconds(200), 5);
  const Runtime runtime({.threads = 1, .backends = {gpus}});
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  const auto at = [&](const char* device, const Value& value) {
    const auto scope = b.device(device);
    return tanh(value);
  };
  b.result(at("gpu:1", at("gpu:0", x)));
  const Program program = compile(b.finish(), runtime);
  const std::vector<Tensor> fed = {Tensor::zeros(DType::kF32, {4})};
  TraceRecorder recorder;
  for (int i = 0; i < 4; ++i) program.run(fed, {.observer = &recorder});
  const Trace trace = recorder.trace();
  std::map<std::string, std::uint32_t> tracks;
  for (std::uint32_t t = 0; t < trace.tracks.size(); ++t) tracks[trace.tracks[t].name] = t;
  ASSERT_TRUE(tracks.contains("gpu:0 compute"));
  ASSERT_TRUE(tracks.contains("gpu:1 compute"));
  EXPECT_EQ(trace.tracks[tracks["gpu:1 compute"]].device, "gpu:1");
  std::map<std::uint64_t, std::int64_t> ended;  // by run: tanh on gpu:0
  std::set<std::uint64_t> later;
  for (const TracedCall& call : trace.calls) {
    EXPECT_LE(call.begin, call.end);
    if (trace.nodes[call.node].op != "tanh") continue;
    const bool first = trace.nodes[call.node].device == "gpu:0";
    if (call.track == tracks["gpu:0 compute"] && first) ended.try_emplace(call.run, call.end);
    if (call.track == tracks["gpu:1 compute"] && !first && ended.contains(call.run)) {
      EXPECT_GE(call.begin, ended[call.run]) << "it reads what the other made";
      later.insert(call.run);
    }
  }
  EXPECT_EQ(later.size(), 4U) << "each of the four runs, replayed otherwise";
  const auto run = std::ranges::find(trace.runs, trace.calls.back().run, &TracedRun::run);
  ASSERT_NE(run, trace.runs.end());
  EXPECT_LE(trace.calls.back().end, run->end);
  EXPECT_NE(to_text(summarize(trace)).find(" threads and "), std::string::npos);
  EXPECT_NE(to_chrome_trace(trace).find("gpu:1 compute"), std::string::npos);
}

TEST(TraceRecorder, ForgetsTheOldestAndSaysHowMany) {
  GraphBuilder b;
  for (int i = 0; i < 10; ++i) b.call("node", [] {});
  const Program program = compile(b.finish(), Runtime({.threads = 1}));
  TraceRecorder recorder({.events_per_thread = 100});
  constexpr std::size_t kRuns = 1000, kEvents = kRuns * 11;
  program.run_n(kRuns, {}, {.observer = &recorder});
  const Trace trace = recorder.trace();
  const std::size_t kept = trace.calls.size() + trace.runs.size();
  EXPECT_GE(kept, 100U);
  EXPECT_LE(kept, 256U);
  EXPECT_EQ(trace.dropped + kept, kEvents);
  ASSERT_EQ(trace.tracks.size(), 2U) << "the caller, and the worker that had nothing to do";
  EXPECT_EQ(trace.tracks[0].dropped, trace.dropped);
  EXPECT_EQ(trace.tracks[1].dropped, 0U);
  // Whatever is called complete is.
  std::map<std::uint64_t, int> calls_of;
  for (const TracedCall& call : trace.calls) ++calls_of[call.run];
  std::size_t complete = 0;
  for (const TracedRun& run : trace.runs) {
    if (!run.complete) continue;
    EXPECT_EQ(calls_of[run.run], 10);
    ++complete;
  }
  EXPECT_GE(complete, trace.runs.size() - 1);
  EXPECT_GE(complete, 8U);
}

TEST(TraceRecorder, RemembersTheNodesOfTheLastPrograms) {
  TraceRecorder recorder({.max_programs = 1});
  for (const char* name : {"first", "second"}) {
    GraphBuilder b;
    b.call(name, [] {});
    compile(b.finish(), Runtime({.threads = 1})).run({}, {.observer = &recorder});
  }
  const Trace trace = recorder.trace();
  EXPECT_EQ(called_nodes(trace), std::vector<std::string>{"second"});
  EXPECT_EQ(trace.dropped, 1U);
  ASSERT_EQ(trace.runs.size(), 2U);
  EXPECT_FALSE(trace.runs[0].complete);
  EXPECT_TRUE(trace.runs[1].complete);
}

TEST(TraceRecorder, RemembersAProgramAgainThatWasForgotten) {
  TraceRecorder recorder({.max_programs = 1});
  std::vector<Program> programs;
  for (const char* name : {"first", "second"}) {
    GraphBuilder b;
    b.call(name, [] {});
    programs.push_back(compile(b.finish(), Runtime({.threads = 1})));
  }
  for (const int turn : {0, 1, 0}) programs[static_cast<std::size_t>(turn)].run({}, {.observer = &recorder});
  EXPECT_EQ(called_nodes(recorder.trace()), (std::vector<std::string>{"first", "first"}));
}

TEST(TraceRecorder, KeepsWhatCallsHadToDo) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 4});
  const Value w = b.constant(Tensor::zeros({4, 8}));
  const Value far = b.op1("copy", {matmul(x, w)}, {}, "far");
  b.result(far);
  const Program program = compile(b.finish(), Runtime({.threads = 1}));
  TraceRecorder recorder;
  program.run({{"x", Tensor::zeros({3, 4})}}, {.observer = &recorder});
  program.run({{"x", Tensor::zeros({5, 4})}}, {.observer = &recorder});
  const Trace trace = recorder.trace();
  std::vector<std::pair<double, double>> products;
  for (const TracedCall& call : trace.calls) {
    EXPECT_EQ(device_of_call(trace, call), "cpu:0");
    EXPECT_EQ(trace.nodes[call.node].dtype, DType::kF32);
    if (trace.nodes[call.node].op == "matmul") products.emplace_back(call.bytes_moved, call.multiply_adds);
  }
  EXPECT_EQ(products, (std::vector<std::pair<double, double>>{{4 * (12 + 32 + 24), 3 * 4 * 8},
                                                              {4 * (20 + 32 + 40), 5 * 4 * 8}}));
}

// By what their ops do, whoever made them.
TEST(TraceRecorder, TellsWhatMovesValuesFromWhatComputes) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[2]
      %y = copy(%x) : f32[2]
      %sum = reduce_replicas[reduce="sum", replicas=2](%x, %y) : f32[2]
      %z = relu(%sum) : f32[2]
      return %z
  )");
  TraceRecorder recorder;
  compile(graph, Runtime({.threads = 1})).run({{"x", vec({1, 2})}}, {.observer = &recorder});
  std::map<std::string, TracedWork> works;
  for (const TracedNode& node : recorder.trace().nodes) works[node.name] = node.work;
  EXPECT_EQ(works["y"], TracedWork::kCopy);
  EXPECT_EQ(works["sum"], TracedWork::kCollective);
  EXPECT_EQ(works["z"], TracedWork::kCompute);
  std::map<std::string, ViewKind> kinds;
  const GraphView view(graph);
  for (const ViewNode& node : view.nodes()) kinds[node.name] = node.kind;
  EXPECT_EQ(kinds["y"], ViewKind::kCopy) << "drawings say the same";
  EXPECT_EQ(kinds["sum"], ViewKind::kCollective);
  EXPECT_EQ(kinds["x"], ViewKind::kParameter);
}

TEST(TraceRecorder, WorkersThatHadNothingToDoAreIdle) {
  GraphBuilder b;
  b.call("node", [] {});
  TraceRecorder recorder;
  compile(b.finish(), Runtime({.threads = 3}), with_lanes()).run({}, {.observer = &recorder});
  const Trace trace = recorder.trace();
  std::set<int> workers;
  for (const TraceTrack& track : trace.tracks) {
    if (track.worker < 0) continue;
    EXPECT_TRUE(workers.insert(track.worker).second);
  }
  EXPECT_EQ(workers, (std::set<int>{0, 1, 2}));
  const TraceSummary summary = summarize(trace);
  std::size_t idle = 0;
  for (const TraceSummary::Worker& worker : summary.workers)
    idle += worker.busy == 0 && worker.idle == summary.wall ? 1U : 0U;
  EXPECT_GE(idle, 2U) << "one call is on one thread";
}

TEST(TraceRecorder, CanBeReadWhileRunsAreUnderWay) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {64});
  Value y = x;
  for (int i = 0; i < 20; ++i) y = relu(y + x);
  b.result(y);
  const Program program = compile(b.finish(), Runtime({.threads = 2}), with_lanes(Clustering::kOff));
  constexpr int kThreads = 3, kRuns = 50, kNodes = 40;
  for (const std::size_t kept : {200U, 300U}) {  // in one chunk, and in several
    TraceRecorder recorder({.events_per_thread = kept});
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back(
            [&] { program.run_n(kRuns, std::vector<Tensor>{Tensor::zeros({64})}, {.observer = &recorder}); });
      }
      for (int i = 0; i < 20; ++i) {
        const Trace trace = recorder.trace();
        for (const TracedCall& call : trace.calls) {
          ASSERT_LE(call.begin, call.end);
          ASSERT_LT(call.node, trace.nodes.size());
        }
      }
    }
    const Trace trace = recorder.trace();
    EXPECT_EQ(trace.dropped + trace.calls.size() + trace.runs.size(), kThreads * kRuns * (kNodes + 1));
    EXPECT_LE(trace.tracks.size(), static_cast<std::size_t>(kThreads + 2));
    std::set<std::string> names;
    for (const TraceTrack& track : trace.tracks) EXPECT_TRUE(names.insert(track.name).second) << track.name;
  }
}

TEST(TraceRecorder, RefusesToKeepNothing) {
  EXPECT_THROW(TraceRecorder({.events_per_thread = 0}), InvalidArgument);
  EXPECT_THROW(TraceRecorder({.max_programs = 0}), InvalidArgument);
}

TEST(EventRing, KeepsTheLastInOrderAndCountsTheRest) {
  constexpr std::uint64_t kChunk = internal::EventRing<std::uint64_t>::kMostChunk;
  for (const std::uint64_t kept : {std::uint64_t{1}, std::uint64_t{65}, kChunk, kChunk + 1, 3 * kChunk - 1}) {
    for (const std::uint64_t pushed :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{64}, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk,
          std::uint64_t{1000}, 10 * kChunk + 7}) {
      internal::EventRing<std::uint64_t> ring(kept);
      for (std::uint64_t i = 0; i < pushed; ++i) {
        ring.next() = i;
        ring.publish();
      }
      std::vector<std::uint64_t> events;
      const std::uint64_t before = ring.copy_to(events);
      EXPECT_EQ(before + events.size(), pushed);
      EXPECT_GE(events.size(), std::min(pushed, kept));
      EXPECT_LE(events.size(), kept + std::min(kept, kChunk)) << "no more memory than was asked for";
      for (std::uint64_t i = 0; i < events.size(); ++i) ASSERT_EQ(events[i], before + i);
    }
  }
}

// --- the Chrome trace

struct ParsedTrace {
  explicit ParsedTrace(const std::string& text) {
    document.Parse(text.c_str());
    if (!document.HasParseError() && document.IsObject()) {
      for (const json::Value& event : document["traceEvents"].GetArray())
        of_phase[event["ph"].GetString()[0]].push_back(&event);
    }
  }
  static std::int64_t ns(const json::Value& event, const char* key) {
    return std::llround(event[key].GetDouble() * 1000);
  }
  static std::int64_t begin(const json::Value& slice) { return ns(slice, "ts"); }
  static std::int64_t end(const json::Value& slice) { return ns(slice, "ts") + ns(slice, "dur"); }

  json::Document document;
  std::map<char, std::vector<const json::Value*>> of_phase;
};

// On every track a slice lies inside another or beside it.
void expect_nesting(const ParsedTrace& trace) {
  std::map<int, std::vector<const json::Value*>> tracks;
  for (const json::Value* slice : trace.of_phase.at('X')) tracks[(*slice)["tid"].GetInt()].push_back(slice);
  for (auto& [tid, slices] : tracks) {
    std::ranges::stable_sort(slices, {}, [](const json::Value* slice) {
      return std::pair(ParsedTrace::begin(*slice), -ParsedTrace::end(*slice));
    });
    std::vector<std::int64_t> open;
    for (const json::Value* slice : slices) {
      const std::int64_t begin = ParsedTrace::begin(*slice), end = ParsedTrace::end(*slice);
      while (!open.empty() && open.back() <= begin) open.pop_back();
      EXPECT_TRUE(open.empty() || end <= open.back()) << (*slice)["name"].GetString() << " on " << tid;
      open.push_back(end);
    }
  }
}

// Every arrow has two ends, each in a slice of its track, and leads forward in time.
std::size_t expect_paired_flows(const ParsedTrace& trace) {
  const auto in_a_slice = [&](const json::Value& at) {
    return std::ranges::any_of(trace.of_phase.at('X'), [&](const json::Value* slice) {
      return (*slice)["tid"].GetInt() == at["tid"].GetInt() &&
             ParsedTrace::begin(*slice) <= ParsedTrace::ns(at, "ts") &&
             ParsedTrace::ns(at, "ts") <= ParsedTrace::end(*slice);
    });
  };
  std::map<std::int64_t, const json::Value*> starts;
  for (const json::Value* start : trace.of_phase.at('s')) {
    EXPECT_TRUE(starts.emplace((*start)["id"].GetInt64(), start).second);
    EXPECT_TRUE(in_a_slice(*start));
  }
  std::size_t pairs = 0;
  for (const json::Value* end : trace.of_phase.at('f')) {
    const auto start = starts.find((*end)["id"].GetInt64());
    if (start == starts.end()) {
      ADD_FAILURE() << "an arrow without a start";
      continue;
    }
    EXPECT_LE(ParsedTrace::ns(*start->second, "ts"), ParsedTrace::ns(*end, "ts"));
    EXPECT_TRUE(in_a_slice(*end));
    EXPECT_STREQ((*end)["bp"].GetString(), "e") << "it ends at the slice around it, not at the next one";
    starts.erase(start);
    ++pairs;
  }
  EXPECT_TRUE(starts.empty()) << "arrows without an end";
  return pairs;
}

TEST(ChromeTrace, OfAMirroredStepNestsPairsAndMarksEveryCollective) {
  for (const char* cross_device_ops : {"shared_memory", "ring"}) {
    TraceRecorder recorder;
    MirroredStrategy strategy({.devices = test_devices(2), .cross_device_ops = cross_device_ops});
    auto scope = strategy.scope();
    const Variable w1("w1", Tensor::full(DType::kF32, {8, 16}, 0.1)),
        w2("w2", Tensor::full(DType::kF32, {16, 4}, 0.1));
    const auto step = strategy.function({InputSpec(DType::kF32, {kUnknown, 8}, "x")}, [=](Value x) {
      const Value loss = global_mean(square(matmul(tanh(matmul(x, w1)), w2)));
      Sgd(0.1).minimize(loss, std::vector<VariableRef>{w1, w2});
      return loss;
    });
    const PerReplica<Tensor> x({Tensor::full(DType::kF32, {4, 8}, 1), Tensor::full(DType::kF32, {4, 8}, 2)});
    for (int i = 0; i < 3; ++i) step.call({&x, 1}, {.observer = &recorder});

    const Trace recorded = recorder.trace();
    const ParsedTrace trace(to_chrome_trace(recorded));
    ASSERT_FALSE(trace.document.HasParseError());
    expect_nesting(trace);
    EXPECT_GT(expect_paired_flows(trace), 20U);

    const std::set<std::string> joining = {"all_reduce", "reduce_replicas", "reduce_chunk", "join_chunks"};
    std::map<std::string, int> slices;  // by category
    std::set<int> replicas;
    for (const json::Value* slice : trace.of_phase.at('X')) {
      const std::string category = (*slice)["cat"].GetString();
      ++slices[category];
      if (category != "compute" && category != "collective") continue;
      const json::Value& args = (*slice)["args"];
      EXPECT_TRUE(category == "collective" || !joining.contains(args["op"].GetString()));
      if (args.HasMember("replica")) replicas.insert(args["replica"].GetInt());
      EXPECT_GE(args["bytes_read"].GetInt64() + args["bytes_written"].GetInt64(), 0);
    }
    std::size_t collectives = 0;
    for (const Node& node : step.replicated_graph().nodes()) collectives += joining.contains(node.op().name);
    EXPECT_GE(collectives, 1U);
    EXPECT_GE(slices["collective"], static_cast<int>(3 * collectives));
    EXPECT_EQ(slices["run"], 3);
    EXPECT_EQ(slices["compute"] + slices["collective"] + slices["copy"],
              static_cast<int>(recorded.calls.size()));
    EXPECT_EQ(replicas, (std::set<int>{0, 1}));

    // Tracks are named, runs have their lines, and memory is counted down to nothing.
    std::set<int> named;
    for (const json::Value* event : trace.of_phase.at('M')) named.insert((*event)["tid"].GetInt());
    EXPECT_EQ(named.size(), recorded.tracks.size());
    EXPECT_EQ(trace.of_phase.at('i').size(), 6U);
    std::int64_t most = 0, last = -1;
    for (const json::Value* counter : trace.of_phase.at('C')) {
      last = (*counter)["args"]["bytes"].GetInt64();
      most = std::max(most, last);
      EXPECT_GE(last, 0);
    }
    EXPECT_GT(most, 0);
    EXPECT_EQ(last, 0);
  }
}

TEST(ChromeTrace, MarksWaitsForVariablesAndForValues) {
  Trace trace;
  trace.tracks = {{"caller", -1, 0}, {"worker 0", 0, 0}};
  trace.nodes.resize(2);
  trace.nodes[0].name = "slow";
  trace.nodes[0].op = "matmul";
  trace.nodes[1] = {.name = "sum \"of\" \xff",
                    .op = "all_reduce",
                    .device = {},
                    .site = "model.cpp:7",
                    .work = TracedWork::kCollective,
                    .inputs = {0},
                    .controls = {}};
  trace.waits.push_back({.run = 1, .track = 0, .begin = 0, .end = 10'000, .variable = "w"});
  trace.runs.push_back({.run = 1, .program = 5, .track = 0, .begin = 10'000, .end = 100'000});
  trace.calls.push_back({.node = 0,
                         .track = 1,
                         .begin = 11'000,
                         .end = 80'000,
                         .run = 1,
                         .bytes_read = 0,
                         .bytes_written = 64,
                         .bytes_moved = 138'000,
                         .multiply_adds = 69'000});
  trace.calls.push_back({.node = 1, .track = 0, .depth = 1, .begin = 81'000, .end = 90'000, .run = 1});
  const ParsedTrace parsed(to_chrome_trace(trace));
  ASSERT_FALSE(parsed.document.HasParseError());
  expect_nesting(parsed);
  EXPECT_EQ(expect_paired_flows(parsed), 1U);
  std::map<std::string, const json::Value*> slices;
  for (const json::Value* slice : parsed.of_phase.at('X')) slices[(*slice)["name"].GetString()] = slice;
  ASSERT_TRUE(slices.contains("wait for variable w"));
  EXPECT_EQ(ParsedTrace::end(*slices["wait for variable w"]), 10'000);
  ASSERT_TRUE(slices.contains("wait for slow")) << "the caller stood still until its input came";
  EXPECT_EQ(ParsedTrace::begin(*slices["wait for slow"]), 10'000);
  EXPECT_EQ(ParsedTrace::end(*slices["wait for slow"]), 80'000);
  EXPECT_STREQ((*slices["wait for slow"])["cat"].GetString(), "wait");
  ASSERT_TRUE(slices.contains("sum \"of\" \xEF\xBF\xBD"));
  EXPECT_STREQ((*slices["sum \"of\" \xEF\xBF\xBD"])["args"]["site"].GetString(), "model.cpp:7");
  const json::Value& work = (*slices["slow"])["args"];  // in 69 us
  EXPECT_EQ(work["bytes_moved"].GetInt64(), 138'000);
  EXPECT_EQ(work["GB/s"].GetDouble(), 2);
  EXPECT_EQ(work["flops"].GetInt64(), 138'000);
  EXPECT_EQ(work["GFLOP/s"].GetDouble(), 2);
  EXPECT_FALSE((*slices["sum \"of\" \xEF\xBF\xBD"])["args"].HasMember("flops"));
  // 64 bytes from the begin of the first to the end of the second.
  ASSERT_EQ(parsed.of_phase.at('C').size(), 2U);
  EXPECT_EQ(ParsedTrace::ns(*parsed.of_phase.at('C')[0], "ts"), 11'000);
  EXPECT_EQ(ParsedTrace::ns(*parsed.of_phase.at('C')[1], "ts"), 90'000);

  const ParsedTrace bare(to_chrome_trace(trace, {.flows = false, .min_wait_ns = 1'000'000}));
  EXPECT_FALSE(bare.of_phase.contains('s'));
  EXPECT_EQ(bare.of_phase.at('X').size(), 4U);
}

// return reshape(relu(x)): what relu made is the result, and lives as long as the run.
TEST(ChromeTrace, CountsAResultUnderAnotherNameUntilTheRunEnds) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  b.result(reshape(relu(x), {2, 2}));
  TraceRecorder recorder;
  compile(b.finish(), Runtime({.threads = 1})).run({{"x", vec({1, 2, 3, 4})}}, {.observer = &recorder});
  const Trace recorded = recorder.trace();
  ASSERT_EQ(called_nodes(recorded), std::vector<std::string>{"relu"});
  const ParsedTrace trace(to_chrome_trace(recorded));
  ASSERT_EQ(trace.of_phase.at('C').size(), 2U);
  EXPECT_EQ((*trace.of_phase.at('C')[0])["args"]["bytes"].GetInt64(), 16);
  EXPECT_EQ(ParsedTrace::ns(*trace.of_phase.at('C')[1], "ts"), recorded.runs[0].end);
}

TEST(ChromeTrace, OfNothingIsValid) {
  const ParsedTrace trace(to_chrome_trace(TraceRecorder().trace()));
  ASSERT_FALSE(trace.document.HasParseError());
  EXPECT_TRUE(trace.of_phase.empty());
}

TEST(JsonText, QuotesAndReplacesWhatIsNotUtf8) {
  const std::pair<std::string, std::string> cases[] = {
      {"plain", "\"plain\""},
      {"a\"b\\c\n", R"("a\"b\\c\u000a")"},
      {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\""},
      {"\xC3", R"("\ufffd")"},                                  // cut off
      {"\xC0\x80", R"("\ufffd\ufffd")"},                        // too long a form
      {"\xE0\x80\x80", R"("\ufffd\ufffd\ufffd")"},              // the same in three bytes
      {"\xED\xA0\x80", R"("\ufffd\ufffd\ufffd")"},              // a surrogate
      {"\xF4\x90\x80\x80z", R"("\ufffd\ufffd\ufffd\ufffdz")"},  // beyond the last character
  };
  for (const auto& [text, quoted] : cases) EXPECT_EQ(internal::json_quoted(text), quoted);
}

}  // namespace
}  // namespace lockstep
