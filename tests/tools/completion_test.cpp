// Tests: tools/completion.cpp, tools/shell_words.cpp
// The scripts of `lockstep completion`, in the shells that they are for.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Lines that end in what is typed so far, and what a Tab makes of them.
const std::vector<std::pair<std::string, std::string>> kLines = {
    {"lockstep du", "lockstep dump"},
    {"lockstep --vers", "lockstep --version"},
    {"lockstep ste", "lockstep ste"},  // a command, not a file
    {"lockstep stat", "lockstep status"},
    {"lockstep opt --ver", "lockstep opt --verify-each"},
    {"lockstep opt --time --ver", "lockstep opt --time --verify-each"},
    {"lockstep dump step.lks --prov", "lockstep dump step.lks --provenance"},
    {"lockstep dump --format j", "lockstep dump --format json"},
    {"lockstep dump --format=j", "lockstep dump --format=json"},
    {"lockstep dump -f j", "lockstep dump -f json"},
    {"lockstep dump st", "lockstep dump step.lks"},
    {"lockstep dump --format html st", "lockstep dump --format html step.lks"},
    {"lockstep dump --output=st", "lockstep dump --output=step.lks"},
    {"lockstep dump -o st", "lockstep dump -o step.lks"},
    {"lockstep diff step.lks ot", "lockstep diff step.lks other.npy"},
    // A value that is called as a command is.
    {"lockstep run --seed ops st", "lockstep run --seed ops step.lks"},
    {"lockstep run --feed ot", "lockstep run --feed other.npy"},
    {"lockstep run --feed x=ot", "lockstep run --feed x=other.npy"},
    {"lockstep run --feed=x=ot", "lockstep run --feed=x=other.npy"},
    {"lockstep run --steps st", "lockstep run --steps st"},  // a number is no file
    {"lockstep run --steps=st", "lockstep run --steps=st"},
    {"lockstep run --strategy one", "lockstep run --strategy one-device"},
    {"lockstep run --strategy=one", "lockstep run --strategy=one-device"},
    {"lockstep data ot", "lockstep data other.npy"},
    {"lockstep data --to ot", "lockstep data --to other.npy"},
    {"lockstep data --format tfr", "lockstep data --format tfrecord"},
    {"lockstep info st", "lockstep info st"},  // takes no file
    {"lockstep ops matm", "lockstep ops matmul"},
    {"lockstep passes prove", "lockstep passes prove-sync"},
    {"lockstep completion z", "lockstep completion zsh"},
    {"lockstep opt --print-after cha", "lockstep opt --print-after changed"},
    {"lockstep opt --passes central", "lockstep opt --passes central-storage"},
    {"lockstep opt --passes=central", "lockstep opt --passes=central-storage"},
    {"lockstep opt -p dead-n", "lockstep opt -p dead-node-elimination"},
    {"lockstep opt -p constant-folding,dead-n", "lockstep opt -p constant-folding,dead-node-elimination"},
    {"lockstep opt --passes=constant-folding,dead-n",
     "lockstep opt --passes=constant-folding,dead-node-elimination"},
};

class Completion : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("lockstep_completion_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    std::ofstream(folder_ / "step.lks");
    std::ofstream(folder_ / "other.npy");
  }
  void TearDown() override { fs::remove_all(folder_); }

  bool runs(const std::string& line) const {
    return std::system(("cd '" + folder_.string() + "' && " + line + " 2>.err").c_str()) == 0;
  }

  fs::path folder_;
};

TEST_P(Completion, TakesTheShellToWhatFits) {
  const std::string shell = GetParam();
  if (!runs("command -v " + shell + " >/dev/null")) GTEST_SKIP() << shell << " is not installed";
  ASSERT_TRUE(runs("ASAN_OPTIONS=detect_leaks=0 '" LOCKSTEP_TOOL "' completion " + shell + " >script"));
  std::ofstream lines(folder_ / "lines");
  for (const auto& [typed, completed] : kLines) lines << typed << '\n';
  lines.close();
  const std::string bare = shell == "bash" ? "bash --norc" : shell == "zsh" ? "zsh -f" : "fish --no-config";
  ASSERT_TRUE(runs(bare + " '" LOCKSTEP_SHELLS_DIR "/complete." + shell + "' ./script <lines >answers"));
  std::ifstream answers(folder_ / "answers");
  for (const auto& [typed, completed] : kLines) {
    std::string answer;
    std::getline(answers, answer);
    // What separates it from the next word, its value, or the next of a list.
    answer.erase(answer.find_last_not_of(" =,") + 1);
    EXPECT_EQ(answer, completed) << "for " << typed;
  }
}

INSTANTIATE_TEST_SUITE_P(Shells, Completion, testing::Values("bash", "zsh", "fish"),
                         [](const auto& shell) { return std::string(shell.param); });

}  // namespace
}  // namespace lockstep
