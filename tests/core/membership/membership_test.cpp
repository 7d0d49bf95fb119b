// Tests: core/membership/membership.cpp, core/membership/sockets.cpp, core/membership/visitor.cpp
// Workers as threads and as processes, over connections of this machine.
#include "lockstep/core/membership/membership.h"

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "support/forked.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kLost = 3000ms;  // a busy machine may hold up a process for a second

MembershipSpec spec_of(int rank, int count, const std::filesystem::path& folder) {
  return {.worker = {.index = rank, .rank = rank, .count = count}, .folder = folder, .lost = kLost};
}

std::vector<std::unique_ptr<Membership>> all_join(int count, const std::filesystem::path& folder) {
  std::vector<std::unique_ptr<Membership>> members(static_cast<std::size_t>(count));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      members[static_cast<std::size_t>(rank)] =
          Membership::join(spec_of(rank, count, folder), deadline_in(30s));
    });
  }
  threads.clear();
  return members;
}

// They leave at the same time, as processes do.
void all_leave(std::vector<std::unique_ptr<Membership>>& members) {
  std::vector<std::jthread> threads;
  for (auto& member : members) threads.emplace_back([&member] { member.reset(); });
}

std::string error_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  return "no error";
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A socket that has a port to itself.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 1), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { give_up(); }
  void give_up() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  int socket_, port_ = 0;
};

TEST(Membership, TellsWhoIsWho) {
  const TemporaryFolder folder;
  auto members = all_join(3, folder.path());
  for (int rank = 0; rank < 3; ++rank) {
    const Membership& member = *members[static_cast<std::size_t>(rank)];
    EXPECT_EQ(member.rank(), rank);
    EXPECT_EQ(member.size(), 3);
    EXPECT_EQ(member.participant(2).task, "worker:2");
    EXPECT_EQ(member.participant(1).address, "127.0.0.1");
    EXPECT_NO_THROW(member.check());
  }
  EXPECT_THROW(static_cast<void>(members[0]->participant(3)), InvalidArgument);
  all_leave(members);
}

TEST(Membership, OfOneNeedsNobody) {
  const auto member = Membership::join({});
  member->set("key", "value");
  EXPECT_EQ(member->get("key"), "value");
  member->agree("step", "text");
  member->check();
}

TEST(Membership, IsARendezvous) {
  const TemporaryFolder folder;
  auto members = all_join(3, folder.path());
  std::jthread later([&] {
    std::this_thread::sleep_for(20ms);
    members[1]->set("a/key", "value");
  });
  EXPECT_EQ(members[2]->get("a/key", deadline_in(30s)), "value");
  EXPECT_EQ(members[0]->get("a/key", deadline_in(30s)), "value");
  EXPECT_TRUE(members[1]->has("a/key"));
  EXPECT_FALSE(members[1]->has("other"));
  EXPECT_THROW(members[0]->set("a/key", "again"), FailedPrecondition);
  EXPECT_THAT(error_of([&] { members[0]->get("other", deadline_in(20ms)); }, ErrorCode::kDeadlineExceeded),
              HasSubstr("nobody has set 'other' in time"));
  all_leave(members);
}

TEST(Membership, ComparesWhatAllClaim) {
  const TemporaryFolder folder;
  auto members = all_join(3, folder.path());
  const auto all_claim = [&](const std::string& subject, const std::vector<std::string>& texts) {
    std::vector<std::future<std::string>> ends;
    for (std::size_t i = 0; i < members.size(); ++i) {
      ends.push_back(std::async(std::launch::async, [&, i] {
        return error_of([&] { members[i]->agree(subject, texts[i], deadline_in(30s)); },
                        ErrorCode::kInvalidArgument);
      }));
    }
    std::vector<std::string> results;
    for (auto& end : ends) results.push_back(end.get());
    return results;
  };
  EXPECT_THAT(all_claim("one", {"a\nb", "a\nb", "a\nb"}), ::testing::Each("no error"));
  EXPECT_THAT(all_claim("two", {"a\nb", "a\nb", "a\nc"}),
              ::testing::Each(AllOf(HasSubstr("the workers do not agree on two: line 2 is 'b' on worker:"),
                                    HasSubstr("'c' on worker:2"))));
  EXPECT_THAT(all_claim("three", {"a", "a", "a"}), ::testing::Each("no error"));
  std::jthread late([&] {
    EXPECT_THAT(
        error_of([&] { members[1]->agree("four", "a", deadline_in(100ms)); }, ErrorCode::kDeadlineExceeded),
        HasSubstr("before it was reached by worker:0, worker:2"));
  });
  late.join();
  all_leave(members);
}

TEST(Membership, OneThatHasLeftMayAskForNothing) {
  const TemporaryFolder folder;
  auto members = all_join(2, folder.path());
  members[1]->leave();
  EXPECT_THROW(members[1]->check(), FailedPrecondition);
  EXPECT_THROW(members[1]->set("key", "value"), FailedPrecondition);
  EXPECT_NO_THROW(members[0]->check());
  all_leave(members);
}

TEST(Membership, TheHubLeavesAndTheOthersAreTold) {
  const TemporaryFolder folder;
  auto members = all_join(2, folder.path());
  members[0].reset();
  for (int i = 0; i < 1000; ++i) {
    try {
      members[1]->check();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
      EXPECT_EQ(error.message(), "worker:0 (127.0.0.1) has left the job");
      return;
    }
    std::this_thread::sleep_for(10ms);
  }
  FAIL() << "nobody told";
}

// --- processes

// A worker in a child: it joins, and then does what `then` says.
pid_t child_of(int rank, int count, const std::filesystem::path& folder,
               const std::function<int(Membership&)>& then) {
  const pid_t child = fork();
  if (child != 0) return child;
  int status = 99;
  try {
    const auto member = Membership::join(spec_of(rank, count, folder), deadline_in(30s));
    status = then(*member);
  } catch (...) {
  }
  _exit(status);
}

// Waits for the loss of somebody; its rank, and 50 if nobody is lost.
int rank_that_is_lost(Membership& member) {
  std::promise<LostMember> lost;
  member.when_lost([&](const LostMember& who) { lost.set_value(who); });
  std::future<LostMember> told = lost.get_future();
  return told.wait_for(30s) == std::future_status::ready ? told.get().rank : 50;
}

int exit_status(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(MembershipLoss, WhoeverIsKilledIsNamedToAll) {
  for (int dead = 0; dead < 3; ++dead) {
    const TemporaryFolder folder;
    std::vector<pid_t> children;
    for (int rank = 0; rank < 3; ++rank) {
      children.push_back(child_of(rank, 3, folder.path(), [rank, dead](Membership& member) {
        if (rank == dead) kill(getpid(), SIGKILL);
        return rank_that_is_lost(member);
      }));
    }
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(exit_status(children[static_cast<std::size_t>(rank)]), rank == dead ? -1 : dead);
  }
}

TEST(MembershipLoss, WhoeverIsStoppedIsNamedToAll) {
  for (int stopped = 0; stopped < 2; ++stopped) {
    const TemporaryFolder folder;
    std::vector<pid_t> children;
    for (int rank = 0; rank < 3; ++rank) {
      children.push_back(child_of(rank, 3, folder.path(), [rank, stopped](Membership& member) {
        if (rank == stopped) raise(SIGSTOP);
        return rank_that_is_lost(member);
      }));
    }
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == stopped) continue;
      EXPECT_EQ(exit_status(children[static_cast<std::size_t>(rank)]), stopped);
    }
    kill(children[static_cast<std::size_t>(stopped)], SIGCONT);  // it names itself
    EXPECT_EQ(exit_status(children[static_cast<std::size_t>(stopped)]), stopped);
  }
}

TEST(MembershipLoss, EndsWhatWaits) {
  const TemporaryFolder folder;
  const pid_t child = child_of(1, 2, folder.path(), [](Membership& member) {
    member.set("here", "");
    kill(getpid(), SIGKILL);
    return 0;
  });
  const auto member = Membership::join(spec_of(0, 2, folder.path()), deadline_in(30s));
  EXPECT_THAT(error_of([&] { member->get("never"); }, ErrorCode::kUnavailable),
              AllOf(HasSubstr("worker:1 (127.0.0.1) is lost"), HasSubstr("its connection ended")));
  EXPECT_THAT(error_of([&] { member->agree("step", "text"); }, ErrorCode::kUnavailable),
              HasSubstr("worker:1"));
  EXPECT_EQ(rank_that_is_lost(*member), 1);  // also if one asks only now
  exit_status(child);
}

TEST(MembershipLoss, AChildOfForkHasNoPart) {
  const TemporaryFolder folder;
  auto members = all_join(2, folder.path());
  EXPECT_EQ(testing::exit_status_of_child([&] {
              int refused = 0;
              try {
                members[1]->set("key", "value");
              } catch (const FailedPrecondition&) {
                ++refused;
              }
              members[0].reset();
              return refused;
            }),
            1);
  members[1]->set("key", "value");
  EXPECT_EQ(members[0]->get("key"), "value");
  all_leave(members);
}

// --- joining

TEST(MembershipJoin, ByTheAddressOfTheCoordinator) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    TakenPort port;
    port.give_up();
    const std::string place = std::string(host) + ":" + std::to_string(port.port());
    std::vector<std::unique_ptr<Membership>> members(2);
    std::vector<std::jthread> threads;
    for (int rank = 1; rank >= 0; --rank) {
      threads.emplace_back([&, rank] {
        if (rank == 0) std::this_thread::sleep_for(50ms);  // the other one has to try again
        members[static_cast<std::size_t>(rank)] =
            Membership::join({.worker = {.index = rank, .rank = rank, .count = 2, .coordinator = place},
                              .secret = "x",
                              .lost = kLost},
                             deadline_in(30s));
      });
    }
    threads.clear();
    MembershipSpec visitor{.worker = {.coordinator = place}, .secret = "x"};
    members[1]->report({.step = 5, .waits_for = 0, .what = "all_reduce 'grads'"});
    std::string status;
    for (int i = 0; i < 500 && status.find("step 5") == std::string::npos; ++i) {
      status = Membership::status(visitor, deadline_in(30s));
      std::this_thread::sleep_for(10ms);
    }
    EXPECT_THAT(status,
                AllOf(HasSubstr("2 workers"), HasSubstr("worker:1 (127.0.0.1)  step 5  all_reduce 'grads'  "
                                                        "waits for worker:0 since")));
    visitor.secret = "y";
    EXPECT_THAT(error_of([&] { Membership::status(visitor, deadline_in(30s)); }, ErrorCode::kInvalidArgument),
                HasSubstr("its secret is not that of the job"));
    all_leave(members);
    visitor.secret = "x";
    EXPECT_THAT(error_of([&] { Membership::status(visitor, deadline_in(30s)); }, ErrorCode::kUnavailable),
                HasSubstr("Connection refused"));
  }
}

TEST(MembershipJoin, NamesWhoHasNotCome) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { Membership::join(spec_of(0, 3, folder.path()), deadline_in(1s)); },
                       ErrorCode::kDeadlineExceeded),
              HasSubstr("missing are workers 1, 2"));
  const TakenPort silent;
  MembershipSpec spec{.worker = {.index = 1, .rank = 1, .count = 2, .coordinator = silent.address()}};
  EXPECT_THAT(error_of([&] { Membership::join(spec, deadline_in(50ms)); }, ErrorCode::kDeadlineExceeded),
              HasSubstr("worker 0 is not reached at " + silent.address()));
  spec.worker.coordinator = "no.such.host.invalid:1";
  spec.is_open = true;
  EXPECT_THAT(error_of([&] { Membership::join(spec, deadline_in(200ms)); }, ErrorCode::kDeadlineExceeded),
              HasSubstr("no.such.host.invalid"));
}

TEST(MembershipJoin, CanBeGivenUp) {
  const TemporaryFolder folder;
  for (const int rank : {0, 1}) {
    std::stop_source stop;
    std::jthread other([&] {
      std::this_thread::sleep_for(20ms);
      stop.request_stop();
    });
    error_of(
        [&] {
          Membership::join(spec_of(rank, 2, folder.path() / std::to_string(rank)), {}, stop.get_token());
        },
        ErrorCode::kCancelled);
  }
}

TEST(MembershipJoin, RefusesWhatCannotBe) {
  const auto refusal = [](const MembershipSpec& spec, ErrorCode code) {
    return error_of([&] { Membership::join(spec, deadline_in(1s)); }, code);
  };
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  EXPECT_THAT(refusal({.worker = {.rank = 2, .count = 2}}, kInvalid), HasSubstr("there is no worker 2 of 2"));
  EXPECT_THAT(refusal({.worker = {.count = 2}}, kInvalid), HasSubstr("LOCKSTEP_COORDINATOR"));
  EXPECT_THAT(refusal({.beat = 200ms, .lost = 500ms}, kInvalid), HasSubstr("at least three beats"));
  EXPECT_THAT(refusal({.lost = std::chrono::milliseconds::max()}, kInvalid), HasSubstr("too long"));
  EXPECT_THAT(refusal({.beat = 0ms}, kInvalid), HasSubstr("beats"));
  EXPECT_THAT(refusal({.replicas = 0}, kInvalid), HasSubstr("at least one replica"));
  EXPECT_THAT(refusal({.worker = {.rank = 1, .count = 2, .coordinator = "10.0.0.1:1"}},
                      ErrorCode::kFailedPrecondition),
              AllOf(HasSubstr("LOCKSTEP_SECRET"), HasSubstr("LOCKSTEP_OPEN=1")));
  EXPECT_THAT(refusal({.worker = {.count = 2, .coordinator = "192.0.2.1:1"}, .secret = "x"}, kInvalid),
              HasSubstr("is this machine the one of the worker of rank 0?"));
  const TakenPort port;
  EXPECT_THAT(refusal({.worker = {.count = 2, .coordinator = port.address()}}, ErrorCode::kUnavailable),
              HasSubstr("is taken: another job"));
}

// Connections that say nothing, and some that make noise.
TEST(MembershipJoin, StrangersAtThePortDoNotMatter) {
  TakenPort port;
  port.give_up();
  const auto spec = [&](int rank) {
    return MembershipSpec{.worker = {.index = rank, .rank = rank, .count = 2, .coordinator = port.address()},
                          .lost = kLost};
  };
  std::unique_ptr<Membership> first;
  std::jthread joining([&] { first = Membership::join(spec(0), deadline_in(30s)); });
  std::vector<int> strangers;
  for (int i = 0; i < 300; ++i) {
    const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(port.port());
    for (int k = 0; k < 1000; ++k) {
      if (::connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) break;
      std::this_thread::sleep_for(1ms);
    }
    if (i % 3 == 0) ::send(made, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
    if (i % 7 == 0) ::send(made, std::string(100'000, '\1').data(), 100'000, MSG_NOSIGNAL | MSG_DONTWAIT);
    strangers.push_back(made);
  }
  const auto second = Membership::join(spec(1), deadline_in(30s));
  joining.join();
  second->set("key", "value");
  EXPECT_EQ(first->get("key", deadline_in(30s)), "value");
  for (const int stranger : strangers) ::close(stranger);
  first->check();
  std::jthread leaving([&] { first.reset(); });
  second->leave();
}

}  // namespace
}  // namespace lockstep
