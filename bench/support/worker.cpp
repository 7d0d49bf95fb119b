#include "support/worker.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <sstream>

#include "lockstep/core/version.h"
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

void serve(const Arguments& arguments, const MakeParticipant& make) {
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
        participant = make(model, batch, arguments.threads);
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

int usage(const std::string& what, const Participants& participants) {
  std::cerr << what << "\n--as NAME [--threads N]\n"
            << "--profile MODEL BATCH [--as NAME] [--threads N] [--steps N]\nnames:";
  for (const auto& [name, make] : participants) std::cerr << " " << name;
  std::cerr << "\nThe comparison is run.py.\n";
  return 2;
}

}  // namespace

int worker_main(int argc, char** argv, const Participants& participants) {
  Arguments arguments;
  MakeParticipant make = participants[0].second;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return usage("a flag lacks its value, or is unknown: " + flag, participants);
    const std::string value = argv[++i];
    const int number = std::atoi(value.c_str());
    const auto named = std::ranges::find_if(participants, [&](const auto& p) { return p.first == value; });
    if (flag == "--as" && named != participants.end()) {
      arguments.as = value;
      make = named->second;
    } else if (flag == "--threads" && number > 0) {
      arguments.threads = static_cast<std::size_t>(number);
    } else if (flag == "--steps" && number > 0) {
      arguments.steps = static_cast<std::size_t>(number);
    } else if (flag == "--profile" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      arguments.model = value;
      arguments.batch = std::atoi(argv[++i]);
    } else {
      return usage("cannot use " + flag + " " + value, participants);
    }
  }
  if (!arguments.model.empty()) {
    const auto participant = make(arguments.model, arguments.batch, arguments.threads);
    if (participant == nullptr) return usage("it takes no part with " + arguments.model, participants);
    participant->run(kWarmUpSteps);
    std::cout << participant->profile(arguments.steps) << participant->plan() << std::endl;
    return 0;
  }
  if (arguments.as.empty()) return usage("nothing to do", participants);
  serve(arguments, make);
  return 0;
}

}  // namespace lockstep::bench
