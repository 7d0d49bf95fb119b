// bench/gpu/rows.cpp - rows that are measured in this process, and their targets.
#include "rows.h"

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "card.h"
#include "lockstep/core/runtime.h"
#include "programs.h"
#include "step.h"

namespace lockstep::bench {

namespace {

constexpr int kKernels = 1000;
constexpr std::int64_t kChain = std::int64_t{1} << 28U;   // floats: 1 GiB
constexpr std::int64_t kSummed = std::int64_t{1} << 26U;  // floats: 256 MiB
constexpr int kTensors = 400;
constexpr std::int64_t kSide = 500;  // of a tensor that is updated
constexpr std::int64_t kRows = 8192;
constexpr std::size_t kLogical = 4;
constexpr std::int64_t kJoinedBatch = 8192, kBatch = 1024;
constexpr int kHostCalls = 64;

constexpr double kTinyTarget = 1.1, kHostTarget = 15e-6, kChainTarget = 0.85, kSumTarget = 0.8,
                 kUpdateTarget = 0.85, kRowsTarget = 0.8, kMirroredTarget = 1.05;

const char* noisy(const Samples& samples) { return samples.noisy ? " NOISY" : ""; }

Runtime logical_gpus() {
  return Runtime(
      {.threads = kLogical, .gpus = std::vector<LogicalDevice>(kLogical, LogicalDevice{.card = 0})});
}

class Rows {
 public:
  explicit Rows(Report& report) : report_(report) {}

  void run() {
    copy_rate();
    if (report_.wants("tiny")) tiny();
    if (report_.wants("host")) host();
    if (report_.wants("chain")) moves([&] { return element_chain(runtime_, kChain); }, kChainTarget);
    if (report_.wants("all-reduce")) all_reduce();
    if (report_.wants("adamw"))
      moves([&] { return adamw_updates(runtime_, kTensors, kSide); }, kUpdateTarget);
    for (const auto& [part, op] : {std::pair("softmax", "softmax"), std::pair("layer-norm", "layer_norm"),
                                   std::pair("cross-entropy", "cross_entropy")}) {
      if (!report_.wants(part)) continue;
      for (const bool backward : {false, true})
        moves([&] { return row_op(runtime_, op, backward, kRows); }, kRowsTarget);
    }
    if (report_.wants("mirrored")) mirrored();
  }

 private:
  void copy_rate() {
    const Contender contenders[] = {copy_.contender()};
    copy_.run(4);
    const Samples samples = report_.sampler().alternate(contenders);
    std::printf("%-22s", "copy rate");
    std::vector<double> rates;
    for (const double seconds : samples.seconds[0]) rates.push_back(Copy::bytes() / seconds);
    Report::show(spread(rates), 1e-12, 28);
    std::printf(" TB/s read and written%s\n", noisy(samples));
    report_.record("copy", contenders, samples);
  }

  // A run of ours beside copies: how much of their rate it reaches with the bytes that it has to move.
  void moves_beside_copies(const std::string& name, const Contender& ours, double bytes,
                           const std::string& formula, double target) {
    ours.run(4);  // so that everything is compiled and recorded
    const Contender contenders[] = {copy_.contender(), ours};
    const Samples samples = report_.sampler().alternate(contenders);
    std::vector<double> shares = ratios(samples.seconds[0], samples.seconds[1]);
    for (double& share : shares) share *= bytes / Copy::bytes();
    const Spread share = spread(shares), seconds = spread(samples.seconds[1]);
    std::printf("%-22s", name.c_str());
    Report::show(seconds, 1e6, 28);
    std::printf(" us ");
    Report::show(share, 1, 20);
    std::printf(" of the copy rate, %.2f TB/s: %s, %.0f MiB%s\n", bytes / seconds.median * 1e-12,
                formula.c_str(), bytes / (1 << 20U), noisy(samples));
    std::fflush(stdout);
    report_.record(name, contenders, samples);
    report_.verdicts().at_least(name + ", of the copy rate", samples.noisy ? "(noisy)" : "", share.median,
                                target);
  }

  template <class Make>
  void moves(const Make& make, double target) {
    const Moving moving = make();
    moves_beside_copies(moving.name, contender(moving.name, moving.program), moving.bytes, moving.formula,
                        target);
  }

  void all_reduce() {
    const Runtime runtime = logical_gpus();
    const LogicalSum sum(runtime, kSummed);
    if (!sum.is_right()) std::printf("WRONG: the all-reduce gives another sum; its figures mean nothing\n");
    moves_beside_copies("all-reduce", contender("all-reduce", sum.program()), sum.bytes(), sum.formula(),
                        kSumTarget);
  }

  // Two contenders, and how much of the second one's time the first one takes.
  void compare(const std::string& name, const Contender& ours, const Contender& theirs,
               const std::string& target, double limit) {
    ours.run(4);
    theirs.run(4);
    const Contender contenders[] = {ours, theirs};
    const Samples samples = report_.sampler().alternate(contenders);
    const Spread ratio = spread(ratios(samples.seconds[0], samples.seconds[1]));
    std::printf("%-22s", name.c_str());
    Report::show(spread(samples.seconds[0]), 1e6, 28);
    std::printf(" us, %s ", theirs.name.c_str());
    Report::show(spread(samples.seconds[1]), 1e6, 28);
    std::printf(" us: ");
    Report::show(ratio, 1, 20);
    std::printf(" of it%s\n", noisy(samples));
    std::fflush(stdout);
    report_.record(name, contenders, samples);
    report_.verdicts().at_most(target, name + (samples.noisy ? " (noisy)" : ""), ratio.median, limit);
  }

  void tiny() {
    const Program program = tiny_chain(runtime_, kKernels);
    const HandGraph hand(kKernels);
    compare("1000 kernels, replayed", contender("Lockstep", program),
            {"by hand", [&hand](std::size_t times) { hand.run(times); }},
            "1000 kernels, of a CUDA graph by hand", kTinyTarget);
  }

  // Time of the call with nothing in flight, so that it waits for nothing.
  void host() {
    const Case what = parse_case("mlp-tf32");
    const TrainingStep step(runtime_, what, kBatch);
    const Program tiny = tiny_chain(runtime_, 1);
    const auto seconds_of = [](const Program& program, const std::vector<Tensor>& feeds) {
      std::vector<double> calls;
      for (int i = 0; i < kHostCalls; ++i) {
        program.wait();
        const double begin = now();
        const std::vector<Tensor> results = program.run(feeds);
        calls.push_back(now() - begin);
      }
      program.wait();
      return calls;
    };
    const auto judge = [&](const char* name, const Program& program, const std::vector<Tensor>& feeds,
                           bool is_target) {
      seconds_of(program, feeds);  // so that everything is recorded
      std::vector<double> calls;
      for (int round = 0; round < (report_.is_quick() ? 5 : 21); ++round) {
        const std::vector<double> more = seconds_of(program, feeds);
        calls.insert(calls.end(), more.begin(), more.end());
      }
      const Spread call = spread(calls);
      std::printf("%-22s", name);
      Report::show(call, 1e6, 28);
      std::printf(" us of the host\n");
      if (is_target)
        report_.verdicts().at_most("a replayed step, us of the host", name, call.median * 1e6,
                                   kHostTarget * 1e6);
    };
    judge("a run of one kernel", tiny, {}, false);
    judge("a step of the MLP", step.program(), step.feeds(), true);
    std::fflush(stdout);
  }

  void mirrored() {
    for (const char* name : {"mlp-tf32", "mlp-bf16"}) {
      const Case what = parse_case(name);
      const Runtime runtime = logical_gpus();
      const MirroredTraining mirrored(runtime, what, kJoinedBatch);
      const TrainingStep joined(runtime_, what, kJoinedBatch);
      compare(str("mirrored ", name), contender("mirrored", mirrored.program(), mirrored.feeds()),
              contender("one replica", joined.program(), joined.feeds()),
              "4 logical GPUs, of one replica's time", kMirroredTarget);
    }
  }

  Report& report_;
  Runtime runtime_{{.threads = kLogical}};
  Copy copy_;
};

}  // namespace

std::vector<std::string> row_names() {
  return {"tiny",    "host",       "chain",         "all-reduce", "adamw",
          "softmax", "layer-norm", "cross-entropy", "mirrored",   "compile"};
}

void measure_rows(Report& report) { Rows(report).run(); }

}  // namespace lockstep::bench
