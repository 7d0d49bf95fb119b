// tests/support/failing_members.h - members of a group who run one program, while some of their runs fail.
//
//   InProcessGroup room(3);
//   expect_one_outcome(3, [&](int rank) { return room.join(rank); }, seed, steps);
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/communicators/group.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/compile.h"
#include "support/random_tensors.h"

namespace lockstep::testing {

// Where a member's run fails, on purpose.
enum class Mishap : std::uint8_t {
  kNone,
  kWrongFeed,      // the run is refused
  kBefore,         // in a node before all exchanges
  kBetween,        // behind the first
  kInBranch,       // in a branch that exchanges values, before it does
  kBehindAll,      // behind the last
  kCancelled,      // before it begins
  kCancelledLate,  // some time later: the run may have voted already
};
constexpr std::int64_t kMishaps = 8;

struct FailingMember {
  explicit FailingMember(std::unique_ptr<Communicator> comm, std::size_t threads)
      : runtime({.threads = threads,
                 .backends = {},
                 .groups = {{"world", std::make_shared<Group>(std::move(comm))}}}) {
    const TensorSpec row{DType::kF32, {2}};
    GraphBuilder b;
    const VariableRef v = b.variable("v", Tensor::zeros(DType::kF32, {2}));
    const Value x = b.placeholder("x", DType::kF32, {kUnknown});
    const auto exchanged = [&](const Value& value, Mishap before) {
      return group_all_reduce(ReduceOp::kSum,
                              b.call("may_fail", {&value, 1}, {&row, 1}, [this, before](KernelContext& c) {
                                if (happens(before, c))
                                  throw std::runtime_error(str("mishap ", static_cast<int>(before)));
                                std::copy_n(c.input<float>(0).data(), 2, c.output<float>(0).data());
                              })[0]);
    };
    const Value first = exchanged(reshape(x, {2}), Mishap::kBefore);
    const Value second = exchanged(first, Mishap::kBetween);
    const Value third = cond(
        sum(x) > 0.F, [&] { return std::vector{exchanged(second, Mishap::kInBranch)}; },
        [&] { return std::vector{second * 1.F}; })[0];
    const Value last = b.call("may_fail_last", {&third, 1}, {&row, 1}, [this](KernelContext& c) {
      if (happens(Mishap::kBehindAll, c)) throw std::runtime_error("mishap at the end");
      std::copy_n(c.input<float>(0).data(), 2, c.output<float>(0).data());
    })[0];
    b.result(b.assign(v, b.read(v) + last));
    program = compile(b.finish(), runtime);
  }

  bool happens(Mishap here, const KernelContext& c) const { return mishap == here && c.run().step >= since; }

  Mishap mishap = Mishap::kNone;
  std::uint64_t since = 0;  // that step
  Runtime runtime;
  Program program;
};

// Each step is committed by all members or by none, and those after a failure are right.
inline void expect_one_outcome(int members,
                               const std::function<std::unique_ptr<Communicator>(int rank)>& join,
                               std::uint64_t seed, int steps) {
  struct Step {
    bool committed = false;
    std::string error = {};
    float value = 0;
  };
  const auto mishap_of = [&](int rank, int step) {
    Dice dice(seed * 1'000'003 + static_cast<std::uint64_t>(step) * 101 + static_cast<std::uint64_t>(rank));
    return dice.roll(3) == 0 ? static_cast<Mishap>(dice.roll(kMishaps)) : Mishap::kNone;
  };
  std::vector<std::vector<Step>> all(static_cast<std::size_t>(members));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < members; ++rank) {
      threads.emplace_back([&, rank] {
        FailingMember member(join(rank), 1 + static_cast<std::size_t>(rank) % 2);
        for (int k = 0; k < steps; ++k) {
          Step& step = all[static_cast<std::size_t>(rank)].emplace_back();
          member.mishap = mishap_of(rank, k);
          const Tensor x =
              Tensor::full(DType::kF32, {member.mishap == Mishap::kWrongFeed ? 3 : 2}, k % 3 == 0 ? -1. : 1.);
          std::stop_source cancel;
          std::jthread later;
          if (member.mishap == Mishap::kCancelled) cancel.request_stop();
          if (member.mishap == Mishap::kCancelledLate)
            later = std::jthread([&, k] {
              std::this_thread::sleep_for(std::chrono::microseconds(k * 37 % 400));
              cancel.request_stop();
            });
          try {
            RunOptions options;
            options.cancel = cancel.get_token();
            member.program.run({{"x", x}}, options);
            step.committed = true;
          } catch (const std::exception& error) {
            step.error = error.what();
          }
          if (later.joinable()) later.join();
          step.value = member.program.variables().find("v")->storage().data<float>()[1];
        }
      });
    }
  }
  int failed = 0;
  for (int k = 0; k < steps; ++k) {
    const Step& first = all[0][static_cast<std::size_t>(k)];
    bool must_fail = false, may_fail = false;
    for (int rank = 0; rank < members; ++rank) {
      const Mishap mishap = mishap_of(rank, k);
      const bool in_branch = mishap == Mishap::kInBranch && k % 3 == 0;  // which is not taken
      may_fail = may_fail || mishap == Mishap::kCancelledLate;
      must_fail = must_fail || (mishap != Mishap::kNone && mishap != Mishap::kCancelledLate && !in_branch);
      const Step& its = all[static_cast<std::size_t>(rank)][static_cast<std::size_t>(k)];
      ASSERT_EQ(its.committed, first.committed)
          << "seed " << seed << " step " << k << " rank " << rank << ": " << its.error << first.error;
      ASSERT_EQ(its.value, first.value) << "seed " << seed << " step " << k;
    }
    if (must_fail) {
      ASSERT_FALSE(first.committed) << "seed " << seed << " step " << k;
    } else if (!may_fail) {
      ASSERT_TRUE(first.committed) << "seed " << seed << " step " << k << ": " << first.error;
    }
    failed += first.committed ? 0 : 1;
    // Its size is members, 2 * members or 3 * members times that of the feed: it is known without looking.
    const float before = k == 0 ? 0.F : all[0][static_cast<std::size_t>(k) - 1].value;
    const auto size = static_cast<float>(members);
    const float change = k % 3 == 0 ? -size * size : size * size * size;
    ASSERT_EQ(first.value, first.committed ? before + change : before) << "seed " << seed << " step " << k;
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, steps);
}

}  // namespace lockstep::testing
