// Tests: core/base/thread_guards.cpp
#include "lockstep/core/base/thread_guards.h"

#include <cfenv>
#include <csignal>

#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep::internal {
namespace {

bool is_blocked(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

TEST(ThreadGuards, SignalsAreBlockedForAWhile) {
  ASSERT_FALSE(is_blocked(SIGTERM));
  {
    const SignalsBlocked quiet;
    EXPECT_TRUE(is_blocked(SIGTERM));
  }
  EXPECT_FALSE(is_blocked(SIGTERM));
}

TEST(ThreadGuards, ABrokenPipeRaisesNothing) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  {
    const SigPipeBlocked quiet;
    EXPECT_EQ(write(ends[1], "x", 1), -1);
  }
  EXPECT_FALSE(is_blocked(SIGPIPE));  // and the process lives
  close(ends[1]);
}

TEST(ThreadGuards, FloatsAreRoundedToNearest) {
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  {
    const DefaultFloats floats;
    EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  }
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
}

}  // namespace
}  // namespace lockstep::internal
