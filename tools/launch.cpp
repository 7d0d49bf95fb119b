// tools/launch.cpp - lockstep launch: the workers of a job as processes of this machine.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"
#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kStartAgain = 42;                    // the exit status of a worker that wants all to begin anew
constexpr auto kGrace = std::chrono::seconds(30);  // for the others, after one has failed

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorCode::kUnavailable, str("lockstep launch: ", what, ": ", std::strerror(errno)));
}

// A file descriptor, closed with it.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset();
    number_ = std::exchange(other.number_, -1);
    return *this;
  }
  void reset() {
    if (number_ >= 0) close(number_);
    number_ = -1;
  }
  int get() const { return number_; }

 private:
  int number_;
};

// Ports of this machine that nobody listens at; held open together, so that they are different ones.
std::vector<int> free_ports(std::size_t count) {
  std::vector<Descriptor> held;
  std::vector<int> ports;
  for (std::size_t i = 0; i < count; ++i) {
    held.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (held.back().get() < 0 || bind(held.back().get(), plain, size) != 0 ||
        getsockname(held.back().get(), plain, &size) != 0)
      fail("no port is free");
    ports.push_back(ntohs(address.sin_port));
  }
  return ports;
}

std::string tf_config(const std::vector<int>& ports, std::size_t index) {
  std::string workers;
  for (const int port : ports) workers += str(workers.empty() ? "" : ", ", "\"127.0.0.1:", port, "\"");
  return str(R"({"cluster": {"worker": [)", workers, R"(]}, "task": {"type": "worker", "index": )", index,
             "}}");
}

// What a worker writes, line by line, with its name in front.
struct Stream {
  Descriptor from;
  std::ostream* to = nullptr;
  std::string prefix;
  std::string rest;  // of a line that has not ended

  void pass(std::string_view text) {
    rest += text;
    for (std::size_t end = 0; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1))
      *to << prefix << std::string_view(rest).substr(0, end + 1) << std::flush;
  }
  // False: there is no more.
  bool read_some() {
    std::array<char, 4096> buffer{};
    const ssize_t got = read(from.get(), buffer.data(), buffer.size());
    if (got > 0) {
      pass({buffer.data(), static_cast<std::size_t>(got)});
      return true;
    }
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (!rest.empty()) pass("\n");
    from.reset();
    return false;
  }
};

struct Worker {
  pid_t process = -1;
  bool is_over = false;
  int status = 0;  // 128 and the signal, if one ended it
};

// The signals that the launcher passes on, and those of workers that end, as something to poll.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set_, number);
    if (sigprocmask(SIG_BLOCK, &set_, &before_) != 0) fail("signals");
    file_ = Descriptor(signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (file_.get() < 0) fail("signals");
  }
  ~Signals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int file() const { return file_.get(); }
  const sigset_t& before() const { return before_; }
  // 0: none any more.
  int next() const {
    signalfd_siginfo info{};
    return read(file_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t set_{}, before_{};
  Descriptor file_;
};

class Job {
 public:
  Job(const LaunchCommand& command, const Signals& signals, std::uint64_t generation)
      : command_(command), signals_(signals), workers_(command.workers) {
    const std::vector<int> ports = free_ports(command.workers);
    for (std::size_t i = 0; i < workers_.size(); ++i) start(i, tf_config(ports, i), generation);
  }
  ~Job() {
    tell_all(SIGKILL);
    for (const Worker& worker : workers_) {
      if (worker.process > 0 && !worker.is_over) waitpid(worker.process, nullptr, 0);
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Until all workers have ended.
  const std::vector<Worker>& wait() {
    Clock::time_point until = Clock::time_point::max();
    int next_signal = SIGTERM;
    while (!all_over() || !all_read()) {
      std::vector<pollfd> files = {{signals_.file(), POLLIN, 0}};
      for (const Stream& stream : streams_) files.push_back({stream.from.get(), POLLIN, 0});
      if (poll(files.data(), files.size(), 200) < 0 && errno != EINTR) fail("poll");
      for (std::size_t i = 0; i < streams_.size(); ++i) {
        if (files[i + 1].revents != 0) streams_[i].read_some();
      }
      for (int number = 0; (number = signals_.next()) != 0;) {
        if (number == SIGCHLD) continue;
        was_told_ = true;
        tell_all(number);
      }
      collect();
      // A program that does not see that another one is gone would wait for ever.
      if (until == Clock::time_point::max() && has_failed()) until = Clock::now() + kGrace;
      if (Clock::now() > until) {
        tell_all(std::exchange(next_signal, SIGKILL));
        until = Clock::now() + kGrace / 3;
      }
      // What a worker has started may outlive it, and hold its output.
      if (all_over() && Clock::now() > over_since_ + std::chrono::seconds(1)) break;
    }
    return workers_;
  }
  bool was_told() const { return was_told_; }  // to end, by a signal

 private:
  void start(std::size_t index, const std::string& config, std::uint64_t generation) {
    std::array<std::array<int, 2>, 2> pipes{};
    for (auto& both : pipes) {
      if (pipe2(both.data(), O_CLOEXEC) != 0) fail("pipe");
    }
    const pid_t launcher = getpid();
    const pid_t process = fork();
    if (process < 0) fail("fork");
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);  // they end with the launcher, whatever ends it
      if (getppid() != launcher) _exit(1);
      dup2(pipes[0][1], STDOUT_FILENO);
      dup2(pipes[1][1], STDERR_FILENO);
      setenv("TF_CONFIG", config.c_str(), 1);
      setenv("LOCKSTEP_GENERATION", std::to_string(generation).c_str(), 1);
      sigprocmask(SIG_SETMASK, &signals_.before(), nullptr);
      std::vector<char*> arguments;
      for (const std::string& argument : command_.program)
        arguments.push_back(const_cast<char*>(argument.c_str()));  // NOLINT: execvp() changes none of them
      arguments.push_back(nullptr);
      execvp(arguments[0], arguments.data());
      const std::string message =
          str("lockstep launch: cannot run '", command_.program[0], "': ", std::strerror(errno), "\n");
      static_cast<void>(!write(STDERR_FILENO, message.data(), message.size()));
      _exit(127);
    }
    workers_[index].process = process;
    for (std::size_t i = 0; i < 2; ++i) {
      close(pipes[i][1]);
      fcntl(pipes[i][0], F_SETFL, O_NONBLOCK);
      streams_.push_back(
          {Descriptor(pipes[i][0]), i == 0 ? &std::cout : &std::cerr, str("[worker:", index, "] "), {}});
    }
  }

  void tell_all(int number) {
    for (const Worker& worker : workers_) {
      if (worker.process > 0 && !worker.is_over) kill(worker.process, number);
    }
  }
  void collect() {
    for (Worker& worker : workers_) {
      int status = 0;
      if (worker.is_over || waitpid(worker.process, &status, WNOHANG) != worker.process) continue;
      worker.is_over = true;
      worker.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      over_since_ = Clock::now();
    }
  }
  bool all_over() const { return std::ranges::all_of(workers_, &Worker::is_over); }
  bool all_read() const {
    return std::ranges::all_of(streams_, [](const Stream& stream) { return stream.from.get() < 0; });
  }
  bool has_failed() const {
    return std::ranges::any_of(workers_,
                               [](const Worker& worker) { return worker.is_over && worker.status != 0; });
  }

  const LaunchCommand& command_;
  const Signals& signals_;
  std::vector<Worker> workers_;
  std::vector<Stream> streams_;
  Clock::time_point over_since_;
  bool was_told_ = false;
};

std::string ended(const Worker& worker) {
  return worker.status > 128 ? str("was ended by signal ", worker.status - 128)
                             : str("ended with status ", worker.status);
}

}  // namespace

int run_command(const LaunchCommand& command) {
  const Signals signals;
  for (std::uint64_t generation = 0;; ++generation) {
    Job job(command, signals, generation);
    const std::vector<Worker>& workers = job.wait();
    // The one at fault, rather than those that were told of it.
    const auto failed = [](const Worker& worker) {
      return worker.status != 0 && worker.status != kStartAgain;
    };
    auto first = std::ranges::find_if(workers, failed);
    if (first == workers.end()) first = std::ranges::find(workers, kStartAgain, &Worker::status);
    if (first == workers.end()) return kSuccess;
    std::cerr << "lockstep launch: worker:" << first - workers.begin() << ' ' << ended(*first) << '\n';
    const bool wants_more = std::ranges::find(workers, kStartAgain, &Worker::status) != workers.end();
    if (job.was_told() || !wants_more || generation >= command.restarts) return first->status;
    std::cerr << "lockstep launch: starting all workers again, " << generation + 1 << " of "
              << command.restarts << '\n';
  }
}

}  // namespace lockstep::tools
