// Tests: core/communicators/device_group.cpp
#include "lockstep/core/communicators/device_group.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/communicators/in_process_group.h"
#include "lockstep/core/error.h"
#include "support/communicator_calls.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::sum_of;
using testing::Waiter;

DeviceGroup::Connect connects(int size, std::atomic<int>& times) {
  return [size, &times](Deadline) {
    ++times;
    InProcessGroup room(size);
    std::vector<std::unique_ptr<Communicator>> participants;
    for (int rank = 0; rank < size; ++rank) participants.push_back(room.join(rank));
    return participants;
  };
}

// One array for each participant, and where its result goes.
struct Arrays {
  explicit Arrays(std::size_t size, std::size_t count, float value) {
    for (std::size_t rank = 0; rank < size; ++rank) {
      in.emplace_back(count, value * static_cast<float>(rank + 1));
      out.emplace_back(count, -1.F);
    }
  }
  std::vector<CommunicatorCall> calls() {
    std::vector<CommunicatorCall> made;
    for (std::size_t rank = 0; rank < in.size(); ++rank) made.push_back(sum_of(in[rank], out[rank]));
    return made;
  }
  std::vector<std::vector<float>> in, out;
};

// A participant whose parts a test writes; its calls are over at once.
struct Script {
  std::function<void(const CommunicatorCall&)> start = [](const CommunicatorCall&) {};
  std::function<void(const Error&)> abort = [](const Error&) {};
  std::function<void()> close = [] {}, destroyed = [] {};
};

class Scripted final : public Communicator {
 public:
  Scripted(int rank, int size, Script script) : rank_(rank), size_(size), script_(std::move(script)) {}
  ~Scripted() override { script_.destroyed(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void abort(const Error& why) override { script_.abort(why); }
  void close() override { script_.close(); }

 protected:
  Pending start(const CommunicatorCall& call) override {
    script_.start(call);
    return {new Over, rank_};
  }

 private:
  struct Over final : PendingState {
    bool done(int /*rank*/) override { return true; }
    void wait(int /*rank*/) override {}
    void release(int /*rank*/) noexcept override { delete this; }
  };
  int rank_, size_;
  Script script_;
};

std::vector<std::unique_ptr<Communicator>> participants_of(std::vector<Script> scripts) {
  std::vector<std::unique_ptr<Communicator>> made;
  const int size = static_cast<int>(scripts.size());
  for (int rank = 0; rank < size; ++rank)
    made.push_back(
        std::make_unique<Scripted>(rank, size, std::move(scripts[static_cast<std::size_t>(rank)])));
  return made;
}

// A gate that stays open once it was opened.
class Gate {
 public:
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  bool wait(std::chrono::milliseconds most = 10s) {  // false: it was not opened in time
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, most, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

// Waits for a call, whatever it ends with.
class Ended final : public Completion {
 public:
  void wait() { gate_.wait(); }

 private:
  void end(std::exception_ptr /*why*/) noexcept override { gate_.open(); }
  Gate gate_;
};

TEST(DeviceGroup, AllParticipantsMakeTheirCalls) {
  std::atomic<int> connected = 0;
  DeviceGroup group(connects(3, connected));
  EXPECT_EQ(connected, 0) << "nobody has asked for it";
  for (const float value : {1.F, 10.F}) {
    Arrays small(3, 5, value), large(3, 100'000, value);
    std::vector<CommunicatorCall> calls = small.calls();
    for (const CommunicatorCall& call : large.calls()) calls.push_back(call);
    Waiter done;
    group.start(calls, done);
    EXPECT_EQ(done.wait(), "");
    for (const Arrays* arrays : {&small, &large}) {
      for (const std::vector<float>& out : arrays->out) EXPECT_THAT(out, Each(6 * value));
    }
  }
  EXPECT_EQ(connected, 1);
}

// Whoever starts first comes first at every participant.
TEST(DeviceGroup, ThreadsDoNotMixTheirCalls) {
  std::atomic<int> connected = 0;
  DeviceGroup group(connects(4, connected));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&group, t] {
      for (int i = 0; i < 50; ++i) {
        Arrays arrays(4, 10 + t, static_cast<float>(t));  // of another count: calls that mix do not agree
        Waiter done;
        group.start(arrays.calls(), done);
        EXPECT_EQ(done.wait(), "");
        EXPECT_THAT(arrays.out[3], Each(10 * static_cast<float>(t)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(DeviceGroup, AFailureEndsItForAllAndTheNextCallConnectsAgain) {
  std::atomic<int> connected = 0;
  DeviceGroup group(connects(3, connected));
  Arrays arrays(3, 50, 1);
  std::vector<CommunicatorCall> calls = arrays.calls();
  calls[1].count = 20;  // they do not agree
  Waiter failed;
  group.start(calls, failed);
  EXPECT_THAT(failed.wait(), HasSubstr("all_reduce(sum, f32, 20)"));
  Waiter done;
  group.start(arrays.calls(), done);
  EXPECT_EQ(done.wait(), "");
  EXPECT_THAT(arrays.out[1], Each(6.F));
  EXPECT_EQ(connected, 2);
}

// Participants live as long as an abort uses them, also if the next call comes meanwhile.
TEST(DeviceGroup, ACallDuringAnAbortWaitsForItsEnd) {
  std::atomic<int> connected = 0;
  std::atomic<bool> is_aborting = false, ended_early = false;
  Gate aborting, go_on;
  DeviceGroup group([&](Deadline) {
    std::vector<Script> scripts(2);
    if (++connected > 1) return participants_of(std::move(scripts));
    scripts[0].abort = [&](const Error& /*why*/) {
      is_aborting = true;
      aborting.open();
      go_on.wait();
      is_aborting = false;
    };
    scripts[0].destroyed = [&] { ended_early = ended_early || is_aborting; };
    scripts[1].start = [](const CommunicatorCall& /*call*/) {
      throw Error(ErrorCode::kUnavailable, "no light");
    };
    return participants_of(std::move(scripts));
  });
  Arrays arrays(2, 5, 1);
  Waiter failed, done;
  group.start(arrays.calls(), failed);
  ASSERT_TRUE(aborting.wait());
  Gate returned;
  std::thread next([&] {
    group.start(arrays.calls(), done);
    returned.open();
  });
  EXPECT_FALSE(returned.wait(50ms));
  EXPECT_FALSE(ended_early);
  go_on.open();
  next.join();
  EXPECT_THAT(failed.wait(), HasSubstr("no light"));
  EXPECT_EQ(done.wait(), "");
  EXPECT_FALSE(ended_early);
  EXPECT_EQ(connected, 2);
}

// Whatever a participant throws, all of them are aborted, with a code that says what it was.
TEST(DeviceGroup, AnyExceptionEndsItForAll) {
  const auto codes_after = [](const std::function<void()>& fail) {
    std::vector<ErrorCode> codes;
    DeviceGroup group([&](Deadline) {
      std::vector<Script> scripts(2);
      for (Script& script : scripts) script.abort = [&](const Error& why) { codes.push_back(why.code()); };
      scripts[0].start = [fail](const CommunicatorCall& /*call*/) { fail(); };
      return participants_of(std::move(scripts));
    });
    Arrays arrays(2, 5, 1);
    Ended failed;
    group.start(arrays.calls(), failed);
    failed.wait();
    return codes;
  };
  EXPECT_THAT(codes_after([] { throw std::bad_alloc(); }),
              ElementsAre(ErrorCode::kOutOfMemory, ErrorCode::kOutOfMemory));
  EXPECT_THAT(codes_after([] { throw std::runtime_error("no light"); }),
              ElementsAre(ErrorCode::kUnavailable, ErrorCode::kUnavailable));
  EXPECT_THAT(codes_after([] { throw 7; }), ElementsAre(ErrorCode::kUnavailable, ErrorCode::kUnavailable));
  EXPECT_THAT(codes_after([] { throw InvalidArgument("odd"); }),
              ElementsAre(ErrorCode::kInvalidArgument, ErrorCode::kInvalidArgument));
}

TEST(DeviceGroup, ParticipantsLeaveAtTheSameTime) {
  std::atomic<int> leaving = 0, met = 0;
  Gate all_leave;
  {
    DeviceGroup group([&](Deadline) {
      std::vector<Script> scripts(3);
      for (Script& script : scripts)
        script.close = [&] {
          if (++leaving == 3) all_leave.open();
          if (all_leave.wait()) ++met;
        };
      return participants_of(std::move(scripts));
    });
    Arrays arrays(3, 5, 1);
    Waiter done;
    group.start(arrays.calls(), done);
    EXPECT_EQ(done.wait(), "");
  }
  EXPECT_EQ(met, 3);
}

// A call may fail while the group is left: the participants are there to be aborted.
TEST(DeviceGroup, AFailureWhileItIsLeftEndsItForAll) {
  std::atomic<int> destroyed = 0, aborted_late = 0;
  Gate left, go_on;
  Arrays arrays(2, 5, 1);
  Waiter failed;
  std::thread other;
  {
    DeviceGroup group([&](Deadline) {
      std::vector<Script> scripts(2);
      for (Script& script : scripts) {
        script.destroyed = [&] { ++destroyed; };
        script.abort = [&](const Error& /*why*/) { aborted_late += destroyed; };
      }
      scripts[0].close = [&] { left.open(); };
      scripts[1].start = [&](const CommunicatorCall& /*call*/) {
        go_on.wait();
        throw Error(ErrorCode::kUnavailable, "no light");
      };
      return participants_of(std::move(scripts));
    });
    group.start(arrays.calls(), failed);
    other = std::thread([&] {
      left.wait();
      std::this_thread::sleep_for(20ms);
      go_on.open();
    });
  }
  other.join();
  EXPECT_THAT(failed.wait(), HasSubstr("no light"));
  EXPECT_EQ(aborted_late, 0);
}

// The earliest deadline of the calls is that of connecting; who waits for another thread's connecting has his own.
TEST(DeviceGroup, DeadlinesHoldForConnecting) {
  std::vector<Deadline> asked;
  Gate connecting, go_on;
  DeviceGroup group([&](Deadline deadline) {
    asked.push_back(deadline);
    connecting.open();
    go_on.wait();
    return participants_of(std::vector<Script>(2));
  });
  Arrays arrays(2, 5, 1);
  std::vector<CommunicatorCall> calls = arrays.calls();
  const Deadline late = deadline_in(20s), early = deadline_in(10s), at_once = deadline_in(20ms);
  calls[0].deadline = late;
  calls[1].deadline = early;
  Waiter done, never;
  std::thread first([&, calls] { group.start(calls, done); });
  ASSERT_TRUE(connecting.wait());
  calls[0].deadline = at_once;
  try {
    group.start(calls, never);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded) << error.what();
  }
  go_on.open();
  first.join();
  EXPECT_EQ(done.wait(), "");
  EXPECT_THAT(asked, ElementsAre(early));
}

TEST(DeviceGroup, SaysWhatIsWrong) {
  EXPECT_THROW(DeviceGroup(nullptr), InvalidArgument);
  std::atomic<int> connected = 0;
  DeviceGroup group(connects(3, connected));
  Arrays arrays(2, 5, 1);
  Waiter done;
  EXPECT_THROW(group.start(arrays.calls(), done), InvalidArgument);
  EXPECT_THROW(group.start({}, done), InvalidArgument);
  DeviceGroup none([](Deadline) -> std::vector<std::unique_ptr<Communicator>> {
    throw Error(ErrorCode::kUnavailable, "no cable");
  });
  try {
    none.start(arrays.calls(), done);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no cable"));
  }
}

}  // namespace
}  // namespace lockstep
