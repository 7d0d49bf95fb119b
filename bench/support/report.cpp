#include "support/report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace lockstep::bench {

Report::Options Report::parse(int argc, char** argv, const char* name, const ReportDefaults& defaults) {
  Options options;
  options.sampling = defaults.sampling;
  bool is_usable = true;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
      options.sampling.rounds = 5;
      options.sampling.patience = 5;
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      options.json_path = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc && !defaults.parts.empty()) {
      std::istringstream parts(argv[++i]);
      for (std::string part; std::getline(parts, part, ',');) {
        is_usable = is_usable && std::ranges::find(defaults.parts, part) != defaults.parts.end();
        options.only.push_back(part);
      }
    } else {
      is_usable = false;
    }
  }
  if (is_usable) return options;
  std::fprintf(stderr, "%s [--quick] [--json FILE]%s", name,
               defaults.parts.empty() ? "" : " [--only PART,...]\nparts:");
  for (const std::string& part : defaults.parts) std::fprintf(stderr, " %s", part.c_str());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

Report::Report(int argc, char** argv, const char* name, const ReportDefaults& defaults)
    : Report(parse(argc, argv, name, defaults)) {}

bool Report::wants(const std::string& part) const {
  return only_.empty() || std::ranges::find(only_, part) != only_.end();
}

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
