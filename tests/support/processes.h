// tests/support/processes.h - workers as processes of this machine: children that fork() makes.
//
//   Processes workers(4, [](int rank, std::ostream& say) { ...; return 0; });
//   workers.signal(2, SIGKILL);
//   const std::vector<Outcome> all = workers.wait();
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/strategies/strategy.h"
#include "support/temporary_folder.h"

namespace lockstep::testing {

struct Outcome {
  int status = -1;  // exit status; -1: ended by a signal, or not in time
  std::string said;
};

class Processes {
 public:
  using Body = std::function<int(int rank, std::ostream& say)>;  // what it returns is the exit status

  // The caller has no threads.
  Processes(int count, const Body& body) {
    for (int rank = 0; rank < count; ++rank) {
      const pid_t child = fork();
      if (child == 0) _exit(play(rank, body));
      children_.push_back(child);
    }
  }
  ~Processes() {
    for (const pid_t child : children_) {
      if (child <= 0) continue;
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  const std::filesystem::path& folder() const { return folder_.path(); }
  pid_t id(int rank) const { return children_[static_cast<std::size_t>(rank)]; }
  void signal(int rank, int number) const { kill(children_[static_cast<std::size_t>(rank)], number); }
  // What one has said so far.
  std::string said(int rank) const {
    std::ifstream in(file(rank));
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  // False: not within half a minute.
  bool says(int rank, const std::string& text) const {
    for (int i = 0; i < 3000; ++i) {
      if (said(rank).find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  // Until all have ended, but for one.
  std::vector<Outcome> wait(int without = -1, std::chrono::seconds most = std::chrono::seconds(120)) {
    const auto end = std::chrono::steady_clock::now() + most;
    std::vector<Outcome> all(children_.size());
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (static_cast<int>(i) == without) continue;
      int status = 0;
      pid_t done = 0;
      while ((done = waitpid(children_[i], &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (done == children_[i]) {
        children_[i] = 0;
        if (WIFEXITED(status)) all[i].status = WEXITSTATUS(status);
      }
      all[i].said = said(static_cast<int>(i));
    }
    return all;
  }

 private:
  std::filesystem::path file(int rank) const { return folder_.path() / ("said_" + std::to_string(rank)); }
  int play(int rank, const Body& body) const {
    std::ofstream say(file(rank));
    try {
      return body(rank, say);
    } catch (const std::exception& error) {
      say << "error: " << error.what() << std::endl;
      return 99;
    }
  }

  TemporaryFolder folder_;
  std::vector<pid_t> children_;
};

// FNV-1a of the variables that a worker has: what all have alike, by the first replica there.
inline std::uint64_t digest_of(const Strategy& strategy) {
  std::uint64_t digest = 0xCBF29CE484222325U;
  const auto add = [&](const void* data, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i)
      digest = (digest ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3U;
  };
  for (const std::string& name : strategy.variables().names()) {
    if (name.find("replica_") != std::string::npos) continue;
    const Tensor value = strategy.variables().find(name)->storage().host();
    add(name.data(), name.size());
    add(value.raw(), value.num_bytes());
  }
  return digest;
}

}  // namespace lockstep::testing
