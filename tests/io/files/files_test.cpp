// Tests: io/files/files.cpp, io/files/place.cpp
#include "lockstep/io/files/files.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/io/files/internal/place.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

template <class F>
void expect_error(ErrorCode code, const std::string& part, const F& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.message(), HasSubstr(part));
  }
}

TEST(Files, AreReadAsTheyWereWritten) {
  const TemporaryFolder folder;
  const std::string all_bytes = [] {
    std::string bytes;
    for (int i = 0; i < 100'000; ++i) bytes.push_back(static_cast<char>(i * 7 + i / 256));
    return bytes;
  }();
  for (const std::string& bytes : {std::string(), std::string("x"), all_bytes}) {
    write_file_whole(folder / "a", bytes);  // also over the one before
    EXPECT_EQ(read_file(folder / "a"), bytes);
  }
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("a"));
}

TEST(Files, AreRefusedAboveTheLimit) {
  const TemporaryFolder folder;
  write_file_whole(folder / "a", "12345");
  EXPECT_EQ(read_file(folder / "a", {.file_bytes = 5}), "12345");
  expect_error(ErrorCode::kInvalidArgument,
               "it has 5 bytes, more than the limit of 4; whoever trusts it raises ReadLimits::file_bytes in "
               "C++, --read-limit on the command line",
               [&] { read_file(folder / "a", {.file_bytes = 4}); });
  EXPECT_EQ(read_file(folder / "a", {.base_bytes = 0}), "12345") << "its size is known";

  // A sparse file of a terabyte costs no memory to refuse.
  std::ofstream(folder / "sparse").put('x');
  std::filesystem::resize_file(folder / "sparse", std::uintmax_t{1} << 40);
  expect_error(ErrorCode::kInvalidArgument, "sparse", [&] { read_file(folder / "sparse"); });
}

// What has no end, or does not say where it is, must not take all memory.
TEST(Files, ThatTellNoSizeAreReadUpToTheBase) {
  for (const char* endless : {"/dev/zero", "/dev/urandom"}) {
    expect_error(
        ErrorCode::kInvalidArgument,
        "it gives more than 67108864 bytes, the limit for what does not tell its size; whoever trusts "
        "it raises ReadLimits::base_bytes in C++, --read-limit on the command line",
        [&] { read_file(endless); });
    expect_error(ErrorCode::kInvalidArgument, "more than 1000 bytes",
                 [&] { read_file(endless, {.base_bytes = 1000}); });
    expect_error(ErrorCode::kInvalidArgument, "ReadLimits::file_bytes",
                 [&] { read_file(endless, {.file_bytes = 1000}); });
  }
  EXPECT_FALSE(read_file("/proc/self/status").empty());
  expect_error(ErrorCode::kInvalidArgument, "more than 10 bytes",
               [&] { read_file("/proc/self/status", {.base_bytes = 10}); });
}

TEST(Files, ReadAPipeToItsEndWithinTheLimit) {
  const TemporaryFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string bytes(300'000, 'p');
  std::thread writer([&] { std::ofstream(pipe) << bytes; });
  EXPECT_EQ(read_file(pipe, {.base_bytes = bytes.size()}), bytes);
  writer.join();
}

mode_t mode_of(const std::filesystem::path& path) {
  struct stat facts = {};
  EXPECT_EQ(::lstat(path.c_str(), &facts), 0) << path;
  return facts.st_mode & 07777U;
}

TEST(Files, KeepTheModeOfWhatTheyReplace) {
  const TemporaryFolder folder;
  const mode_t before = ::umask(027);
  write_file_whole(folder / "new", "x");
  write_file_whole(folder / "private", "x", NewFile::kPrivate);
  EXPECT_EQ(mode_of(folder / "new"), 0640U) << "as the umask has it";
  EXPECT_EQ(mode_of(folder / "private"), 0600U);
  std::filesystem::create_symlink("new", folder / "link");
  for (const mode_t mode : {0600U, 0604U, 0444U, 0777U, 0666U}) {
    ASSERT_EQ(::chmod((folder / "new").c_str(), mode), 0);
    for (const NewFile kind : {NewFile::kByUmask, NewFile::kPrivate}) {
      write_file_whole(folder / "link", "y", kind);
      EXPECT_EQ(mode_of(folder / "new"), mode);
    }
  }
  {
    ASSERT_EQ(::chmod((folder / "private").c_str(), 0600), 0);
    WholeFile file(folder / "private");
    for (const std::string& name : names_in(folder.path())) {
      if (name.starts_with('.')) {
        EXPECT_EQ(mode_of(folder / name), 0600U) << "nobody reads what is half written";
      }
    }
  }
  ::umask(before);
}

TEST(Files, KeepTheOwnerOfWhatTheyReplace) {
  if (::geteuid() != 0) GTEST_SKIP() << "files can be given away by root alone";
  const TemporaryFolder folder;
  write_file_whole(folder / "a", "x");
  ASSERT_EQ(::chown((folder / "a").c_str(), 1234, 5678), 0);
  ASSERT_EQ(::chmod((folder / "a").c_str(), 0640), 0);
  write_file_whole(folder / "a", "y");
  struct stat facts = {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_uid, 1234U);
  EXPECT_EQ(facts.st_gid, 5678U);
  EXPECT_EQ(facts.st_mode & 07777U, 0640U);

  // But not where a stranger may have put it there to read what comes.
  std::filesystem::create_directory(folder / "open");
  ASSERT_EQ(::chmod((folder / "open").c_str(), 01777), 0);
  write_file_whole(folder / "open" / "a", "x");
  ASSERT_EQ(::chmod((folder / "open" / "a").c_str(), 0666), 0);
  ASSERT_EQ(::chown((folder / "open" / "a").c_str(), 1234, 5678), 0);
  write_file_whole(folder / "open" / "a", "y");
  ASSERT_EQ(::stat((folder / "open" / "a").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_uid, 0U);
  EXPECT_EQ(facts.st_mode & 07777U, 0600U);
}

// The rule of Linux's fs.protected_symlinks.
TEST(Files, FollowLinksThatNobodyElseCouldHavePut) {
  struct stat link = {}, folder = {};
  const auto follows = [&](mode_t mode, uid_t owner, uid_t of_link) {
    folder.st_mode = S_IFDIR | mode;
    folder.st_uid = owner;
    link.st_uid = of_link;
    return static_cast<bool>(internal::is_trusted(link, folder, 1000));
  };
  EXPECT_TRUE(follows(01777, 0, 1000)) << "one's own";
  EXPECT_TRUE(follows(01777, 0, 0)) << "the folder's owner put it";
  EXPECT_FALSE(follows(01777, 0, 1001));
  EXPECT_FALSE(follows(01777, 1000, 1001)) << "also in a folder of one's own";
  EXPECT_TRUE(follows(0777, 0, 1001)) << "anybody could replace the file itself";
  EXPECT_TRUE(follows(01775, 0, 1001)) << "only who is trusted puts links there";
}

TEST(Files, AreNotReachedThroughLinksOfStrangers) {
  if (::geteuid() != 0) GTEST_SKIP() << "links can be given away by root alone";
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "open");
  std::filesystem::create_directory(folder / "mine");
  ASSERT_EQ(::chmod((folder / "open").c_str(), 01777), 0);
  write_file_whole(folder / "mine" / "a", "old");
  const auto link = [&](const std::string& to, const std::string& name, uid_t owner) {
    std::filesystem::create_symlink(to, folder / "open" / name);
    ASSERT_EQ(::lchown((folder / "open" / name).c_str(), owner, owner), 0);
  };
  link("../mine/a", "file", 1234);
  link("../mine", "folder", 1234);
  link("../mine/new", "dangling", 1234);
  link("file", "own_to_file", 0);
  link("../mine/a", "own", 0);
  const auto refused = [](const std::string& name, const auto& call) {
    expect_error(ErrorCode::kFailedPrecondition,
                 "open/" + name + "\" is not followed: it belongs to another user (1234)", call);
  };
  for (const auto& [path, name] :
       std::vector<std::pair<std::string, std::string>>{{"open/file", "file"},
                                                        {"open/folder/a", "folder"},
                                                        {"open/dangling", "dangling"},
                                                        {"open/own_to_file", "file"}}) {
    const auto at = folder / path;
    refused(name, [&] { write_file_whole(at, "x"); });
    refused(name, [&] { read_file(at); });
  }
  refused("folder", [&] { make_folders(folder / "open" / "folder" / "made"); });
  refused("folder", [&] { make_folders(folder / "open" / "folder"); });
  EXPECT_THAT(names_in(folder / "mine"), UnorderedElementsAre("a"));
  EXPECT_EQ(read_file(folder / "mine" / "a"), "old");
  write_file_whole(folder / "open" / "own", "new");
  EXPECT_EQ(read_file(folder / "open" / "own"), "new");
  // Where nobody else can put links, whose they are does not matter.
  ASSERT_EQ(::chmod((folder / "open").c_str(), 0755), 0);
  EXPECT_EQ(read_file(folder / "open" / "folder" / "a"), "new");
}

TEST(Files, AreFoundByEverySpellingOfTheirPath) {
  const TemporaryFolder folder;
  make_folders(folder / "a" / "b" / "");
  write_file_whole(folder / "a" / "." / "b" / ".." / "f", "x");
  EXPECT_EQ(read_file(folder.path().string() + "//a///f"), "x");
  std::filesystem::create_symlink("/", folder / "root");
  EXPECT_EQ(read_file(folder / "root" / folder.path().relative_path() / "a" / "f"), "x");
  std::filesystem::create_symlink("b/", folder / "a" / "slash");
  write_file_whole(folder / "a" / "slash" / "g", "y");
  EXPECT_EQ(read_file(folder / "a" / "b" / "g"), "y");
  expect_error(ErrorCode::kFailedPrecondition, "f", [&] { read_file(folder / "a" / "f" / "g"); });
  expect_error(ErrorCode::kFailedPrecondition, "slash",
               [&] { write_file_whole(folder / "a" / "slash", "x"); });
  expect_error(ErrorCode::kNotFound, "cannot", [&] { read_file(""); });
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_file_whole("plain", "z");
  EXPECT_EQ(read_file("plain"), "z");
  EXPECT_EQ(read_file("./a/../plain"), "z");
  make_folders("made/here");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "made" / "here"));
  std::filesystem::current_path(here);
}

TEST(Files, NameThePathThatFails) {
  const TemporaryFolder folder;
  expect_error(ErrorCode::kNotFound, "absent", [&] { read_file(folder / "absent"); });
  expect_error(ErrorCode::kNotFound, "absent", [&] { write_file_whole(folder / "absent" / "a", "x"); });
  expect_error(ErrorCode::kFailedPrecondition, folder.path().string(), [&] { read_file(folder.path()); });
  expect_error(ErrorCode::kInvalidArgument, "names no file",
               [&] { write_file_whole(folder.path() / "", "x"); });

  // A folder cannot be replaced by a file; what was written for it is gone again.
  std::filesystem::create_directory(folder / "taken");
  expect_error(ErrorCode::kFailedPrecondition, "taken", [&] { write_file_whole(folder / "taken", "x"); });
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("taken"));
}

TEST(Files, AppearOnlyWithTheCommit) {
  const TemporaryFolder folder;
  write_file_whole(folder / "a", "old");
  {
    WholeFile file(folder / "a");
    file.append("ne");
    file.append("w");
    EXPECT_EQ(read_file(folder / "a"), "old");
    const std::vector<std::string> names = names_in(folder.path());
    EXPECT_EQ(names.size(), 2U);
    for (const std::string& name : names)
      EXPECT_EQ(name_behind_temporary(name), name == "a" ? "" : "a") << name;
    file.commit();
    EXPECT_EQ(read_file(folder / "a"), "new");
  }
  { WholeFile(folder / "a").append("never committed"); }
  EXPECT_EQ(read_file(folder / "a"), "new");
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("a"));
}

TEST(Files, KnowTheirTemporaryNames) {
  EXPECT_EQ(name_behind_temporary(".a.lkg.tmp-123-0"), "a.lkg");
  EXPECT_EQ(name_behind_temporary(".a.tmp-1-2.tmp-3-4"), "a.tmp-1-2");
  for (const char* name :
       {"", ".", "a", "a.tmp-1-2", ".tmp-1-2", ".a.tmp-1", ".a.tmp--2", ".a.tmp-1-x", ".a.tmp-1-2.lkg"}) {
    EXPECT_EQ(name_behind_temporary(name), "") << name;
  }
}

// In a container every process may be number 1: what one that was killed left has the name that the next one
// would take.
TEST(Files, AreWrittenBesideWhatAKilledProcessLeft) {
  const TemporaryFolder folder;
  std::string taken;
  {
    const WholeFile file(folder / "a");
    taken = names_in(folder.path()).at(0);
  }
  const std::size_t dash = taken.rfind('-');
  const std::uint64_t number = std::stoull(taken.substr(dash + 1));
  for (std::uint64_t next = number + 1; next <= number + 3; ++next)
    std::ofstream(folder / (taken.substr(0, dash + 1) + std::to_string(next))) << "half";
  write_file_whole(folder / "a", "whole");
  EXPECT_EQ(read_file(folder / "a"), "whole");
  EXPECT_EQ(names_in(folder.path()).size(), 4U) << "what others left is theirs";
}

TEST(Files, AreReplacedBehindLinksWhichStay) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "deep");
  write_file_whole(folder / "deep" / "a", "old");
  std::filesystem::create_symlink("deep/a", folder / "link");
  std::filesystem::create_symlink("link", folder / "link_to_link");
  std::filesystem::create_symlink("deep/new", folder / "dangling");
  std::filesystem::create_symlink("round", folder / "round");
  write_file_whole(folder / "link_to_link", "new");
  EXPECT_EQ(read_file(folder / "deep" / "a"), "new");
  write_file_whole(folder / "dangling", "made");
  EXPECT_EQ(read_file(folder / "deep" / "new"), "made");
  expect_error(ErrorCode::kFailedPrecondition, "round", [&] { write_file_whole(folder / "round", "x"); });
  for (const char* link : {"link", "link_to_link", "dangling"})
    EXPECT_TRUE(std::filesystem::is_symlink(folder / link)) << link;
  EXPECT_THAT(names_in(folder / "deep"), UnorderedElementsAre("a", "new"));
}

TEST(Files, ThatAreDevicesOrPipesAreWrittenTo) {
  const TemporaryFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = read_file(pipe); });
  write_file_whole(pipe, "through the pipe");
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  std::filesystem::create_symlink("/dev/null", folder / "null");
  write_file_whole(folder / "null", "gone");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("pipe", "null"));

  // As "/dev/stdout > a" is: the file that is open, behind what is there already.
  if (!std::filesystem::exists("/proc/self/fd")) GTEST_SKIP() << "no /proc";
  write_file_whole(folder / "a", "before, ");
  const int open = ::open((folder / "a").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ASSERT_GE(open, 0);
  std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(open), folder / "stdout");
  write_file_whole(folder / "stdout", "after");
  ::close(open);
  EXPECT_EQ(read_file(folder / "a"), "before, after");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "stdout"));
}

TEST(Files, MakeFoldersThatAreMissing) {
  const TemporaryFolder folder;
  make_folders(folder / "a" / "b" / "c");
  make_folders(folder / "a" / "b");  // there already
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a" / "b" / "c"));
  write_file_whole(folder / "file", "x");
  expect_error(ErrorCode::kFailedPrecondition, "file", [&] { make_folders(folder / "file"); });
  expect_error(ErrorCode::kFailedPrecondition, "file", [&] { make_folders(folder / "file" / "in it"); });
}

}  // namespace
}  // namespace lockstep
