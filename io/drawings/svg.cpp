// io/drawings/svg.cpp - drawings laid out by Graphviz.
#include "lockstep/io/drawings/svg.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;  // NOLINT(readability-identifier-naming)

namespace lockstep {

namespace {

constexpr std::string_view kRemedy =
    "install Graphviz (on Debian, Ubuntu and Fedora the package 'graphviz'), or put its 'dot' on the PATH";

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorCode::kUnavailable,
              str("cannot start Graphviz: ", what, ": ", std::generic_category().message(errno)));
}

// Owns a file descriptor and closes it.
class Handle {
 public:
  Handle() = default;
  explicit Handle(int fd) : fd_(fd) {}
  Handle(Handle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Handle() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A child process whose standard streams are connected to this one.
class Child {
 public:
  Child(const std::string& program, const std::vector<std::string>& arguments,
        const GraphvizOptions& limits) {
    // A socket, since a write to a socket that nobody reads can be told not to raise a signal.
    std::array<int, 2> in{}, out{}, err{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) != 0) fail("socketpair");
    input = Handle(in[0]);
    Handle child_in(in[1]);
    if (pipe2(out.data(), O_CLOEXEC) != 0) fail("pipe");
    output = Handle(out[0]);
    Handle child_out(out[1]);
    if (pipe2(err.data(), O_CLOEXEC) != 0) fail("pipe");
    errors = Handle(err[0]);
    Handle child_err(err[1]);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, child_in.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, child_out.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, child_err.get(), STDERR_FILENO);
    std::vector<std::string> words{program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int error = posix_spawnp(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      pid_ = -1;
      throw NotFound(
          str("cannot run '", program, "' (", std::generic_category().message(error), "); ", kRemedy));
    }
    // It also ends by itself if this process dies before it.
    const rlimit memory{limits.memory_bytes, limits.memory_bytes};
    if (limits.memory_bytes > 0) ::prlimit(pid_, RLIMIT_AS, &memory, nullptr);
    const auto seconds =
        static_cast<rlim_t>(std::chrono::ceil<std::chrono::seconds>(limits.limit).count() + 1);
    const rlimit time{seconds, seconds};
    ::prlimit(pid_, RLIMIT_CPU, &time, nullptr);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }

  // Its exit status; 128 plus the signal if one ended it.
  int wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  Handle input, output, errors;

 private:
  pid_t pid_ = -1;
};

// Reads what is available; closes at the end of the stream.
void read_some(Handle& from, std::string& into) {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(from.get(), buffer.data(), buffer.size());
  if (count > 0) {
    into.append(buffer.data(), static_cast<std::size_t>(count));
  } else if (count == 0 || errno != EINTR) {
    from.close();
  }
}

}  // namespace

Decision has_graphviz(const GraphvizOptions& options) {
  try {
    run_graphviz("digraph {}", "dot", options);
    return Decision::yes();
  } catch (const Error& error) {
    return Decision::no(error.message());
  }
}

std::string run_graphviz(std::string_view dot, std::string_view format, const GraphvizOptions& options) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + options.limit;
  Child child(options.program, {str("-T", format)}, options);
  std::string output, errors;
  while (child.output.is_open() || child.errors.is_open()) {
    std::array<pollfd, 3> polled = {
        pollfd{child.output.get(), POLLIN, 0}, pollfd{child.errors.get(), POLLIN, 0},
        pollfd{child.input.get(), POLLOUT, 0}};  // closed ones are negative: poll() skips them
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int ready = left <= 0 ? 0 : ::poll(polled.data(), polled.size(), static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      throw Error(ErrorCode::kDeadlineExceeded, str("Graphviz was not done after ", options.limit.count(),
                                                    " ms; fold more, limit the depth, or allow more time"));
    }
    if (polled[0].revents != 0) read_some(child.output, output);
    if (polled[1].revents != 0) read_some(child.errors, errors);
    if (polled[2].revents != 0) {
      const ssize_t sent = ::send(child.input.get(), dot.data(), dot.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) dot.remove_prefix(static_cast<std::size_t>(sent));
      const bool later = sent < 0 && (errno == EAGAIN || errno == EINTR);
      if (dot.empty() || (sent < 0 && !later)) child.input.close();
    }
  }
  if (options.warnings != nullptr) *options.warnings = errors;
  if (const int status = child.wait(); status != 0) {
    throw FailedPrecondition(str("'", options.program, "' ended with status ", status,
                                 errors.empty() ? "" : ": ", errors,
                                 status == 127 ? str("; ", kRemedy) : ""));
  }
  return output;
}

std::string to_svg(const Graph& graph, const DotOptions& drawing, const GraphvizOptions& options) {
  return run_graphviz(to_dot(graph, drawing), "svg", options);
}

}  // namespace lockstep
