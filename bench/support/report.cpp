#include "support/report.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace lockstep::bench {

Report::Options Report::parse(int argc, char** argv, const char* name) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.sampling.rounds = 5;
      options.sampling.patience = 5;
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      options.json_path = argv[++i];
    } else {
      std::fprintf(stderr, "%s [--quick] [--json FILE]\n", name);
      std::exit(2);
    }
  }
  return options;
}

Report::Report(int argc, char** argv, const char* name) : Report(parse(argc, argv, name)) {}

void Report::show(const Spread& spread, double factor, int width) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f [%.2f..%.2f]", spread.median * factor, spread.q1 * factor,
                spread.q3 * factor);
  std::printf("%-*s ", width, text);
}

void Report::record(const std::string& row, std::span<const Contender> contenders, const Samples& samples) {
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const Spread s = spread(samples.seconds[i]);
    char line[256];
    std::snprintf(line, sizeof line,
                  R"(%s{"row": "%s", "rival": "%s", "seconds": [%.9f, %.9f, %.9f], "noisy": %s})",
                  json_.empty() ? "\n  " : ",\n  ", row.c_str(), contenders[i].name.c_str(), s.q1, s.median,
                  s.q3, samples.noisy ? "true" : "false");
    json_ += line;
  }
}

void Report::finish() const {
  std::printf("\n%zu rounds kept, %zu discarded, %zu disturbed\n\n", sampler_.kept(), sampler_.discarded(),
              sampler_.noisy());
  verdicts_.print();
  if (json_path_.empty()) return;
  std::FILE* file = std::fopen(json_path_.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", json_path_.c_str());
    std::exit(1);
  }
  std::fprintf(file, "{\"rows\": [%s\n],\n\"targets\": %s}\n", json_.c_str(), verdicts_.json().c_str());
  std::fclose(file);
}

}  // namespace lockstep::bench
