// Tests: core/membership/hub.cpp, core/membership/guest.cpp
// Workers of a job in made-up time: what they say of each other when one dies, freezes or is cut off.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/membership/internal/guest.h"
#include "lockstep/core/membership/internal/hub.h"
#include "support/random_tensors.h"
#include "support/simulated_job.h"

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::SimulatedJob;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

bool is_in(SimulatedJob& job, int index) { return !job[index].guest->roster().empty(); }

std::string end_of(SimulatedJob& job, int index) {
  return job[index].guest->end() ? job[index].guest->end()->why : "no end";
}

TEST(SimulatedJob, AllGetTheRosterWhenAllAreThere) {
  SimulatedJob job(4);
  for (const int index : {3, 0, 1}) job.start(index);  // in any order
  job.run_for(5s);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(is_in(job, i));
  EXPECT_EQ(job[0].guest->what_is_missing(), "missing are workers 2");
  job.start(2);
  EXPECT_TRUE(job.run_until(
      [&] {
        for (int i = 0; i < 4; ++i) {
          if (!is_in(job, i)) return false;
        }
        return true;
      },
      100ms));
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(job[i].guest->roster().size(), 4U);
    EXPECT_EQ(job[i].guest->roster()[2].task, "worker:2");
    EXPECT_EQ(job[i].guest->roster()[3].address, "host-3");
  }
}

TEST(SimulatedJob, WhoeverComesFirstWaitsForTheHub) {
  SimulatedJob job(2);
  job.start(1);
  job.run_for(3s);
  EXPECT_THAT(job[0].guest->what_is_missing(),
              AllOf(HasSubstr("worker 0 is not reached at host-0:1"), HasSubstr("connection refused")));
  job.start(0);
  job.run_for(100ms);
  EXPECT_TRUE(is_in(job, 0));
  EXPECT_TRUE(is_in(job, 1));
}

TEST(SimulatedJob, NothingHappensWhileAllLive) {
  SimulatedJob job(3);
  job.start_all();
  job.run_for(1h);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(end_of(job, i), "no end");
}

// 200 moments, any of four workers: each survivor names it, and soon.
TEST(SimulatedJob, WhoeverDiesIsNamedToAll) {
  Dice dice(7);
  for (int round = 0; round < 200; ++round) {
    SimulatedJob job(4);
    job.delay = 100us;
    job.start_all();
    job.run_for(std::chrono::microseconds(dice.roll(1'000'000)));
    const int dead = static_cast<int>(dice.roll(4));
    job.kill(dead);
    const auto all_know = [&] {
      for (int i = 0; i < 4; ++i) {
        if (i != dead && !job[i].guest->end()) return false;
      }
      return true;
    };
    ASSERT_TRUE(job.run_until(all_know, 10ms)) << dead;
    for (int i = 0; i < 4; ++i) {
      if (i == dead) continue;
      ASSERT_TRUE(job[i].guest->lost().has_value());
      EXPECT_EQ(job[i].guest->lost()->rank, dead);
      EXPECT_THAT(end_of(job, i), HasSubstr("worker:" + std::to_string(dead) + " (host-" +
                                            std::to_string(dead) + ") is lost: its connection ended"));
    }
    job.run_for(5s);  // and nobody else is named later, while all end
    for (int i = 0; i < 4; ++i) {
      if (i == dead) continue;
      EXPECT_EQ(job[i].guest->lost()->rank, dead);
    }
  }
}

TEST(SimulatedJob, WhoeverFreezesIsNamedToAllAndSaysSoItself) {
  Dice dice(8);
  for (int round = 0; round < 60; ++round) {
    SimulatedJob job(4);
    job.start_all();
    job.run_for(std::chrono::microseconds(dice.roll(1'000'000)));
    const int frozen = static_cast<int>(dice.roll(4));
    job.freeze(frozen);
    const auto all_know = [&] {
      for (int i = 0; i < 4; ++i) {
        if (i != frozen && !job[i].guest->end()) return false;
      }
      return true;
    };
    ASSERT_TRUE(job.run_until(all_know, 1500ms)) << frozen;
    for (int i = 0; i < 4; ++i) {
      if (i == frozen) continue;
      EXPECT_EQ(job[i].guest->lost()->rank, frozen);
      EXPECT_THAT(end_of(job, i), HasSubstr("silent for 1."));
      if (i != 0) job.kill(i);  // they leave
    }
    job.run_for(3s);
    job.thaw(frozen);
    job.run_for(1s);
    ASSERT_TRUE(job[frozen].guest->lost().has_value());
    EXPECT_EQ(job[frozen].guest->lost()->rank, frozen);
    EXPECT_THAT(end_of(job, frozen), HasSubstr("this process stood still for"));
  }
}

TEST(SimulatedJob, AShortStandstillHarmsNobody) {
  for (int frozen = 0; frozen < 3; ++frozen) {
    SimulatedJob job(3);
    job.start_all();
    for (int i = 0; i < 10; ++i) {
      job.freeze(frozen);
      job.run_for(700ms);
      job.thaw(frozen);
      job.run_for(500ms);
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(end_of(job, i), "no end");
  }
}

TEST(SimulatedJob, OneThatIsCutOffNamesTheHubAndIsNamedByTheOthers) {
  SimulatedJob job(3);
  job.start_all();
  job.cut_off(2);
  job.run_for(1500ms);
  EXPECT_EQ(job[0].guest->lost()->rank, 2);
  EXPECT_EQ(job[1].guest->lost()->rank, 2);
  EXPECT_EQ(job[2].guest->lost()->rank, 0);
  EXPECT_THAT(end_of(job, 2), HasSubstr("or this worker is cut off from it"));
}

TEST(SimulatedJob, TheHubStaysUntilAllHaveHeard) {
  SimulatedJob job(3);
  job.start_all();
  job.delay = 100ms;
  job.kill(2);
  job.run_for(150ms);
  EXPECT_EQ(end_of(job, 1), "no end");
  EXPECT_FALSE(job.hub().is_over());
  job.run_for(300ms);
  EXPECT_EQ(job[1].guest->lost()->rank, 2);
  EXPECT_TRUE(job.hub().is_over());
}

TEST(SimulatedJob, TheVerdictTellsTheLastStep) {
  SimulatedJob job(2);
  job.start_all();
  job[1].guest->report({.step = 41});
  job.run_for(1s);
  job.kill(1);
  job.run_for(10ms);
  EXPECT_EQ(job[0].guest->lost()->last_step, 41);
}

// --- leaving

TEST(SimulatedJob, OneThatLeavesIsNotLost) {
  SimulatedJob job(3);
  job.start_all();
  job[1].guest->leave();
  job.run_for(10ms);
  EXPECT_TRUE(job[1].guest->is_gone());
  job.kill(1);
  job.run_for(5s);
  EXPECT_EQ(end_of(job, 0), "no end");
  EXPECT_EQ(end_of(job, 2), "no end");
  EXPECT_TRUE(job[2].guest->has_left(1));
  EXPECT_FALSE(job.hub().is_over());
  job[2].guest->leave();
  job[0].guest->leave();
  job.run_for(10ms);
  EXPECT_TRUE(job.hub().is_over());
}

TEST(SimulatedJob, TheHubMayLeaveFirst) {
  SimulatedJob job(2);
  job.start_all();
  job[0].guest->leave();
  job.run_for(10ms);
  job.kill(0);
  job.run_for(10ms);
  EXPECT_FALSE(job[1].guest->lost().has_value());
  EXPECT_EQ(end_of(job, 1), "worker:0 (host-0) has left the job");
}

// --- joining

TEST(SimulatedJob, RefusesWhoDoesNotBelong) {
  SimulatedJob job(3);
  job.start(0);
  const auto refusal = [&](GuestSpec spec) {
    const int index = job.start(std::move(spec)).index;
    job.run_for(500ms);
    return end_of(job, index);
  };
  GuestSpec spec = job.guest_spec(1);
  spec.secret = "another";
  EXPECT_EQ(refusal(spec), "worker:1 was refused by host-0:1: its secret is not that of the job");
  spec = job.guest_spec(1);
  spec.job_id = "other";
  EXPECT_THAT(refusal(spec),
              HasSubstr("belongs to the job 'job', not to 'other': do two jobs use one port?"));
  spec = job.guest_spec(1);
  spec.count = 4;
  EXPECT_THAT(refusal(spec), HasSubstr("the job has 3 workers here, and 4 for worker:1"));
  spec = job.guest_spec(1);
  spec.replicas = 2;
  EXPECT_THAT(refusal(spec), HasSubstr("the first worker has 1 replicas, and worker:1 has 2"));
  spec = job.guest_spec(1);
  spec.index = 7;
  EXPECT_THAT(refusal(spec), HasSubstr("there is no worker 7 of 3"));
  job.start(1);
  job.start(2);
  job.run_for(100ms);
  EXPECT_TRUE(is_in(job, 0));
  spec = job.guest_spec(1);
  EXPECT_THAT(refusal(spec), HasSubstr("worker 1 is there already: worker:1 (host-1)"));
}

TEST(SimulatedJob, AHubThatDoesNotKnowTheSecretIsNotTrusted) {
  SimulatedJob job(2);
  job.start(0);
  job.change = [](std::string bytes) {  // it welcomes without the proof
    const std::size_t length = bytes.size();
    if (length == 4 + 1 + 4 + 4 + 32 && bytes[4] == static_cast<char>(MessageKind::kWelcome))
      bytes[length - 1] ^= 1;
    return bytes;
  };
  job.start(1);
  job.run_for(3s);
  EXPECT_FALSE(is_in(job, 1));
  EXPECT_THAT(job[1].guest->what_is_missing(), HasSubstr("does not know the secret"));
}

TEST(SimulatedJob, OneThatEndsBeforeAllAreThereMayComeAgain) {
  SimulatedJob job(3);
  job.start(0);
  job.start(1);
  job.run_for(100ms);
  job.kill(1);
  job.run_for(100ms);
  job.start(1);
  job.start(2);
  job.run_for(200ms);
  for (const int index : {0, 2, 3}) EXPECT_TRUE(is_in(job, index)) << index;
}

TEST(SimulatedJob, ALaterGenerationWaitsUntilTheEarlierOneIsGone) {
  SimulatedJob job(2);
  job.start_all();
  GuestSpec next = job.guest_spec(1);
  next.generation = 1;
  const int later = job.start(next).index;
  job.run_for(1s);
  EXPECT_EQ(end_of(job, later), "no end");
  EXPECT_THAT(job[later].guest->what_is_missing(),
              HasSubstr("this is generation 0 of the job, and you are of generation 1"));
  GuestSpec before = job.guest_spec(1);
  before.generation = -1;
  const int earlier = job.start(before).index;
  job.run_for(1s);
  EXPECT_THAT(end_of(job, earlier), HasSubstr("you are of generation -1"));
}

// --- strangers

TEST(SimulatedJob, StrangersDoNotKeepTheJobFromBeginning) {
  SimulatedJob job(3);
  job.start(0);
  std::vector<int> strangers;
  for (int i = 0; i < 1000; ++i) strangers.push_back(job.stranger());
  const std::vector<std::string> noise = {"GET / HTTP/1.1\r\n\r\n", std::string(100, '\0'),
                                          std::string(100, '\xff'), std::string("\x05\x00\x00\x00hello", 9),
                                          std::string(5000, 'x')};
  for (const std::string& bytes : noise) job.send(job.stranger(), bytes);
  job.start(1);
  job.run_for(50ms);
  job.start(2);
  job.run_for(100ms);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_in(job, i));
  job.run_for(3s);
  EXPECT_TRUE(std::ranges::none_of(strangers, [&](int link) { return job.is_open(link); }));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(end_of(job, i), "no end");
}

// Whatever byte of whatever message is another one: nobody believes it.
TEST(SimulatedJob, MessagesThatWereChangedEndTheConnection) {
  Dice dice(9);
  for (int round = 0; round < 100; ++round) {
    SimulatedJob job(2);
    job.start_all();
    bool is_changed = false;
    job.change = [&](std::string bytes) {
      if (!is_changed)
        bytes[static_cast<std::size_t>(dice.roll(static_cast<std::int64_t>(bytes.size())))] ^=
            static_cast<char>(1 + dice.roll(255));
      is_changed = true;
      return bytes;
    };
    const std::int64_t request = job[1].guest->put("key", "value");
    ASSERT_TRUE(is_changed);
    job.run_for(1500ms);
    EXPECT_FALSE(job[1].guest->take_answer(request).has_value());
    EXPECT_NE(end_of(job, 0), "no end");
  }
}

// --- what they leave for each other

TEST(SimulatedJob, KeepsWhatMembersLeaveForEachOther) {
  SimulatedJob job(3);
  job.start_all();
  const auto answer = [&](int index, std::int64_t request) {
    job.run_for(10ms);
    return job[index].guest->take_answer(request);
  };
  const std::int64_t waits = job[2].guest->look("key", true), waits_too = job[0].guest->look("key", true);
  EXPECT_FALSE(answer(2, waits).has_value());
  EXPECT_FALSE(answer(1, job[1].guest->look("key", false))->is_there);
  EXPECT_TRUE(answer(1, job[1].guest->put("key", std::string("a\0b", 3)))->is_there);
  EXPECT_EQ(answer(2, waits)->value, std::string("a\0b", 3));
  EXPECT_EQ(answer(0, waits_too)->value, std::string("a\0b", 3));
  EXPECT_FALSE(answer(0, job[0].guest->put("key", "other"))->is_there);
  EXPECT_EQ(answer(0, job[0].guest->look("key", false))->value, std::string("a\0b", 3));
}

TEST(SimulatedJob, AllAreToldWhatDiffers) {
  SimulatedJob job(3);
  job.start_all();
  for (int i = 0; i < 3; ++i) job[i].guest->claim("schedule", "same", "a\nb\n", {});
  job.run_for(20ms);
  for (int i = 0; i < 3; ++i) {
    const auto outcome = job[i].guest->take_outcome("schedule");
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(outcome->why, "");
  }
  for (int i = 0; i < 3; ++i)
    job[i].guest->claim("step", i == 1 ? "1" : "2", i == 1 ? "a\nc\n" : "a\nb\n", {});
  job.run_for(20ms);
  for (int i = 0; i < 3; ++i) {
    const auto outcome = job[i].guest->take_outcome("step");
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(outcome->code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(outcome->why, "line 2 is 'b' on worker:0 and 'c' on worker:1");
  }
  EXPECT_EQ(end_of(job, 0), "no end");
}

TEST(SimulatedJob, AClaimThatOneDoesNotMakeEndsWithItsDeadline) {
  SimulatedJob job(3);
  job.start_all();
  job[0].guest->claim("step", "1", "text", 500ms);
  job[2].guest->claim("step", "1", "text", 5s);
  job.run_for(600ms);
  for (const int i : {0, 2}) {
    const auto outcome = job[i].guest->take_outcome("step");
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(outcome->code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(outcome->why, "the deadline passed before it was reached by worker:1");
  }
}

TEST(SimulatedJob, StatusSaysWhoWaitsForWhom) {
  SimulatedJob job(3);
  job.start_all();
  job[1].guest->report(
      {.step = 17, .waits_for = 2, .since = 3s, .what = "all_reduce 'grads' at train.cpp:41"});
  job[2].guest->leave();
  job.run_for(250ms);
  EXPECT_THAT(
      job.hub().status(job.now()),
      AllOf(HasSubstr("job 'job', generation 0, 3 workers\n"),
            HasSubstr("1  worker:1 (host-1)  step 17  all_reduce 'grads' at train.cpp:41  waits for worker:2 "
                      "since 3."),
            HasSubstr("2  worker:2 (host-2)  has left\n")));
}

}  // namespace
}  // namespace lockstep::internal
