// Two processes take the mean of what they computed, in each step, until one of them is killed: the other one is told who is lost.
//
//      process 0:  x --> square --> group_all_reduce(mean) --> y
//                                        |  Gloo                    Membership: who is there, who is lost, do all agree
//      process 1:  x --> square --> group_all_reduce(mean) --> y
//
// A launcher would start the processes, and cluster_from_environment() would tell each which one it is. Here the program is in
// two by fork().
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/communicators/group.h"
#include "lockstep/core/membership/membership.h"
#include "lockstep/lockstep.h"
#if __has_include("lockstep/core/gloo/gloo_group.h")
#include "lockstep/core/gloo/gloo_group.h"

using namespace lockstep;

namespace {

Graph step() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  b.result(group_all_reduce(ReduceOp::kMean, square(x), "world"));
  return b.finish();
}

// What worker `rank` does; the rank of the one that was lost in the end, or -1.
int work(int rank, const std::filesystem::path& folder) {
  const auto membership = Membership::join({.worker = {.index = rank, .rank = rank, .count = 2},
                                            .folder = folder,
                                            .lost = std::chrono::seconds(5)},
                                           deadline_in(std::chrono::seconds(30)));
  const auto group = std::make_shared<Group>(
      connect_gloo({.rank = rank, .size = 2}, *membership, deadline_in(std::chrono::seconds(30))));
  int lost = -1;
  membership->when_lost([&](const LostMember& who) {
    lost = who.rank;
    group->abort(who.error());  // so that nothing waits for it
  });
  const Graph graph = step();
  membership->agree("the step", print(graph));  // nobody sums what others do not
  Program program = compile(graph, Runtime({.threads = 1, .groups = {{"world", group}}}));
  try {
    for (int i = 0;; ++i) {
      const Tensor mean = program.run({{"x", Tensor::from({2}, {1.F + static_cast<float>(rank), 3.F})}})[0];
      if (rank == 0 && i == 0) std::cout << "mean of both: " << mean << '\n';
      membership->report({.step = i});
      if (rank == 1 && i == 9) std::raise(SIGKILL);
    }
  } catch (const RunError& error) {
    std::cout << "step 10: " << to_string(error.code()) << '\n';
  }
  membership->leave();  // from here on `lost` stays as it is
  return lost;
}

}  // namespace

int main() {
  const auto folder = std::filesystem::temp_directory_path() / ("two_processes_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const pid_t child = fork();
  if (child == 0) _exit(work(1, folder) == -1 ? 0 : 1);
  const int lost = work(0, folder);
  waitpid(child, nullptr, 0);
  std::filesystem::remove_all(folder);
  std::cout << "lost: worker " << lost << '\n';
  return lost == 1 ? 0 : 1;
}

#else
int main() { std::cout << "this Lockstep was built without Gloo\n"; }
#endif
