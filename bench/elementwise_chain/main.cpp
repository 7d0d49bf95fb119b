// bench_elementwise_chain - chains of element-wise ops: fused, node by node, and by hand.
//
//   bench_elementwise_chain [--quick] [--json FILE]
//
// Large: 12 ops on 16 million floats, on one thread and on two. Small: 1,000 ops on 16 floats, where calls
// are all there is. All contenders of a row take turns in one run.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "chain.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/passes/optimize.h"
#include "support/report.h"
#include "support/small_chain.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t kLarge = std::int64_t{1} << 24;
constexpr std::int64_t kSmall = 16;
constexpr int kSmallOps = 1000;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong results: %s\n", what);
  std::exit(1);
}

class Bench {
 public:
  explicit Bench(Report& report) : report_(report) {}

  void run() {
    const Tensor x = random_floats(kLarge);
    std::printf("%d ops on %lld M floats: ms a run, median [q1..q3]\n", static_cast<int>(kChainOps),
                static_cast<long long>(kLarge >> 20));
    std::printf("%-8s %-8s %-26s %-26s %-26s %-22s %s\n", "chain", "threads", "node by node", "fused",
                "by hand", "fused is faster by", "of the hand-written loop's speed");
    for (const Chain chain : {Chain::kCheap, Chain::kCurved}) {
      for (const std::size_t threads : {std::size_t{1}, std::size_t{2}}) large(chain, threads, x);
    }
    small();
  }

 private:
  void large(Chain chain, std::size_t threads, const Tensor& x) {
    GraphBuilder b;
    b.result(chain_of_nodes(chain, b.placeholder("x", DType::kF32, {kLarge})));
    const Graph graph = b.finish();
    Runtime runtime({.threads = threads});
    Runner apart(graph, runtime, x);
    Runner fused(optimize(graph), runtime, x);
    Tensor by_hand = Tensor::empty(DType::kF32, {kLarge});
    const auto run_by_hand = [&] {
      const std::span<const float> in = x.data<float>();
      const std::span<float> out = by_hand.data<float>();
      const std::size_t half = threads == 1 ? in.size() : in.size() / 2;
      std::jthread other;
      if (threads == 2)
        other = std::jthread([=] { chain_by_hand(chain, in.subspan(half), out.subspan(half)); });
      chain_by_hand(chain, in.first(half), out.first(half));
    };
    run_by_hand();
    check(fused.result().bit_equal(apart.result()), "fused and node by node differ");
    for (std::size_t i = 0; i < 1000; ++i) {
      const float ours = fused.result().data<float>()[i];
      check(std::abs(ours - by_hand.data<float>()[i]) < 1e-4F, "fused and by hand differ");
    }

    const std::vector<Contender> contenders = {{"node by node", [&](std::size_t n) { apart.run(n); }},
                                               {"fused", [&](std::size_t n) { fused.run(n); }},
                                               {"by hand", [&](std::size_t n) {
                                                  while (n-- > 0) run_by_hand();
                                                }}};
    const Samples samples = report_.sampler().alternate(contenders);
    const Spread gain = spread(ratios(samples.seconds[0], samples.seconds[1]));
    const Spread share = spread(ratios(samples.seconds[2], samples.seconds[1]));
    std::printf("%-8s %-8zu ", name_of(chain), threads);
    for (const std::vector<double>& seconds : samples.seconds) Report::show(spread(seconds), 1e3, 26);
    Report::show(gain, 1, 22);
    Report::show(share, 1, 16);
    std::printf("%s\n", samples.noisy ? " NOISY" : "");
    std::fflush(stdout);
    const std::string where =
        std::string(name_of(chain)) + "/" + std::to_string(threads) + (samples.noisy ? " (noisy)" : "");
    // In the curved chain the two curves cost most, fused or not.
    if (chain == Chain::kCheap)
      report_.verdicts().at_least("large: times as fast as node by node", where, gain.median, 3);
    report_.verdicts().at_least("large: of the hand-written loop's speed", where, share.median, 0.3);
    report_.record(std::string(name_of(chain)) + "/" + std::to_string(threads), contenders, samples);
  }

  void small() {
    const Graph graph = small_chains(1, kSmallOps, kSmall);
    Runtime runtime({.threads = 1});
    const Tensor feed = random_floats(kSmall);
    Runner apart(graph, runtime, feed);
    Runner fused(optimize(graph), runtime, feed);
    check(fused.result().bit_equal(apart.result()), "small: fused and node by node differ");
    const std::vector<Contender> contenders = {{"node by node", [&](std::size_t n) { apart.run(n); }},
                                               {"fused", [&](std::size_t n) { fused.run(n); }}};
    const Samples samples = report_.sampler().alternate(contenders);
    const Spread node_by_node = spread(samples.seconds[0]);
    const Spread together = spread(samples.seconds[1]);
    std::printf("\n%d ops on %lld floats: ns an op\n%-18s", kSmallOps, static_cast<long long>(kSmall),
                "node by node");
    Report::show(node_by_node, 1e9 / kSmallOps, 0);
    std::printf("\n%-18s", "fused");
    Report::show(together, 1e9 / kSmallOps, 0);
    std::printf("%s\n", samples.noisy ? " NOISY" : "");
    const char* where = samples.noisy ? "16 floats (noisy)" : "16 floats";
    report_.verdicts().at_most("small: node by node, ns an op", where, node_by_node.median * 1e9 / kSmallOps,
                               30);
    report_.verdicts().at_most("small: fused, of node by node", where,
                               spread(ratios(samples.seconds[1], samples.seconds[0])).median, 1);
    report_.record("small", contenders, samples);
  }

  Report& report_;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Report report(argc, argv, "bench_elementwise_chain");
  lockstep::bench::Bench(report).run();
  report.finish();
}
