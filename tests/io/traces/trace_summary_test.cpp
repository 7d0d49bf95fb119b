// Tests: io/traces/trace_edges.cpp, io/traces/trace_summary.cpp
#include "lockstep/io/traces/trace_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/io/traces/internal/trace_edges.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Two replicas on two threads, by hand (one dot: 10 ns):
//
//   caller     [ a0 .......... ][ reduce .. ]   [ update ]
//   worker 0   [ a1 .. ]                [ b1 .......... ]
//   time       0    40        100           130  150    190
Trace two_replicas() {
  Trace trace;
  trace.tracks = {{"caller", -1, 0}, {"worker 0", 0, 0}};
  trace.nodes = {
      {.name = "r0/a", .op = "matmul", .device = "cpu:0", .site = "model.cpp:3"},
      {.name = "r1/a", .op = "matmul", .device = "cpu:1", .site = "model.cpp:3"},
      {.name = "reduce",
       .op = "reduce_replicas",
       .device = {},
       .site = {},
       .work = TracedWork::kCollective,
       .inputs = {0, 1}},
      {.name = "r1/b", .op = "relu", .device = {}, .site = {}, .work = TracedWork::kCompute, .inputs = {1}},
      {.name = "update",
       .op = "sgd",
       .device = {},
       .site = {},
       .work = TracedWork::kCompute,
       .inputs = {2},
       .controls = {3}},
  };
  trace.runs.push_back({.run = 7, .track = 0, .begin = 0, .end = 200});
  const auto call = [&](std::uint32_t node, std::uint32_t track, std::int64_t begin, std::int64_t end,
                        int replica, std::int64_t bytes) {
    trace.calls.push_back({.node = node,
                           .track = track,
                           .depth = 1 - track,
                           .begin = begin,
                           .end = end,
                           .run = 7,
                           .replica = replica,
                           .bytes_read = bytes,
                           .bytes_written = bytes,
                           .bytes_moved = static_cast<double>(2 * bytes),
                           .multiply_adds = node < 2 ? 2500.0 : 0});
  };
  call(0, 0, 0, 100, 0, 1000);
  call(1, 1, 0, 40, 1, 1000);
  call(2, 0, 100, 130, -1, 60);
  call(3, 1, 120, 150, 1, 10);
  call(4, 0, 150, 190, -1, 5);
  return trace;
}

TEST(TraceSummary, AddsUpByOpAndByReplica) {
  const TraceSummary summary = summarize(two_replicas());
  EXPECT_EQ(summary.runs, 1U);
  EXPECT_EQ(summary.runs_left_out, 0U);
  EXPECT_EQ(summary.wall, 200);
  EXPECT_EQ(summary.busy, 100 + 40 + 30 + 30 + 40);
  ASSERT_EQ(summary.by_op.size(), 4U);
  EXPECT_EQ(summary.by_op[0].name, "matmul");
  EXPECT_EQ(summary.by_op[0].time, 140);
  EXPECT_EQ(summary.by_op[0].calls, 2U);
  EXPECT_EQ(summary.by_op[0].bytes, 4000);
  EXPECT_EQ(summary.by_op[1].name, "sgd");
  ASSERT_EQ(summary.by_replica.size(), 3U);
  EXPECT_EQ(summary.by_replica[0].name, "all replicas");
  EXPECT_EQ(summary.by_replica[0].time, 70);
  EXPECT_EQ(summary.by_replica[1].time, 100) << summary.by_replica[1].name;
  EXPECT_EQ(summary.by_replica[2].time, 70) << summary.by_replica[2].name;
}

// Four shards on two threads, from 0 to 50 and from 60 to 110; then the call that finishes them.
Trace shards_on_two_threads() {
  Trace trace;
  trace.tracks = {{"caller", -1, 0}, {"worker 0", 0, 0}};
  trace.nodes = {{.name = "layer/product", .op = "matmul", .dtype = DType::kBF16},
                 {.name = "loop", .op = "while_loop"}};
  trace.runs.push_back({.run = 1, .begin = 0, .end = 200});
  for (std::int64_t shard = 0; shard < 4; ++shard) {
    const std::int64_t begin = shard < 2 ? 0 : 60;
    trace.calls.push_back({.track = static_cast<std::uint32_t>(shard % 2),
                           .begin = begin,
                           .end = begin + 50,
                           .run = 1,
                           .shard = shard,
                           .shards = 4,
                           .bytes_moved = 550,
                           .multiply_adds = 2200});
  }
  trace.calls.push_back({.begin = 110,
                         .end = 120,
                         .run = 1,
                         .shard = 4,
                         .shards = 4,
                         .bytes_moved = 550,
                         .multiply_adds = 2200});
  trace.calls.push_back({.node = 1, .begin = 120, .end = 150, .run = 1});
  return trace;
}

TEST(TraceSummary, RatesAreByElapsedTime) {
  const TraceSummary summary = summarize(shards_on_two_threads());
  const TraceSummary::Row& product = summary.by_op.at(0);
  EXPECT_EQ(product.time, 210) << "of both threads";
  EXPECT_EQ(product.elapsed, 110) << "shards that run at once count once";
  EXPECT_EQ(product.bytes, 550) << "the bytes are those of all shards";
  EXPECT_EQ(product.multiply_adds, 2200);
  EXPECT_EQ(product.copy_share, 0) << "nobody said what the device reaches";
  EXPECT_EQ(summary.by_op.at(1).elapsed, 0) << "nothing is known of its work";
  ASSERT_EQ(summary.by_node.size(), 2U);
  EXPECT_EQ(summary.by_node[0].name, "layer/product");
  EXPECT_EQ(summary.by_node[0].op, "matmul");
  EXPECT_EQ(summary.by_node[0].bytes, 550);
  const std::string text = to_text(summary, {.max_nodes = 1});
  EXPECT_THAT(
      text,
      HasSubstr(
          "time by op                         time   share    calls      bytes      GB/s    GFLOP/s\n"
          "  matmul                         210 ns   87.5%        5     550 B       5.00       40.0\n"
          "  while_loop                      30 ns   12.5%        1          -         -          -\n"));
  EXPECT_THAT(text, HasSubstr("\ntime by node"));
  EXPECT_THAT(text, HasSubstr("40.0  layer/product\n  ... and 1 more\n"));
}

TEST(TraceSummary, SharesAreOfWhatTheDevicesReach) {
  Trace trace = shards_on_two_threads();
  const std::vector<DeviceRates> rates = {
      {"cpu:0", 10e9, {{DType::kF32, false, 1e9}, {DType::kBF16, false, 80e9}}}};
  const TraceSummary summary = summarize(trace, rates);
  EXPECT_DOUBLE_EQ(summary.by_op.at(0).copy_share, 0.5);
  EXPECT_DOUBLE_EQ(summary.by_op.at(0).product_share, 0.5);
  EXPECT_EQ(summary.by_op.at(1).copy_share, 0);
  const std::string text = to_text(summary);
  EXPECT_THAT(
      text, HasSubstr("cpu:0 reaches 10.0 GB/s in a copy, 1.0 GFLOP/s in a product of f32, 80.0 GFLOP/s in a "
                      "product of bf16\n"));
  EXPECT_THAT(text, HasSubstr("GB/s  of copy    GFLOP/s  of peak\n"));
  EXPECT_THAT(text, HasSubstr("5.00    50.0%       40.0    50.0%\n"));
  EXPECT_THAT(text, HasSubstr("-        -          -        -\n"));
  // A product of a dtype whose rate nobody knows has no share, and neither has what ran elsewhere.
  trace.nodes[0].dtype = DType::kF64;
  EXPECT_EQ(summarize(trace, rates).by_op.at(0).product_share, 0);
  EXPECT_DOUBLE_EQ(summarize(trace, rates).by_op.at(0).copy_share, 0.5);
  trace.nodes[0].device = "gpu:0";
  EXPECT_EQ(summarize(trace, rates).by_op.at(0).copy_share, 0);
}

TEST(TraceSummary, CopiesOnBehalfOfANodeAreNotItsKernel) {
  Trace trace;
  trace.tracks = {{"gpu:0 compute", -1, 0, "gpu:0"}};
  trace.nodes = {{.name = "y", .op = "matmul", .device = "gpu:0"}};
  trace.runs.push_back({.run = 1, .begin = 0, .end = 200});
  trace.calls = {{.begin = 0, .end = 100, .run = 1, .bytes_moved = 700, .multiply_adds = 5000},
                 {.begin = 110, .end = 130, .run = 1, .bytes_moved = 400, .copies = true}};
  const TraceSummary summary = summarize(trace);
  ASSERT_EQ(summary.by_op.size(), 2U);
  EXPECT_EQ(summary.by_op[0].name, "matmul");
  EXPECT_EQ(summary.by_op[0].elapsed, 100);
  EXPECT_EQ(summary.by_op[0].bytes, 700);
  EXPECT_EQ(summary.by_op[1].name, "copy");
  EXPECT_EQ(summary.by_op[1].bytes, 400);
  ASSERT_EQ(summary.by_node.size(), 2U);
  EXPECT_EQ(summary.by_node[1].name, "y");
  EXPECT_EQ(summary.by_node[1].op, "copy");
}

// Copies from the host have a limit of their own.
TEST(TraceSummary, SharesAreOfStreamsThatCompute) {
  Trace trace;
  trace.tracks = {{"gpu:0 compute", -1, 0, "gpu:0"}, {"gpu:0 copy in", -1, 0, "gpu:0", StreamRole::kCopyIn}};
  trace.nodes = {{.name = "x", .op = "placeholder"}, {.name = "y", .op = "relu", .device = "gpu:0"}};
  trace.runs.push_back({.run = 1, .begin = 0, .end = 200});
  trace.calls = {
      {.node = 0, .track = 1, .begin = 0, .end = 100, .run = 1, .bytes_moved = 1000, .copies = true},
      {.node = 1, .track = 0, .begin = 100, .end = 150, .run = 1, .bytes_moved = 1000}};
  const std::vector<DeviceRates> rates = {{"gpu:0", 40e9}};
  const TraceSummary summary = summarize(trace, rates);
  EXPECT_EQ(summary.by_op.at(0).name, "copy");
  EXPECT_EQ(summary.by_op.at(0).copy_share, 0);
  EXPECT_DOUBLE_EQ(summary.by_op.at(0).bytes / static_cast<double>(summary.by_op.at(0).elapsed), 10);
  EXPECT_DOUBLE_EQ(summary.by_op.at(1).copy_share, 0.5);
  EXPECT_DOUBLE_EQ(summary.by_replica.at(0).copy_share, 0.5) << "of what was computed";
}

TEST(TraceSummary, FollowsTheCriticalPath) {
  const TraceSummary summary = summarize(two_replicas());
  EXPECT_EQ(summary.path_run, 7U);
  EXPECT_EQ(summary.path_length, 200);
  std::vector<std::string> names;
  std::vector<std::int64_t> gaps;
  for (const TraceSummary::PathCall& call : summary.critical_path) {
    names.push_back(call.name);
    gaps.push_back(call.gap);
  }
  // The update ran after r1/b, which ended last; that read r1/a, and its thread was idle since.
  EXPECT_EQ(names, (std::vector<std::string>{"r1/a", "r1/b", "update"}));
  EXPECT_EQ(gaps, (std::vector<std::int64_t>{0, 80, 0}));
  EXPECT_EQ(summary.path_time, 40 + 30 + 40);
}

TEST(TraceSummary, TheCriticalPathGoesThroughAThreadThatWasBusy) {
  Trace trace = two_replicas();
  trace.nodes[4].controls.clear();
  trace.calls[4].begin = 130;  // the update now follows the reduction on its thread and reads it
  const TraceSummary summary = summarize(trace);
  ASSERT_EQ(summary.critical_path.size(), 3U);
  EXPECT_EQ(summary.critical_path[0].name, "r0/a");
  EXPECT_EQ(summary.critical_path[1].name, "reduce");
  EXPECT_EQ(summary.critical_path[2].name, "update");
  EXPECT_EQ(summary.path_time, 190);
}

// shard 0 on the caller until 50, shard 1 on a worker until 100, then the caller finishes.
TEST(TraceSummary, TheCriticalPathGoesThroughTheShardThatWasWaitedFor) {
  Trace trace;
  trace.tracks = {{"caller", -1, 0}, {"worker 0", 0, 0}};
  trace.nodes = {{.name = "sum", .op = "sum"}};
  trace.runs.push_back({.run = 1, .begin = 0, .end = 101});
  trace.calls = {
      {.node = 0, .track = 0, .depth = 1, .begin = 0, .end = 50, .run = 1, .shard = 0, .shards = 2},
      {.node = 0, .track = 1, .depth = 0, .begin = 0, .end = 100, .run = 1, .shard = 1, .shards = 2},
      {.node = 0, .track = 0, .depth = 1, .begin = 100, .end = 101, .run = 1, .shard = 2, .shards = 2}};
  const TraceSummary summary = summarize(trace);
  ASSERT_EQ(summary.critical_path.size(), 2U);
  EXPECT_EQ(summary.critical_path[0].time, 100) << "the shard on the worker";
  EXPECT_EQ(summary.critical_path[0].shard, 1);
  EXPECT_EQ(summary.critical_path[0].shards, 2);
  EXPECT_EQ(summary.critical_path[1].gap, 0);
  EXPECT_EQ(summary.critical_path[1].shard, 2) << "the finishing call";
  EXPECT_EQ(summary.path_time, 101);
  EXPECT_THAT(to_text(summary),
              AllOf(HasSubstr("sum (shard 2 of 2)\n"), HasSubstr("sum (end of 2 shards)\n")));
  for (TracedCall& call : trace.calls) call.replica = 1;
  EXPECT_THAT(to_text(summarize(trace)), HasSubstr("sum (replica 1, shard 2 of 2)\n"));
  EXPECT_THAT(to_text(summarize(two_replicas())), HasSubstr("r1/a (replica 1) model.cpp:3\n"));
}

// A node in a loop has a turn for each trip; what reads it reads that of its own trip.
TEST(TraceSummary, TripsOfLoopsAreToldApart) {
  Trace trace;
  trace.tracks = {{"caller", -1, 0}};
  trace.nodes = {{.name = "a", .op = "neg"}, {.name = "b", .op = "relu"}};
  trace.nodes[1].inputs = {0};
  constexpr std::int64_t kTrips = 1000;
  for (std::int64_t i = 0; i < kTrips; ++i) {
    for (std::uint32_t node = 0; node < 2; ++node)
      trace.calls.push_back(
          {.node = node, .begin = 20 * i + 10 * node, .end = 20 * i + 10 * node + 5, .run = 1});
  }
  const internal::TraceEdges edges(trace);
  for (std::int64_t i = 0; i < kTrips; ++i) {
    const internal::TraceEdges::Turn* const turn = edges.turn_before(1, 0, -1, 20 * i + 10);
    ASSERT_NE(turn, nullptr);
    EXPECT_EQ(turn->begin, 20 * i);
  }
  EXPECT_EQ(edges.turn_before(1, 0, -1, 4), nullptr);
  EXPECT_NE(edges.turn_before(1, 0, 3, 5), nullptr) << "it ran for no replica in particular";
}

// On one thread, the second a level deeper than the first, which has ended: a node that runs a program of its
// own between.
TEST(TraceSummary, ACallThatHasEndedIsAroundNothing) {
  Trace trace;
  trace.tracks = {{"caller", -1, 0}};
  trace.nodes = {{.name = "a", .op = "matmul"}, {.name = "b", .op = "relu"}};
  trace.nodes.push_back({.name = "c", .op = "all_reduce"});
  trace.nodes[2].work = TracedWork::kCollective;
  trace.runs.push_back({.run = 1, .begin = 0, .end = 100});
  trace.calls = {{.node = 0, .depth = 1, .begin = 0, .end = 10, .run = 1},
                 {.node = 1, .depth = 2, .begin = 20, .end = 30, .run = 1},
                 {.node = 2, .track = 0, .depth = 3, .begin = 5, .end = 9, .run = 1}};
  trace.tracks.push_back({"worker 0", 0, 0});
  trace.calls[2].track = 1;
  EXPECT_EQ(summarize(trace).overlapped, 4) << "the product is computed beside the collective";
}

TEST(TraceSummary, SaysWhatCommunicationOverlapsAndWhoIsIdle) {
  Trace trace = two_replicas();
  trace.waits.push_back({.run = 7, .track = 0, .begin = -50, .end = 0, .variable = "w"});
  const TraceSummary summary = summarize(trace);
  EXPECT_EQ(summary.communication, 30);
  EXPECT_EQ(summary.overlapped, 10) << "from 120 to 130 while r1/b ran";
  EXPECT_EQ(summary.lock_wait, 50);
  ASSERT_EQ(summary.workers.size(), 2U);
  EXPECT_EQ(summary.workers[0].busy, 170);
  EXPECT_EQ(summary.workers[0].idle, 30);
  EXPECT_EQ(summary.workers[1].idle, 130);
}

TEST(TraceSummary, CountsACallInsideAnotherOnce) {
  Trace trace;
  trace.tracks = {{"caller", -1, 0}};
  trace.nodes = {{.name = "loop", .op = "while"}, {.name = "body", .op = "relu"}};
  trace.nodes[1].in_region = true;
  trace.runs.push_back({.run = 1, .begin = 0, .end = 100});
  trace.calls.push_back({.node = 1, .depth = 2, .begin = 10, .end = 40, .run = 1});
  trace.calls.push_back({.node = 1, .depth = 2, .begin = 40, .end = 80, .run = 1});
  trace.calls.push_back({.node = 0, .depth = 1, .begin = 0, .end = 90, .run = 1});
  const TraceSummary summary = summarize(trace);
  ASSERT_EQ(summary.by_op.size(), 2U);
  EXPECT_EQ(summary.by_op[0].name, "relu");
  EXPECT_EQ(summary.by_op[0].time, 70);
  EXPECT_EQ(summary.by_op[1].time, 20) << "the loop itself";
  EXPECT_EQ(summary.busy, 90);
  ASSERT_EQ(summary.critical_path.size(), 1U) << "the loop stands for what is in it";
  EXPECT_EQ(summary.critical_path[0].time, 90);
}

TEST(TraceSummary, LeavesOutRunsThatAreNotAllThere) {
  Trace trace = two_replicas();
  trace.runs.push_back({.run = 8, .begin = 300, .end = 400, .complete = false});
  trace.calls.push_back({.node = 0, .begin = 300, .end = 390, .run = 8});
  trace.calls.push_back({.node = 0, .begin = 500, .end = 600, .run = 9});  // has not ended
  trace.dropped = 12;
  const TraceSummary summary = summarize(trace);
  EXPECT_EQ(summary.runs, 1U);
  EXPECT_EQ(summary.runs_left_out, 2U);
  EXPECT_EQ(summary.wall, 200);
  EXPECT_EQ(summary.busy, 240);
  EXPECT_EQ(summarize(Trace()).wall, 0);
}

TEST(TraceSummary, ReadsAsTextInUnitsThatShowDigits) {
  Trace trace = two_replicas();
  trace.dropped = 12;
  // Stretched, so that all units come up.
  const auto stretch = [](auto& span) {
    span.begin *= 34'567;
    span.end *= 34'567;
  };
  for (TracedCall& call : trace.calls) {
    stretch(call);
    call.bytes_moved *= 34'567;
    call.multiply_adds *= 34'567;
  }
  for (TracedRun& run : trace.runs) stretch(run);
  trace.calls[2].end = trace.calls[2].begin + 321;
  trace.calls[3].begin = trace.calls[3].end - 45'678;
  const std::string text = to_text(summarize(trace), {.max_rows = 2});
  EXPECT_EQ(text,
            "1 runs in     6.913 ms, calls took     6.268 ms on 2 threads\n"
            "12 events made room for later ones: record with a larger events_per_thread\n"
            "\n"
            "time by op                         time   share    calls      bytes      GB/s    GFLOP/s\n"
            "  matmul                       4.839 ms   77.2%        2  138.27 MB     28.57       71.4\n"
            "  sgd                          1.383 ms   22.1%        1  345.67 kB      0.25          -\n"
            "  ... and 2 more\n"
            "\n"
            "time by replica                    time   share    calls      bytes      GB/s    GFLOP/s\n"
            "  all replicas                 1.383 ms   22.1%        2    4.49 MB      3.25          -\n"
            "  replica 0                    3.457 ms   55.1%        1   69.13 MB     20.00       50.0\n"
            "  replica 1                    1.428 ms   22.8%        2   69.83 MB     48.89      121.0\n"
            "\n"
            "critical path of run 7:     2.811 ms in 3 calls of     6.913 ms ( 40.7%)\n"
            "  matmul                       1.383 ms after         0 ns  r1/a (replica 1) model.cpp:3\n"
            "  relu                        45.678 us after     3.757 ms  r1/b (replica 1)\n"
            "  ... and 1 shorter ones between and around them\n"
            "\n"
            "communication:       321 ns, of which         0 ns (  0.0%) while something was computed\n"
            "\n"
            "idle while runs were under way\n"
            "  caller                       2.074 ms   30.0%\n"
            "  worker 0                     5.485 ms   79.3%\n");
}

}  // namespace
}  // namespace lockstep
