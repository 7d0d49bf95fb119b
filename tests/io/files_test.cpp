#include "lockstep/io/files.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lockstep/core/error.h"
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
  EXPECT_EQ(read_file(folder / "a", 5), "12345");
  expect_error(ErrorCode::kInvalidArgument, "larger than the limit of 4 bytes",
               [&] { read_file(folder / "a", 4); });

  // A sparse file of a terabyte costs no memory to refuse.
  std::ofstream(folder / "sparse").put('x');
  std::filesystem::resize_file(folder / "sparse", std::uintmax_t{1} << 40);
  expect_error(ErrorCode::kInvalidArgument, "sparse", [&] { read_file(folder / "sparse"); });
}

TEST(Files, ReadAPipeToItsEndWithinTheLimit) {
  const TemporaryFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string bytes(300'000, 'p');
  std::thread writer([&] { std::ofstream(pipe) << bytes; });
  EXPECT_EQ(read_file(pipe), bytes);
  writer.join();
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
    for (const std::string& name : names) EXPECT_EQ(is_temporary_name(name), name != "a") << name;
    file.commit();
    EXPECT_EQ(read_file(folder / "a"), "new");
  }
  { WholeFile(folder / "a").append("never committed"); }
  EXPECT_EQ(read_file(folder / "a"), "new");
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("a"));
}

TEST(Files, KnowTheirTemporaryNames) {
  EXPECT_TRUE(is_temporary_name(".a.lkg.tmp-123-0"));
  for (const char* name :
       {"", ".", "a", "a.tmp-1-2", ".tmp-1-2", ".a.tmp-1", ".a.tmp--2", ".a.tmp-1-x", ".a.tmp-1-2.lkg"}) {
    EXPECT_FALSE(is_temporary_name(name)) << name;
  }
}

}  // namespace
}  // namespace lockstep
