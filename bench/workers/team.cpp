#include "team.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::bench {

// Runs steps on all workers, as the first of them.
class Leader final : public Participant {
 public:
  Leader(const Team& team, int number, std::unique_ptr<Participant> own)
      : team_(team), number_(number), own_(std::move(own)) {}
  double run(std::size_t steps) override {
    tell(steps);
    return own_->run(steps);
  }
  std::string plan() override { return own_->plan(); }
  std::string profile(std::size_t steps) override {
    tell(steps);
    return own_->profile(steps);
  }

 private:
  void tell(std::size_t steps) const {
    std::ostringstream line;
    line << "run " << number_ << ' ' << steps;
    team_.tell(line.str());
  }

  const Team& team_;
  int number_;
  std::unique_ptr<Participant> own_;
};

Team::Team(int size, MakeWorker make) : size_(size), make_(std::move(make)) {
  std::string folder = (std::filesystem::temp_directory_path() / "bench_workers.XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr)
    throw std::runtime_error("there is no place for the workers to meet");
  folder_ = folder;
  for (int rank = 1; rank < size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe to a worker");
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const int other : pipes_) close(other);
      close(ends[1]);
      follow(rank, ends[0]);
      _exit(0);
    }
    close(ends[0]);
    pipes_.push_back(ends[1]);
    children_.push_back(child);
  }
}

Team::~Team() {
  for (const int pipe : pipes_) close(pipe);
  for (const int child : children_) waitpid(child, nullptr, 0);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::unique_ptr<Participant> Team::make(const std::string& model, std::int64_t batch) {
  const int number = made_++;
  const std::filesystem::path folder = folder_ / std::to_string(number);
  std::filesystem::create_directory(folder);
  std::ostringstream line;
  line << "make " << number << ' ' << model << ' ' << batch;
  tell(line.str());
  return std::make_unique<Leader>(*this, number, make_(model, batch, 0, size(), folder));
}

void Team::tell(const std::string& line) const {
  const std::string whole = line + "\n";
  for (const int pipe : pipes_) {
    if (write(pipe, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size()))
      throw std::runtime_error("a worker has ended");
  }
}

void Team::follow(int rank, int commands) const {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(fdopen(commands, "r"), &std::fclose);
  std::map<int, std::unique_ptr<Participant>> made;
  char line[256];
  try {
    while (std::fgets(line, sizeof line, in.get()) != nullptr) {
      std::istringstream words(line);
      std::string command, model;
      int number = 0;
      words >> command >> number;
      if (command == "make") {
        std::int64_t batch = 0;
        words >> model >> batch;
        made[number] = make_(model, batch, rank, size_, folder_ / std::to_string(number));
      } else {
        std::size_t steps = 0;
        words >> steps;
        made.at(number)->run(steps);
      }
    }
  } catch (const std::exception& error) {
    std::cerr << "worker " << rank << ": " << error.what() << "\n";
  }
}

}  // namespace lockstep::bench
