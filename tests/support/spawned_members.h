// tests/support/spawned_members.h - members of a group as processes of their own, for what a child of fork() cannot use: cards.
//
//   TEST(Member, DISABLED_Plays) { const Member me = this_member(); ...; says_played(me); }
//   SpawnedMembers members("Member.*", "train", 3, folder);   // in another test of the same program
//   EXPECT_EQ(members.wait(), (std::vector<int>{0, 0, 0}));
//
// NCCL takes each of them for another machine, so that they may share a card.
#pragma once

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep::testing {

struct Member {
  std::string part;
  int rank = 0, size = 1;
  std::filesystem::path folder;

  std::filesystem::path played() const { return folder / str("played.", rank); }
};

// Of a process that SpawnedMembers has started.
inline Member this_member() {
  const char* const text = std::getenv("LOCKSTEP_TEST_MEMBER");
  Member me;
  if (text == nullptr) {
    ADD_FAILURE() << "this is no member";
    return me;
  }
  std::istringstream words(text);
  words >> me.part >> me.rank >> me.size >> me.folder;
  return me;
}
// The last thing that a member does.
inline void says_played(const Member& me) { std::ofstream(me.played()) << "to the end\n"; }

class SpawnedMembers {
 public:
  SpawnedMembers(const std::string& filter, const std::string& part, int size,
                 const std::filesystem::path& folder) {
    for (int rank = 0; rank < size; ++rank) {
      const Member& member = members_.emplace_back(Member{part, rank, size, folder});
      std::filesystem::remove(member.played());
      std::ostringstream self;
      self << part << ' ' << rank << ' ' << size << ' ' << folder;
      std::vector<std::string> environment = {"LOCKSTEP_TEST_MEMBER=" + self.str(),
                                              str("NCCL_HOSTID=member-", rank), "NCCL_SOCKET_IFNAME=lo"};
      for (char** entry = environ; *entry != nullptr; ++entry) {
        if (!std::string_view(*entry).starts_with("GTEST_")) environment.emplace_back(*entry);
      }
      std::vector<std::string> arguments = {"member", "--gtest_also_run_disabled_tests",
                                            "--gtest_filter=" + filter};
      const auto pointers = [](std::vector<std::string>& texts) {
        std::vector<char*> all;
        for (std::string& text : texts) all.push_back(text.data());
        all.push_back(nullptr);
        return all;
      };
      pid_t process = 0;
      const int failed = ::posix_spawn(&process, "/proc/self/exe", nullptr, nullptr,
                                       pointers(arguments).data(), pointers(environment).data());
      EXPECT_EQ(failed, 0);
      processes_.push_back(process);
    }
  }
  ~SpawnedMembers() {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      signal(static_cast<int>(rank), SIGKILL);
      wait_for(rank);
    }
  }
  SpawnedMembers(const SpawnedMembers&) = delete;
  SpawnedMembers& operator=(const SpawnedMembers&) = delete;

  void signal(int rank, int number) const {
    if (const pid_t process = processes_[static_cast<std::size_t>(rank)]; process > 0)
      ::kill(process, number);
  }
  // The exit status of each; of one that a signal ended, minus its number.
  std::vector<int> wait() {
    std::vector<int> statuses;
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      const int status = wait_for(rank);
      statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
      if (statuses.back() == 0) {
        EXPECT_TRUE(std::filesystem::exists(members_[rank].played()));
      }
    }
    return statuses;
  }

 private:
  int wait_for(std::size_t rank) {
    int status = 0;
    if (processes_[rank] > 0) ::waitpid(processes_[rank], &status, 0);
    processes_[rank] = 0;
    return status;
  }

  std::vector<Member> members_;
  std::vector<pid_t> processes_;
};

}  // namespace lockstep::testing
