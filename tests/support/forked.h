// tests/support/forked.h - a part of a test in a child that fork() makes.
#pragma once

#include <chrono>
#include <csignal>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::testing {

// What `body` returns there, or -1 if it has not ended after half a minute or ended in another way.
template <class Body>
int exit_status_of_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (...) {
    }
    _exit(status);
  }
  int status = 0;
  for (int i = 0; i < 3000; ++i) {
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return -1;
}

}  // namespace lockstep::testing
