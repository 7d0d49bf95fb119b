// bench/workers - training steps of several processes, each with one replica and one thread.
//
//   bench_workers --as workers [--threads N]     N workers; waits for commands (training_step/worker.py says which)
//   bench_workers --profile mlp 64 --threads 2   where the time of the first worker's steps goes
//   bench_workers --cold N                       seconds from nothing to the first committed step of N workers
//   bench_workers --overlap                      exchanges beside computing, on a link of 400 Mbit/s; needs the right to make networks
//
// The comparison is run.py. Exit status: 0; 1 where a worker fails; 2 for a wrong argument.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "participants.h"
#include "support/measure.h"
#include "support/worker.h"
#include "team.h"

namespace lockstep::bench {
namespace {

int worker(const std::string& rank, const std::string& size, const std::filesystem::path& folder) {
  try {
    start_cold(std::atoi(rank.c_str()), std::atoi(size.c_str()), folder);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

// All processes are new, as a launcher's are.
int cold(const std::string& size) {
  std::string folder = (std::filesystem::temp_directory_path() / "bench_workers.XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const double begin = now();
  std::vector<pid_t> workers;
  for (int rank = 0; rank < std::atoi(size.c_str()); ++rank) {
    std::vector<std::string> words = {"bench_workers", "--worker", std::to_string(rank), size, folder};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t process = 0;
    if (posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) != 0) return 1;
    workers.push_back(process);
  }
  bool all_well = true;
  for (const pid_t process : workers) {
    int status = 0;
    waitpid(process, &status, 0);
    all_well = all_well && status == 0;
  }
  std::cout << now() - begin << std::endl;
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return all_well ? 0 : 1;
}

int threads_of(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string(argv[i]) == "--threads") return std::atoi(argv[i + 1]);
  }
  return 2;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  if (argc == 5 && std::string(argv[1]) == "--worker") return worker(argv[2], argv[3], argv[4]);
  if (argc == 3 && std::string(argv[1]) == "--cold") return cold(argv[2]);
  if (argc == 2 && std::string(argv[1]) == "--overlap") return overlap();
  Team team(std::max(1, threads_of(argc, argv)), make_worker);
  return worker_main(argc, argv, {{"workers", [&](const std::string& model, std::int64_t batch, std::size_t) {
                                     return team.make(model, batch);
                                   }}});
}
