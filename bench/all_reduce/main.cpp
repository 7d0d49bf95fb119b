// bench_all_reduce - the sum of N arrays of floats on every participant: Lockstep, by hand, MPI, Gloo; and as
// a node of a program.
//
//   bench_all_reduce [--quick] [--json FILE]
//
// 2, 4 and 8 participants, arrays of 1 KiB to 256 MiB, in place. All contenders of a row take turns in one
// run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "rivals.h"
#include "support/measure.h"
#include "support/verdict.h"

namespace lockstep::bench {

void Arrays::Free::operator()(float* memory) const { std::free(memory); }

Arrays::Arrays(int participants, std::int64_t floats) {
  for (int p = 0; p < participants; ++p) {
    const auto bytes = (static_cast<std::size_t>(floats) * sizeof(float) + 4095) / 4096 * 4096;
    arrays_.emplace_back(static_cast<float*>(std::aligned_alloc(4096, bytes)));
    std::fill_n(arrays_.back().get(), floats, 0.0F);
  }
}

void Arrays::fill(std::int64_t floats) const {
  for (std::size_t p = 0; p < arrays_.size(); ++p)
    std::fill_n(arrays_[p].get(), floats, static_cast<float>(p + 1));
}

bool Arrays::are_all(std::int64_t floats, float value) const {
  return std::all_of(arrays_.begin(), arrays_.end(), [&](const auto& array) {
    return std::all_of(array.get(), array.get() + floats, [value](float x) { return x == value; });
  });
}

namespace {

struct Options {
  bool quick = false;
  std::string json;
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {}

  void run() {
    std::vector<std::int64_t> sizes = {1 << 10, 16 << 10, 256 << 10, 1 << 20, 16 << 20};
    if (!options_.quick) sizes.push_back(256 << 20);
    std::printf(
        "all-reduce of f32, in place: us an operation, median [q1..q3]; then of each rival's speed\n");
    for (const int participants : {2, 4, 8}) {
      const Arrays arrays(participants, sizes.back() / 4);
      std::vector<std::unique_ptr<Rival>> rivals;
      rivals.push_back(make_communicator(arrays));
      rivals.push_back(make_by_hand(arrays));
      for (auto make : {&Bench::mpi, &Bench::gloo}) {
        if (auto rival = make(arrays)) rivals.push_back(std::move(rival));
      }
      std::printf("\n%d participants\n%-8s", participants, "bytes");
      for (const auto& rival : rivals) std::printf(" %-28s", rival->name().c_str());
      for (std::size_t i = 1; i < rivals.size(); ++i)
        std::printf(" %-19s", ("of " + rivals[i]->name()).c_str());
      std::printf(" GB/s\n");
      for (const std::int64_t bytes : sizes) row(arrays, rivals, bytes);
      nodes(arrays, sizes);
    }
    std::printf("\n%zu rounds kept, %zu discarded, %zu disturbed\n", kept_, discarded_, noisy_);
    verdicts_.print();
    write_json();
  }

 private:
  static std::unique_ptr<Rival> mpi(const Arrays& arrays) { return make_mpi(arrays.participants()); }
  static std::unique_ptr<Rival> gloo(const Arrays& arrays) { return make_gloo(arrays); }

  // The same inside a program, where nobody waits for threads of his own.
  void nodes(const Arrays& arrays, const std::vector<std::int64_t>& sizes) {
    const int n = arrays.participants();
    enum : std::size_t { kCopied, kShared, kWithout, kHand, kCopiedAlone, kSharedAlone };
    std::vector<std::unique_ptr<Rival>> rivals;
    for (const ProgramKind kind : {ProgramKind::kCopied, ProgramKind::kShared, ProgramKind::kWithout})
      rivals.push_back(make_program(n, kind));
    rivals.push_back(make_by_hand(arrays));
    for (const ProgramKind kind : {ProgramKind::kCopied, ProgramKind::kShared})
      rivals.push_back(make_sum_alone(arrays, kind));
    std::printf("\nas a node of a program\n%-8s", "bytes");
    for (const auto& rival : rivals) std::printf(" %-28s", rival->name().c_str());
    std::printf(" %-19s %-19s adds, us: copied, shared (beside the sum itself)\n", "copied, of hand",
                "shared, of hand");
    for (const std::int64_t bytes : sizes) {
      const Samples samples = measure(arrays, rivals, bytes);
      const std::string where = place(n, bytes, samples);
      const Spread copied = spread(ratios(samples.seconds[kHand], samples.seconds[kCopied]));
      const Spread shared = spread(ratios(samples.seconds[kHand], samples.seconds[kShared]));
      show(copied, 1, 19);
      show(shared, 1, 19);
      const auto added = [&](std::size_t node) {
        return differences(samples.seconds[node], samples.seconds[kWithout]);
      };
      const auto microseconds = [](const std::vector<double>& values) { return 1e6 * spread(values).median; };
      const double adds_copied = microseconds(added(kCopied)), adds_shared = microseconds(added(kShared));
      // Less the arithmetic and the memory's work, which any way of summing has.
      const double beside_copied = microseconds(differences(added(kCopied), samples.seconds[kCopiedAlone]));
      const double beside_shared = microseconds(differences(added(kShared), samples.seconds[kSharedAlone]));
      std::printf(" %.2f, %.2f (%.2f, %.2f)%s\n", adds_copied, adds_shared, beside_copied, beside_shared,
                  samples.noisy ? " NOISY" : "");
      std::fflush(stdout);
      if (bytes < (64 << 10)) {
        verdicts_.at_most("a node adds, below 64 KiB, us", where + " copied", adds_copied, 2);
        verdicts_.at_most("a node adds, below 64 KiB, us", where + " shared", adds_shared, 2);
      } else if (bytes >= (1 << 20)) {
        verdicts_.at_least("node with a shared result, of the speed by hand, from 1 MiB", where,
                           shared.median, 1);
      }
    }
  }

  static std::string place(int participants, std::int64_t bytes, const Samples& samples) {
    return std::to_string(participants) + "x" + text_of(bytes) + (samples.noisy ? " (noisy)" : "");
  }

  // Checks and measures all of them at this size, and prints their times.
  Samples measure(const Arrays& arrays, const std::vector<std::unique_ptr<Rival>>& rivals,
                  std::int64_t bytes) {
    const int n = arrays.participants();
    const std::int64_t floats = bytes / 4;
    std::vector<Contender> contenders;
    for (const auto& rival : rivals) {
      arrays.fill(floats);
      rival->run(floats, 1);
      if (rival->in_place() && !arrays.are_all(floats, static_cast<float>(n * (n + 1) / 2))) {
        std::fprintf(stderr, "wrong results: %s\n", rival->name().c_str());
        std::exit(1);
      }
      contenders.push_back(
          {rival->name(), [&rival, floats](std::size_t times) { rival->run(floats, times); }});
    }
    // Sums of sums would end as infinities.
    for (int p = 0; p < n; ++p) std::fill_n(arrays[p], floats, 0.0F);

    SamplerOptions sampling;
    if (options_.quick || bytes >= (16 << 20)) sampling.rounds = sampling.patience = 7;
    if (bytes >= (256 << 20)) sampling.rounds = sampling.patience = 3;
    Sampler sampler(sampling);
    Samples samples = sampler.alternate(contenders);
    kept_ += sampler.kept();
    discarded_ += sampler.discarded();
    noisy_ += sampler.noisy();
    std::printf("%-8s", text_of(bytes).c_str());
    for (const std::vector<double>& seconds : samples.seconds) show(spread(seconds), 1e6, 28);
    for (std::size_t i = 0; i < contenders.size(); ++i) record(n, bytes, contenders[i].name, samples, i);
    return samples;
  }

  void row(const Arrays& arrays, const std::vector<std::unique_ptr<Rival>>& rivals, std::int64_t bytes) {
    const int n = arrays.participants();
    const Samples samples = measure(arrays, rivals, bytes);
    const std::string where = place(n, bytes, samples);
    for (std::size_t i = 1; i < rivals.size(); ++i) {
      const Spread speed = spread(ratios(samples.seconds[i], samples.seconds[0]));
      show(speed, 1, 19);
      const std::string rival = rivals[i]->name();
      if (rival != "by hand") {
        verdicts_.at_least("of " + rival + "'s speed, every size", where, speed.median, 1);
      } else if (bytes >= (1 << 20)) {
        verdicts_.at_least("of the speed by hand, from 1 MiB", where, speed.median, 0.9);
      }
    }
    // What has to pass between processor and memory: every array once in, once out.
    std::printf(" %.1f%s\n", 2e-9 * n * static_cast<double>(bytes) / spread(samples.seconds[0]).median,
                samples.noisy ? " NOISY" : "");
    std::fflush(stdout);
  }

  static std::string text_of(std::int64_t bytes) {
    return bytes >= (1 << 20) ? std::to_string(bytes >> 20) + "M" : std::to_string(bytes >> 10) + "K";
  }

  static void show(const Spread& s, double factor, int width) {
    char text[64];
    const char* format = s.median * factor < 100 ? "%.2f [%.2f..%.2f]" : "%.0f [%.0f..%.0f]";
    std::snprintf(text, sizeof text, format, s.median * factor, s.q1 * factor, s.q3 * factor);
    std::printf(" %-*s", width, text);
  }

  void record(int n, std::int64_t bytes, const std::string& who, const Samples& samples, std::size_t i) {
    const Spread s = spread(samples.seconds[i]);
    char line[256];
    std::snprintf(
        line, sizeof line,
        R"(%s{"participants": %d, "bytes": %lld, "rival": "%s", "seconds": [%.9f, %.9f, %.9f], "noisy": %s})",
        json_.empty() ? "\n  " : ",\n  ", n, static_cast<long long>(bytes), who.c_str(), s.q1, s.median, s.q3,
        samples.noisy ? "true" : "false");
    json_ += line;
  }

  void write_json() const {
    if (options_.json.empty()) return;
    std::FILE* file = std::fopen(options_.json.c_str(), "w");
    if (file == nullptr) return;
    std::fprintf(file, "{\"rows\": [%s\n],\n\"targets\": %s}\n", json_.c_str(), verdicts_.json().c_str());
    std::fclose(file);
  }

  Options options_;
  Verdicts verdicts_;
  std::string json_;
  std::size_t kept_ = 0, discarded_ = 0, noisy_ = 0;
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
      std::fprintf(stderr, "bench_all_reduce [--quick] [--json FILE]\n");
      return 2;
    }
  }
  lockstep::bench::Bench(options).run();
}
