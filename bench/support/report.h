// bench/support/report.h - what the small benchmarks share: their options, how figures are printed, and the
// JSON they leave.
//
//   Report report(argc, argv, "bench_x");          // [--quick] [--json FILE]; prints the usage and exits where it is wrong
//   const Samples samples = report.sampler().alternate(contenders);
//   report.record("row", contenders, samples);
//   report.finish();
#pragma once

#include <span>
#include <string>

#include "support/measure.h"
#include "support/verdict.h"

namespace lockstep::bench {

class Report {
 public:
  Report(int argc, char** argv, const char* name);

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
  };
  static Options parse(int argc, char** argv, const char* name);
  explicit Report(Options options) : sampler_(options.sampling), json_path_(std::move(options.json_path)) {}

  Sampler sampler_;
  std::string json_path_;
  Verdicts verdicts_;
  std::string json_;
};

}  // namespace lockstep::bench
