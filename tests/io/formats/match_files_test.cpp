// Tests: io/formats/match_files.cpp
#include "lockstep/io/formats/match_files.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "support/record_files.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

class MatchFiles : public ::testing::Test {
 protected:
  MatchFiles() {
    for (const char* folder : {"a", "b", "b/deep", "c.d"})
      std::filesystem::create_directory(folder_ / folder);
    for (const char* file : {"train-2", "train-10", "train-1", "test-1", ".hidden", "x[1]", "a/one", "b/one",
                             "b/two", "b/deep/one", "c.d/file.txt", "\xff"})
      testing::write_to(folder_ / file, "");
  }
  // Relative to the folder.
  std::vector<std::string> match(const std::string& pattern) {
    std::vector<std::string> names;
    for (const auto& path : match_files((folder_ / pattern).string()))
      names.push_back(path.lexically_relative(folder_.path()).string());
    return names;
  }
  TemporaryFolder folder_;
};

TEST_F(MatchFiles, GivesFilesInTheOrderOfTheirBytes) {
  EXPECT_THAT(match("train-*"), ElementsAre("train-1", "train-10", "train-2"));
  EXPECT_THAT(match("*"), ElementsAre("test-1", "train-1", "train-10", "train-2", "x[1]", "\xff"));
  EXPECT_THAT(match("train-1"), ElementsAre("train-1"));
}

TEST_F(MatchFiles, KnowsStarsQuestionMarksAndClasses) {
  EXPECT_THAT(match("train-?"), ElementsAre("train-1", "train-2"));
  EXPECT_THAT(match("t*-1"), ElementsAre("test-1", "train-1"));
  EXPECT_THAT(match("*-*"), ElementsAre("test-1", "train-1", "train-10", "train-2"));
  EXPECT_THAT(match("train-[2-9]"), ElementsAre("train-2"));
  EXPECT_THAT(match("train-[!2-9]*"), ElementsAre("train-1", "train-10"));
  EXPECT_THAT(match("train-[^2]"), ElementsAre("train-1"));
  EXPECT_THAT(match("t[er]*[1]"), ElementsAre("test-1", "train-1"));
  EXPECT_THAT(match("x[[]1[]]"), ElementsAre("x[1]"));
  EXPECT_THAT(match(".h*"), ElementsAre(".hidden"));
}

TEST_F(MatchFiles, FollowsPatternsThroughFolders) {
  EXPECT_THAT(match("*/one"), ElementsAre("a/one", "b/one"));
  EXPECT_THAT(match("[ab]/*"), ElementsAre("a/one", "b/one", "b/two"));
  EXPECT_THAT(match("*/*/one"), ElementsAre("b/deep/one"));
  EXPECT_THAT(match("c.d/*.txt"), ElementsAre("c.d/file.txt"));
}

TEST_F(MatchFiles, MatchesBelowTheCurrentFolder) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  const auto found = match_files("b/t*");
  const auto here = match_files("train-?");
  std::filesystem::current_path(before);
  EXPECT_THAT(found, ElementsAre(std::filesystem::path("b/two")));
  EXPECT_THAT(here, ElementsAre(std::filesystem::path("train-1"), std::filesystem::path("train-2")));
}

TEST_F(MatchFiles, SaysThatNothingMatches) {
  EXPECT_THAT(error_of([&] { match("valid-*"); }), HasSubstr("NotFound: no file matches"));
  EXPECT_THAT(error_of([&] { match("a"); }), HasSubstr("NotFound"));  // a folder
  EXPECT_THAT(error_of([&] { match("none/*"); }), HasSubstr("NotFound"));
  EXPECT_THAT(error_of([&] { match_files(""); }), HasSubstr("NotFound"));
  EXPECT_THAT(error_of([&] { match("train-[1"); }), HasSubstr("has a [ without a ]"));
  EXPECT_THAT(error_of([&] { match("train-[]"); }), HasSubstr("has a [ without a ]"));
}

// Many stars against a long name: not 2^n steps.
TEST_F(MatchFiles, IsFastWhateverThePattern) {
  testing::write_to(folder_ / std::string(200, 'a'), "");
  std::string pattern;
  for (int i = 0; i < 60; ++i) pattern += "*a";
  EXPECT_THAT(error_of([&] { match(pattern + "b"); }), HasSubstr("NotFound"));
}

}  // namespace
}  // namespace lockstep
