// bench_elementwise_chain - chains of element-wise ops: fused, node by node, and by hand.
//
//   bench_elementwise_chain [--quick] [--json FILE]
//
// Large: 12 ops on 16 million floats, on one thread and on two. Small: 1,000 ops on 16 floats, where calls are all
// there is. All contenders of a row take turns in one run.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "chain.h"
#include "lockstep/core/random.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/builder.h"
#include "lockstep/graph/compile.h"
#include "lockstep/graph/ops.h"
#include "lockstep/graph/optimize.h"
#include "support/measure.h"
#include "support/verdict.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t kLarge = std::int64_t{1} << 24;
constexpr std::int64_t kSmall = 16;
constexpr int kSmallOps = 1000;

Tensor random_floats(std::int64_t elements) {
  Tensor tensor = Tensor::empty(DType::kF32, {elements});
  const RandomStream stream{.seed = 1, .key = 1};
  std::uint64_t i = 0;
  for (float& element : tensor.data<float>()) element = Philox::to_unit_float(stream.block(i++)[0]) * 4 - 2;
  return tensor;
}

// A program, its feed and the memory of its result.
class Runner {
 public:
  Runner(Graph graph, const Runtime& runtime, const Tensor& feed)
      : program_(compile(std::move(graph), runtime)),
        feeds_{feed},
        results_{Tensor::empty(feed.dtype(), feed.shape())} {
    run(1);
  }
  void run(std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) program_.run_into(feeds_, results_);
  }
  const Tensor& result() const { return results_[0]; }

 private:
  Program program_;
  std::vector<Tensor> feeds_;
  std::vector<Tensor> results_;
};

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong results: %s\n", what);
  std::exit(1);
}

class Bench {
 public:
  Bench(SamplerOptions sampling, std::string json) : sampler_(sampling), json_path_(std::move(json)) {}

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
    std::printf("\n%zu rounds kept, %zu discarded, %zu disturbed\n\n", sampler_.kept(), sampler_.discarded(),
                sampler_.noisy());
    verdicts_.print();
    if (json_path_.empty()) return;
    std::FILE* file = std::fopen(json_path_.c_str(), "w");
    if (file == nullptr) return;
    std::fprintf(file, "{\"rows\": [%s\n],\n\"targets\": %s}\n", json_.c_str(), verdicts_.json().c_str());
    std::fclose(file);
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
    const Samples samples = sampler_.alternate(contenders);
    const Spread gain = spread(ratios(samples.seconds[0], samples.seconds[1]));
    const Spread share = spread(ratios(samples.seconds[2], samples.seconds[1]));
    std::printf("%-8s %-8zu ", name_of(chain), threads);
    for (const std::vector<double>& seconds : samples.seconds) show(spread(seconds), 1e3, 26);
    show(gain, 1, 22);
    show(share, 1, 16);
    std::printf("%s\n", samples.noisy ? " NOISY" : "");
    std::fflush(stdout);
    const std::string where =
        std::string(name_of(chain)) + "/" + std::to_string(threads) + (samples.noisy ? " (noisy)" : "");
    // In the curved chain the two curves cost most, fused or not.
    if (chain == Chain::kCheap)
      verdicts_.at_least("large: times as fast as node by node", where, gain.median, 3);
    verdicts_.at_least("large: of the hand-written loop's speed", where, share.median, 0.3);
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      record(std::string(name_of(chain)) + "/" + std::to_string(threads), contenders[i].name,
             spread(samples.seconds[i]), samples.noisy);
    }
  }

  void small() {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {kSmall});
    Value a = x;
    for (int i = 0; i < kSmallOps; ++i) {
      switch (i % 4) {
        case 0: a = a * 0.5F; break;
        case 1: a = a + x; break;
        case 2: a = relu(a); break;
        default: a = a - 0.25F; break;
      }
    }
    b.result(a);
    const Graph graph = b.finish();
    Runtime runtime({.threads = 1});
    const Tensor feed = random_floats(kSmall);
    Runner apart(graph, runtime, feed);
    Runner fused(optimize(graph), runtime, feed);
    check(fused.result().bit_equal(apart.result()), "small: fused and node by node differ");
    const std::vector<Contender> contenders = {{"node by node", [&](std::size_t n) { apart.run(n); }},
                                               {"fused", [&](std::size_t n) { fused.run(n); }}};
    const Samples samples = sampler_.alternate(contenders);
    const Spread node_by_node = spread(samples.seconds[0]);
    const Spread together = spread(samples.seconds[1]);
    std::printf("\n%d ops on %lld floats: ns an op\n%-18s", kSmallOps, static_cast<long long>(kSmall),
                "node by node");
    show(node_by_node, 1e9 / kSmallOps, 0);
    std::printf("\n%-18s", "fused");
    show(together, 1e9 / kSmallOps, 0);
    std::printf("%s\n", samples.noisy ? " NOISY" : "");
    const char* where = samples.noisy ? "16 floats (noisy)" : "16 floats";
    verdicts_.at_most("small: node by node, ns an op", where, node_by_node.median * 1e9 / kSmallOps, 30);
    verdicts_.at_most("small: fused, of node by node", where,
                      spread(ratios(samples.seconds[1], samples.seconds[0])).median, 1);
    record("small", "node by node", node_by_node, samples.noisy);
    record("small", "fused", together, samples.noisy);
  }

  static void show(const Spread& s, double factor, int width) {
    char text[64];
    std::snprintf(text, sizeof text, "%.2f [%.2f..%.2f]", s.median * factor, s.q1 * factor, s.q3 * factor);
    std::printf("%-*s ", width, text);
  }

  void record(const std::string& row, const std::string& who, const Spread& s, bool noisy) {
    char line[256];
    std::snprintf(line, sizeof line,
                  R"(%s{"row": "%s", "rival": "%s", "seconds": [%.9f, %.9f, %.9f], "noisy": %s})",
                  json_.empty() ? "\n  " : ",\n  ", row.c_str(), who.c_str(), s.q1, s.median, s.q3,
                  noisy ? "true" : "false");
    json_ += line;
  }

  Sampler sampler_;
  std::string json_path_;
  Verdicts verdicts_;
  std::string json_;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::SamplerOptions sampling;
  std::string json;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      sampling.rounds = 5;
      sampling.patience = 5;
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else {
      std::fprintf(stderr, "bench_elementwise_chain [--quick] [--json FILE]\n");
      return 2;
    }
  }
  lockstep::bench::Bench(sampling, json).run();
}
