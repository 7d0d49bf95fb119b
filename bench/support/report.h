// bench/support/report.h - what the small benchmarks share: their options, how figures are printed, and the
// JSON they leave.
//
//   Report report(argc, argv, "bench_x");          // [--quick] [--json FILE]; prints the usage and exits where it is wrong
//   Report report(argc, argv, "bench_y", {.parts = {"chain", "sum"}});    // and [--only chain,sum]: report.wants("sum")
//   const Samples samples = report.sampler().alternate(contenders);
//   report.record("row", contenders, samples);
//   report.finish();
#pragma once

#include <span>
#include <string>
#include <vector>

#include "support/measure.h"
#include "support/verdict.h"

namespace lockstep::bench {

struct ReportDefaults {
  SamplerOptions sampling = {};         // unless --quick says otherwise
  std::vector<std::string> parts = {};  // that --only chooses from
};

class Report {
 public:
  Report(int argc, char** argv, const char* name, const ReportDefaults& defaults = {});

  // Is this part to be measured?
  bool wants(const std::string& part) const;
  bool is_quick() const { return quick_; }

  Sampler& sampler() { return sampler_; }
  Verdicts& verdicts() { return verdicts_; }
  // "median [q1..q3]", scaled, in a column of that width.
  static void show(const Spread& spread, double factor, int width);
  // One line of JSON for each contender.
  void record(const std::string& row, std::span<const Contender> contenders, const Samples& samples);
  // Prints rounds and verdicts, and writes the JSON where it was asked for.
  void finish() const;

 private:
  struct Options {
    SamplerOptions sampling;
    std::string json_path;
    std::vector<std::string> only;
    bool quick = false;
  };
  static Options parse(int argc, char** argv, const char* name, const ReportDefaults& defaults);
  explicit Report(Options options)
      : sampler_(options.sampling),
        json_path_(std::move(options.json_path)),
        only_(std::move(options.only)),
        quick_(options.quick) {}

  Sampler sampler_;
  std::string json_path_;
  std::vector<std::string> only_;  // empty: all
  bool quick_;
  Verdicts verdicts_;
  std::string json_;
};

}  // namespace lockstep::bench
