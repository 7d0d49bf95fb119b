#include "support/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <sstream>
#include <thread>

#include <dirent.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

namespace lockstep::bench {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

// Calls `visit` with every entry of a folder of /proc whose name is a number.
template <class Visit>
void each_number(const char* path, Visit visit) {
  std::unique_ptr<DIR, CloseDirectory> directory(opendir(path));
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory.get())) {
    char* end = nullptr;
    const unsigned long long number = std::strtoull(entry->d_name, &end, 10);
    if (end != entry->d_name && *end == '\0') visit(number);
  }
}

double first_number_of(const char* path) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  double number = 0;
  if (std::fscanf(file, "%lf", &number) != 1) number = 0;
  std::fclose(file);
  return number;
}

// 0 where the process is gone. Its name, in parentheses, may hold anything.
std::uint64_t parent_of(unsigned long long process) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%llu/stat", process);
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream words(line.substr(name_end + 1));
  char state = 0;
  std::uint64_t parent = 0;
  words >> state >> parent;
  return parent;
}

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_now() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

std::size_t live_heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

Spread spread(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double part) {
    const double place = part * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
  };
  return {at(0.25), at(0.5), at(0.75)};
}

std::vector<double> ratios(std::span<const double> numerators, std::span<const double> denominators) {
  std::vector<double> out(numerators.size());
  std::transform(numerators.begin(), numerators.end(), denominators.begin(), out.begin(), std::divides<>());
  return out;
}

std::vector<double> differences(std::span<const double> minuends, std::span<const double> subtrahends) {
  std::vector<double> out(minuends.size());
  std::transform(minuends.begin(), minuends.end(), subtrahends.begin(), out.begin(), std::minus<>());
  return out;
}

Neighbours::Neighbours() : last_(read()) {}

Neighbours::Reading Neighbours::read() {
  Reading reading;
  std::unordered_map<std::uint64_t, std::uint64_t> parents;
  each_number("/proc", [&](unsigned long long process) { parents.emplace(process, parent_of(process)); });
  const auto self = static_cast<std::uint64_t>(getpid());
  const auto is_own = [&](std::uint64_t process) {
    for (auto at = parents.find(process); at != parents.end(); at = parents.find(at->second)) {
      if (at->first == self) return true;
    }
    return false;
  };
  double descendants = 0;
  for (const auto& [process, parent] : parents) {
    if (process == self) continue;
    const bool own = is_own(process);
    char tasks[64];
    std::snprintf(tasks, sizeof tasks, "/proc/%llu/task", static_cast<unsigned long long>(process));
    each_number(tasks, [&](unsigned long long thread) {
      char path[96];
      std::snprintf(path, sizeof path, "%s/%llu/schedstat", tasks, thread);
      const double seconds = first_number_of(path) * 1e-9;
      if (own) {
        descendants += seconds;
      } else {
        reading.threads.emplace(thread, seconds);
      }
    });
  }

  std::ifstream stat("/proc/stat");
  std::string line;
  const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  while (std::getline(stat, line)) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "cpu") {
      double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, stolen = 0;
      words >> user >> nice >> system >> idle >> wait >> irq >> soft >> stolen;
      reading.busy = (user + nice + system + irq + soft) * tick;
      reading.stolen = stolen * tick;
    } else if (word == "processes") {
      words >> reading.forks;
    }
  }
  reading.own = cpu_now() + descendants;
  return reading;
}

double Neighbours::used() {
  Reading reading = read();
  double exact = 0;
  std::size_t seen_again = 0;
  std::size_t fresh = 0;
  for (const auto& [thread, seconds] : reading.threads) {
    const auto before = last_.threads.find(thread);
    if (before == last_.threads.end()) {
      ++fresh;
      exact += seconds;
    } else {
      ++seen_again;
      exact += std::max(0.0, seconds - before->second);
    }
  }
  // Threads that ended took their count along: a millisecond each stands for it.
  const std::size_t ended = last_.threads.size() - seen_again;
  const std::uint64_t forks = reading.forks - last_.forks;
  const std::uint64_t unseen = forks > fresh ? forks - fresh : 0;
  exact += 1e-3 * static_cast<double>(ended + unseen);
  // What the readings cannot see (another process namespace) shows in the machine's total, which is counted
  // in ticks and so is believed only where it says much.
  constexpr double kTickSlack = 0.04;
  const double total = (reading.busy - last_.busy) - (reading.own - last_.own) - kTickSlack;
  const double stolen = reading.stolen - last_.stolen;
  last_ = std::move(reading);
  return std::max(exact, total) + stolen;
}

double Sampler::slice(const Contender& contender, std::size_t repeats) const {
  std::this_thread::sleep_for(std::chrono::duration<double>(options_.pause_seconds));
  contender.run(1);
  const double begin = now();
  contender.run(repeats);
  return (now() - begin) / static_cast<double>(repeats);
}

Samples Sampler::alternate(std::span<const Contender> contenders) {
  std::vector<std::size_t> repeats(contenders.size(), 1);
  for (std::size_t c = 0; c < contenders.size(); ++c) {
    double best = slice(contenders[c], 1);
    for (int trial = 0; trial < 3; ++trial) best = std::min(best, slice(contenders[c], 1));
    const double fitting = options_.slice_seconds / std::max(best, 1e-9);
    if (fitting > 100) best = std::min(best, slice(contenders[c], static_cast<std::size_t>(fitting / 10)));
    repeats[c] =
        std::max<std::size_t>(1, static_cast<std::size_t>(options_.slice_seconds / std::max(best, 1e-9)));
  }

  struct Round {
    double others = 0;  // part of its time
    std::vector<double> seconds;
  };
  std::vector<Round> rounds;
  std::size_t quiet = 0;
  const std::size_t patience =
      std::min(options_.patience, options_.total_patience - std::min(options_.total_patience, discarded_));
  Neighbours neighbours;
  while (quiet < options_.rounds && rounds.size() < options_.rounds + patience) {
    Round round;
    round.seconds.resize(contenders.size());
    neighbours.used();
    const double begin = now();
    for (std::size_t k = 0; k < contenders.size(); ++k) {
      const std::size_t c = (k + rounds.size()) % contenders.size();
      round.seconds[c] = slice(contenders[c], repeats[c]);
    }
    round.others = neighbours.used() / (now() - begin);
    if (round.others <= options_.tolerance) ++quiet;
    rounds.push_back(std::move(round));
  }

  Samples samples;
  std::stable_sort(rounds.begin(), rounds.end(),
                   [](const Round& a, const Round& b) { return a.others < b.others; });
  samples.discarded = rounds.size() - std::min(rounds.size(), options_.rounds);
  rounds.resize(std::min(rounds.size(), options_.rounds));
  samples.noisy = quiet < rounds.size();
  samples.seconds.resize(contenders.size());
  for (const Round& round : rounds) {
    for (std::size_t c = 0; c < contenders.size(); ++c) samples.seconds[c].push_back(round.seconds[c]);
  }
  kept_ += rounds.size();
  noisy_ += rounds.size() - std::min(quiet, rounds.size());
  discarded_ += samples.discarded;
  return samples;
}

}  // namespace lockstep::bench
