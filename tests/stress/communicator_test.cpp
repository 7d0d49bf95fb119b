// Tests: core/communicators/communicator.cpp, core/communicators/in_process_group.cpp
// Participants on threads of their own: results whatever the timing, and an end whatever goes wrong.
#include "lockstep/core/communicators/communicator.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/communicators/in_process_group.h"
#include "lockstep/core/error.h"
#include "support/random_tensors.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

std::size_t place(int rank) { return static_cast<std::size_t>(rank); }

// Each participant on a thread of its own, from its first call to its destructor.
void on_threads(InProcessGroup& group, const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&body, comm = group.join(rank)]() mutable {
      body(*comm);
      comm.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class CommunicatorStress : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorStress, RandomOperationsOfRandomSizesAreRight) {
  const int n = GetParam();
  const int steps = n > 8 ? 60 : 300;
  InProcessGroup group(n);
  std::atomic<int> wrong = 0;
  on_threads(group, [&](Communicator& comm) {
    Dice shared(17);  // the same choices everywhere
    Dice own(100 + static_cast<std::uint64_t>(comm.rank()));
    std::vector<float> data, out;
    for (int step = 0; step < steps; ++step) {
      const std::int64_t kind = shared.roll(6);
      const std::int64_t count = shared.roll(8) == 0 ? shared.roll(60000) : shared.roll(300);
      const int root = static_cast<int>(shared.roll(n));
      const auto elements = static_cast<std::size_t>(count);
      const auto first = static_cast<float>(step % 100 + comm.rank());
      // Sums of small whole numbers are exact.
      const auto total = static_cast<float>(n * (step % 100) + n * (n - 1) / 2);
      if (own.roll(4) == 0) std::this_thread::yield();
      data.assign(elements, first);
      const auto expect = [&](const std::vector<float>& values, std::size_t from, std::size_t length,
                              float value) {
        for (std::size_t i = from; i < from + length; ++i) wrong += values[i] == value ? 0 : 1;
      };
      switch (kind) {
        case 0: {
          comm.all_reduce(ReplicaReduce::kSum, DType::kF32, data.data(), data.data(), count).wait();
          expect(data, 0, elements, total);
          break;
        }
        case 1: {
          comm.broadcast(DType::kF32, data.data(), count, root).wait();
          expect(data, 0, elements, static_cast<float>(step % 100 + root));
          break;
        }
        case 2: {
          out.assign(elements * place(n), -1.0F);
          Pending gather = comm.all_gather(DType::kF32, data.data(), out.data(), count);
          Pending barrier = comm.barrier();
          barrier.wait();
          gather.wait();
          for (int r = 0; r < n; ++r)
            expect(out, place(r) * elements, elements, static_cast<float>(step % 100 + r));
          break;
        }
        case 3: {
          data.assign(elements * place(n), first);
          out.assign(elements, -1.0F);
          comm.reduce_scatter(ReplicaReduce::kSum, DType::kF32, data.data(), out.data(), count).wait();
          expect(out, 0, elements, total);
          break;
        }
        case 4: {
          comm.reduce(ReplicaReduce::kSum, DType::kF32, data.data(), data.data(), count, root).wait();
          expect(data, 0, elements, comm.rank() == root ? total : first);
          break;
        }
        default: {  // around the ring
          out.assign(elements, -1.0F);
          const int previous = (comm.rank() + n - 1) % n;
          Pending send = comm.send(DType::kF32, data.data(), count, (comm.rank() + 1) % n);
          Pending receive = comm.receive(DType::kF32, out.data(), count, previous);
          receive.wait();
          send.wait();
          expect(out, 0, elements, static_cast<float>(step % 100 + previous));
          break;
        }
      }
    }
    comm.barrier().wait();  // who leaves breaks the group for those who still wait for a message
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(CommunicatorStress, AParticipantThatLeavesEndsItForAll) {
  const int n = GetParam();
  for (int trial = 0; trial < 40; ++trial) {
    InProcessGroup group(n);
    std::atomic<int> told = 0;
    const int leaver = trial % n;
    on_threads(group, [&](Communicator& comm) {
      std::vector<float> data(trial % 2 == 0 ? 10 : 30000, 1.0F);
      const auto count = static_cast<std::int64_t>(data.size());
      try {
        for (int step = 0;; ++step) {
          if (comm.rank() == leaver && step == trial) return;
          std::fill(data.begin(), data.end(), 1.0F);
          comm.all_reduce(ReplicaReduce::kSum, DType::kF32, data.data(), data.data(), count).wait();
          if (data.back() != static_cast<float>(n)) return;
        }
      } catch (const Error& error) {
        const std::string who = "participant " + std::to_string(leaver) + " of";
        if (error.code() == ErrorCode::kUnavailable && error.message().find(who) != std::string::npos) ++told;
      }
    });
    EXPECT_EQ(told, n - 1) << trial;
  }
}

TEST_P(CommunicatorStress, CallsThatDisagreeAtAnyMomentEndItForAll) {
  const int n = GetParam();
  for (int trial = 0; trial < 40; ++trial) {
    InProcessGroup group(n);
    std::atomic<int> told = 0;
    const int odd = trial % n;
    on_threads(group, [&](Communicator& comm) {
      std::vector<float> data(300, 1.0F);
      try {
        for (int step = 0; step < 1000; ++step) {
          const bool disagrees = comm.rank() == odd && step == trial;
          comm.all_reduce(ReplicaReduce::kSum, DType::kF32, data.data(), data.data(), disagrees ? 64 : 16)
              .wait();
        }
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnavailable) ++told;
      }
    });
    EXPECT_EQ(told, n) << trial;
  }
}

// One that gives up while the last is arriving: it fails for all, or is done for all.
TEST_P(CommunicatorStress, PendingsAreDroppedAtAnyMoment) {
  const int n = GetParam();
  for (int trial = 0; trial < 60; ++trial) {
    InProcessGroup group(n);
    std::atomic<int> done = 0, ended = 0;
    on_threads(group, [&](Communicator& comm) {
      std::vector<float> data(trial % 2 == 0 ? 10 : 3000, 1.0F);
      const auto count = static_cast<std::int64_t>(data.size());
      Pending sum = comm.all_reduce(ReplicaReduce::kSum, DType::kF32, data.data(), data.data(), count);
      if (comm.rank() == 0) {
        for (int i = 0; i < trial; ++i) std::this_thread::yield();
        sum = Pending();
        return;
      }
      try {
        sum.wait();
        if (data.front() == static_cast<float>(n) && data.back() == static_cast<float>(n)) ++done;
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kUnavailable) ++ended;
      }
    });
    EXPECT_TRUE(done == n - 1 || ended == n - 1) << trial << ": " << done << " done, " << ended << " ended";
  }
}

TEST_P(CommunicatorStress, DeadlinesThatPassAtAnyMomentEndItForAll) {
  const int n = GetParam();
  for (int trial = 0; trial < 20; ++trial) {
    InProcessGroup group(n);
    std::atomic<int> ended = 0;
    std::atomic<int> wrong = 0;
    on_threads(group, [&](Communicator& comm) {
      std::vector<float> data(2000), other_work(300000);
      const bool hasty = comm.rank() == trial % n;
      try {
        for (int step = 0; step < 100000; ++step) {
          std::fill(data.begin(), data.end(), 1.0F);
          // From some step on, often too short for the others to arrive.
          // On a busy machine they come in time all the same: after twenty steps they stay away until it has
          // passed.
          while (!hasty && step > trial + 20 && ended == 0) std::this_thread::yield();
          if (!hasty && step > trial)
            std::fill(other_work.begin(), other_work.end(), static_cast<float>(step));
          const auto time = std::chrono::microseconds(hasty && step > trial ? trial : 50'000'000);
          comm.all_reduce(ReplicaReduce::kSum, DType::kF32, data.data(), data.data(), 2000, deadline_in(time))
              .wait();
          for (const float x : data) wrong += x == static_cast<float>(n) ? 0 : 1;
        }
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kDeadlineExceeded || error.code() == ErrorCode::kUnavailable) ++ended;
      }
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(ended, n);
  }
}

INSTANTIATE_TEST_SUITE_P(Participants, CommunicatorStress, ::testing::Values(2, 3, 8, 20));

}  // namespace
}  // namespace lockstep
