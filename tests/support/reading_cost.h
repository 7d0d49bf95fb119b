// tests/support/reading_cost.h - what reading something costs, measured in a process of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <new>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep::testing {

struct ReadingCost {
  int status = -1;  // 0: done, 1: refused with Error, 2: out of memory, 3: something else; -1: no exit
  double seconds = 0;
  std::int64_t bytes = 0;  // of memory, at the most
};

template <class Body>
ReadingCost reading_cost_of(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) {
    int status = 0;
    try {
      body();
    } catch (const Error&) {
      status = 1;
    } catch (const std::bad_alloc&) {
      status = 2;
    } catch (...) {
      status = 3;
    }
    _exit(status);
  }
  ReadingCost cost;
  int status = 0;
  rusage usage{};
  if (wait4(child, &status, 0, &usage) == child && WIFEXITED(status)) cost.status = WEXITSTATUS(status);
  cost.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  cost.bytes = static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  return cost;
}

}  // namespace lockstep::testing
