// Tests: core/communicators/rendezvous.cpp
#include "lockstep/core/communicators/rendezvous.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

class RendezvousTest : public ::testing::TestWithParam<bool> {
 protected:
  RendezvousTest() {
    if (GetParam()) {
      place_ = std::make_unique<FileRendezvous>(folder_ / "made/for/it");
    } else {
      place_ = std::make_unique<InProcessRendezvous>();
    }
  }
  TemporaryFolder folder_;
  std::unique_ptr<Rendezvous> place_;
};

TEST_P(RendezvousTest, KeepsBytes) {
  const std::string bytes("\0two\nlines\xff", 11);
  EXPECT_FALSE(place_->has("a/b"));
  place_->set("a/b", bytes);
  place_->set("empty", "");
  EXPECT_TRUE(place_->has("a/b"));
  EXPECT_EQ(place_->get("a/b"), bytes);
  EXPECT_EQ(place_->get("empty"), "");
}

TEST_P(RendezvousTest, WaitsForOthers) {
  std::thread other([&] {
    std::this_thread::sleep_for(20ms);
    place_->set("late", "word");
  });
  EXPECT_EQ(place_->get("late", deadline_in(60s)), "word");
  other.join();
}

TEST_P(RendezvousTest, SaysWhatNobodyHasSet) {
  try {
    place_->get("never", deadline_in(10ms));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
    EXPECT_NE(std::string(error.what()).find("'never'"), std::string::npos);
  }
}

TEST_P(RendezvousTest, SetsAKeyOnce) {
  place_->set("once", "first");
  EXPECT_THROW(place_->set("once", "second"), FailedPrecondition);
  EXPECT_EQ(place_->get("once"), "first");
  // Of many at the same time one is first, and all see its word.
  std::vector<std::thread> threads;
  std::vector<int> won(8, 0);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      try {
        place_->set("race", std::to_string(i));
        won[static_cast<std::size_t>(i)] = 1;
      } catch (const FailedPrecondition&) {  // another was first
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto winner = static_cast<std::size_t>(std::stoi(place_->get("race")));
  std::vector<int> expected(8, 0);
  expected[winner] = 1;
  EXPECT_EQ(won, expected);
}

TEST_P(RendezvousTest, RefusesWhatIsNoKey) {
  for (const std::string& key :
       {std::string(), std::string("a b"), std::string("a\0b", 3), std::string(201, 'x')}) {
    EXPECT_THROW(place_->set(key, ""), InvalidArgument);
    EXPECT_THROW(place_->get(key), InvalidArgument);
    EXPECT_THROW(place_->has(key), InvalidArgument);
  }
  EXPECT_TRUE(!GetParam() || std::filesystem::is_empty(folder_ / "made/for/it"));
}

INSTANTIATE_TEST_SUITE_P(Places, RendezvousTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Folder" : "Process"; });

TEST(FileRendezvous, LeavesNothingBesideItsKeys) {
  const TemporaryFolder folder;
  FileRendezvous place(folder.path());
  place.set("a", "1");
  place.set("..", "2");
  EXPECT_THROW(place.set("a", "3"), FailedPrecondition);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

}  // namespace
}  // namespace lockstep
