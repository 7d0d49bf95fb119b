// bench_exchange - the sum of arrays of floats over processes on this machine: Lockstep's exchange and Gloo's ring.
//
//   bench_exchange [--quick] [--json FILE]
//
// 2 and 4 processes, arrays of 1 KiB to 64 MiB, in place. Both take turns in one run.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/measure.h"
#include "support/verdict.h"
#include "team.h"

namespace lockstep::bench {
namespace {

struct Options {
  bool quick = false;
  std::string json;
};

std::string text_of(std::int64_t bytes) {
  return bytes >= (1 << 20) ? std::to_string(bytes >> 20) + "M" : std::to_string(bytes >> 10) + "K";
}

void show(const Spread& s, double factor, int width) {
  char text[64];
  const char* format = s.median * factor < 100 ? "%.2f [%.2f..%.2f]" : "%.0f [%.0f..%.0f]";
  std::snprintf(text, sizeof text, format, s.median * factor, s.q1 * factor, s.q3 * factor);
  std::printf(" %-*s", width, text);
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {
    for (std::int64_t bytes = 1 << 10; bytes <= (64 << 20); bytes *= options_.quick ? 16 : 4)
      sizes_.push_back(bytes);
    for (const int size : {2, 4})
      teams_.push_back(std::make_unique<Team>(size, sizes_.back() / 4,
                                              std::vector<MakeExchanger>{make_lockstep, make_gloo_ring}));
  }

  void run() {
    std::printf("all-reduce of f32 over processes, in place: us an operation, median [q1..q3]\n");
    for (const auto& team : teams_) {
      team->connect();
      std::printf("\n%d processes\n%-8s %-28s %-28s %-19s\n", team->size(), "bytes", "Lockstep",
                  "Gloo's ring", "of the ring");
      for (const std::int64_t bytes : sizes_) row(*team, bytes);
    }
    std::printf("\n");
    verdicts_.print();
    write_json();
  }

 private:
  void row(Team& team, std::int64_t bytes) {
    const std::int64_t floats = bytes / 4;
    std::vector<Contender> contenders;
    for (std::size_t i = 0; i < 2; ++i) {
      const std::string name = i == 0 ? "Lockstep" : "Gloo's ring";
      if (!team.check(i, floats)) throw std::runtime_error("wrong sums: " + name);
      contenders.push_back({name, [&team, i, floats](std::size_t times) { team.run(i, floats, times); }});
    }
    SamplerOptions sampling;
    if (options_.quick || bytes >= (16 << 20)) sampling.rounds = sampling.patience = 7;
    Sampler sampler(sampling);
    const Samples samples = sampler.alternate(contenders);
    const std::string where =
        std::to_string(team.size()) + "x" + text_of(bytes) + (samples.noisy ? " (noisy)" : "");
    std::printf("%-8s", text_of(bytes).c_str());
    for (const std::vector<double>& seconds : samples.seconds) show(spread(seconds), 1e6, 28);
    const Spread speed = spread(ratios(samples.seconds[1], samples.seconds[0]));
    show(speed, 1, 19);
    std::printf("%s\n", samples.noisy ? " NOISY" : "");
    std::fflush(stdout);
    if (bytes <= (64 << 10)) {
      verdicts_.at_least("of the speed of Gloo's ring, up to 64 KiB", where, speed.median, 1.5);
    } else {
      verdicts_.at_least("of the speed of Gloo's ring, beyond 64 KiB", where, speed.median, 1);
    }
    char line[256];
    std::snprintf(line, sizeof line,
                  R"(%s{"processes": %d, "bytes": %lld, "ratio": [%.4f, %.4f, %.4f], "noisy": %s})",
                  json_.empty() ? "\n  " : ",\n  ", team.size(), static_cast<long long>(bytes), speed.q1,
                  speed.median, speed.q3, samples.noisy ? "true" : "false");
    json_ += line;
  }

  void write_json() const {
    if (options_.json.empty()) return;
    std::FILE* file = std::fopen(options_.json.c_str(), "w");
    if (file == nullptr) throw std::runtime_error("cannot write " + options_.json);
    std::fprintf(file, "{\"rows\": [%s\n],\n\"targets\": %s}\n", json_.c_str(), verdicts_.json().c_str());
    std::fclose(file);
  }

  Options options_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::unique_ptr<Team>> teams_;
  Verdicts verdicts_;
  std::string json_;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      options.json = argv[++i];
    } else {
      std::fprintf(stderr, "bench_exchange [--quick] [--json FILE]\n");
      return 2;
    }
  }
  try {
    lockstep::bench::Bench(options).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_exchange: %s\n", error.what());
    return 1;
  }
  return 0;
}
