// bench/training_step - a whole training step: Lockstep and what BLAS alone needs, as a worker for run.py.
//
//   bench_training_step --as lockstep|blas|halves [--threads N]       waits for commands (worker.py says which)
//   bench_training_step --profile MODEL BATCH [--threads N] [--steps N]    where the time of Lockstep's step goes
//
// run.py starts it, beside the rivals, and does the comparing. Method and targets: bench/README.md.
// Exit status: 0; 2 for a wrong argument.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "lockstep/core/version.h"
#include "participant.h"
#include "support/measure.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kWarmUpSteps = 20;

struct Arguments {
  std::string as;
  std::size_t threads = 1;
  std::string model;  // to profile
  std::int64_t batch = 0;
  std::size_t steps = 200;
};

std::unique_ptr<Participant> make(const Arguments& arguments, const std::string& model, std::int64_t batch) {
  if (arguments.as == "blas") return make_blas_bound(model, batch, arguments.threads);
  if (arguments.as == "halves") return make_halves_bound(model, batch);
  return make_lockstep(model, batch, arguments.threads);
}

void serve(const Arguments& arguments) {
  std::cout << arguments.as << " " << kVersion << std::endl;
  std::map<std::pair<std::string, std::int64_t>, std::unique_ptr<Participant>> participants;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command, model;
    std::int64_t batch = 0;
    std::size_t steps = 0;
    words >> command >> model >> batch >> steps;
    try {
      std::unique_ptr<Participant>& participant = participants[{model, batch}];
      if (command == "start") {
        participant = make(arguments, model, batch);
        if (participant == nullptr) {
          std::cout << "none" << std::endl;
        } else {
          const double first = participant->run(1);
          std::cout << first << " " << participant->run(kWarmUpSteps - 1) << std::endl;
        }
      } else if (participant == nullptr) {
        std::cout << "error: start " << model << " " << batch << " first" << std::endl;
      } else if (command == "run") {
        const double begin = now(), used = cpu_now();
        participant->run(steps);
        std::cout << now() - begin << " " << cpu_now() - used << std::endl;
      } else if (command == "plan") {
        std::cout << participant->plan() << std::endl;
      } else {
        std::cout << "error: unknown command " << command << std::endl;
      }
    } catch (const std::exception& error) {
      std::cerr << error.what() << "\n";
      std::cout << "error: see standard error" << std::endl;
    }
  }
}

int usage(const std::string& what) {
  std::cerr << what << "\nbench_training_step --as lockstep|blas|halves [--threads N]\n"
            << "bench_training_step --profile mlp|cnn|transformer BATCH [--threads N] [--steps N]\n";
  return 2;
}

int bench_main(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return usage("a flag lacks its value, or is unknown: " + flag);
    const std::string value = argv[++i];
    const int number = std::atoi(value.c_str());
    if (flag == "--as" && (value == "lockstep" || value == "blas" || value == "halves")) {
      arguments.as = value;
    } else if (flag == "--threads" && number > 0) {
      arguments.threads = static_cast<std::size_t>(number);
    } else if (flag == "--steps" && number > 0) {
      arguments.steps = static_cast<std::size_t>(number);
    } else if (flag == "--profile" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      arguments.model = value;
      arguments.batch = std::atoi(argv[++i]);
    } else {
      return usage("cannot use " + flag + " " + value);
    }
  }
  if (!arguments.model.empty()) {
    const auto participant = make_lockstep(arguments.model, arguments.batch, arguments.threads);
    participant->run(kWarmUpSteps);
    std::cout << participant->profile(arguments.steps) << participant->plan() << std::endl;
    return 0;
  }
  if (arguments.as.empty()) return usage("nothing to do: the comparison is bench/training_step/run.py");
  serve(arguments);
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::bench_main(argc, argv); }
