// Tests: tools/command_line.cpp, tools/diff.cpp, tools/dump.cpp, tools/feeds.cpp, tools/graph_input.cpp,
//        tools/info.cpp, tools/launch.cpp, tools/main.cpp, tools/ops.cpp, tools/opt.cpp, tools/passes.cpp, tools/profile.cpp,
//        tools/run.cpp, tools/runner.cpp, tools/status.cpp, graph/transform/plugin.cpp
// The lockstep command as its users see it: what it prints where, what it writes, and its exit status.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "lockstep/core/tensor.h"
#include "lockstep/core/version.h"
#include "lockstep/graph/transform/plugin.h"
#include "lockstep/io/drawings/svg.h"
#include "lockstep/io/files/npy.h"
#include "lockstep/io/files/npz.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// w -= 0.5 * sum over the rows of x; gives the sum of the squares of each row.
constexpr const char* kStep = R"(var @w : f32[2] = f32[2]{*1.0}
%x = placeholder() : f32[?,2]
%rate = placeholder() : f32[]
%copy = identity(%x) : f32[?,2]
%squares = square(%copy) : f32[?,2]
%y = sum[axes=[1], keepdims=false](%squares) : f32[?]
%g = sum[axes=[0], keepdims=false](%x) : f32[2]
%u = sgd[variable=@w](%g, %rate) : f32[2]
return %y
)";

// Each test works in a folder of its own.
class Tool : public testing::Test {
 protected:
  struct Outcome {
    int status = -1;
    std::string out, err;
  };

  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) /
              (std::string("lockstep_tool_") + test->name() + std::to_string(getpid()));
    fs::create_directories(folder_);
    write("step.lks", kStep);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path file(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, std::string_view text) const {
    std::ofstream(file(name), std::ios::binary) << text;
  }
  // Runs "lockstep <arguments>" in the folder, as a shell would, with its output in a file there.
  Outcome lockstep(const std::string& arguments, const std::string& input = "",
                   const std::string& out = ".out") const {
    write(".in", input);
    // The leak check at the end of each process takes seconds on some machines; the address checks stay.
    const std::string line = "cd '" + folder_.string() +
                             "' && ASAN_OPTIONS=detect_leaks=0 '" LOCKSTEP_TOOL "' " + arguments + " <.in >" +
                             out + " 2>.err";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(file(".out")), contents(file(".err"))};
  }
  std::string plugin(const std::string& name) const {
    return std::string("--load '" LOCKSTEP_PLUGIN_DIR "/") + name + ".so'";
  }

 private:
  fs::path folder_;
};

TEST_F(Tool, HelpAndVersionGoToStandardOutput) {
  const Outcome version = lockstep("--version");
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(version.out, "lockstep " + std::string(kVersion) + "\n");
  const Outcome help = lockstep("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.err, IsEmpty());
  for (const char* command : {"opt", "dump", "diff", "run", "profile", "data", "info", "launch", "status",
                              "ops", "passes", "completion"}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + command));
    const Outcome own = lockstep(std::string(command) + " --help");
    EXPECT_EQ(own.status, 0);
    EXPECT_THAT(own.out, HasSubstr("Exit status: 0"));
    // The manual has a row for every option.
    const std::string manual = contents(fs::path(LOCKSTEP_DOCS_DIR) / "cli.md");
    const std::regex option("--[a-z-]+");
    for (std::sregex_iterator at(own.out.begin(), own.out.end(), option), end; at != end; ++at)
      EXPECT_THAT(manual, HasSubstr(at->str())) << command;
  }
}

TEST_F(Tool, AWrongCommandLineIsStatus2AndSaysWhereHelpIs) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "subcommand is required"},
      {"nonsense", "there is no command 'nonsense'; there are opt, dump,"},
      {"--nonsense", "there is no option '--nonsense' before the command"},
      {"--load x.so opt step.lks", "there is no option '--load' before the command"},
      {"opt", "graph is required"},
      {"opt step.lks --nonsense", "--nonsense"},
      {"opt step.lks --format png", "png"},
      {"opt step.lks -o step.png", "there are .lks (text), .json (json), .lkg (binary); or give --format"},
      {"dump step.lks -o step.png", ".svg (svg), .html (html)"},
      {"dump step.lks --depth 1 -f html", "--depth does nothing for html: it needs --format dot or svg"},
      {"dump step.lks --color replica", "--color does nothing for text"},
      {"dump step.lks --sites -f dot", "--sites does nothing for dot: it needs --format text"},
      {"opt step.lks --print-after nothing", "'nothing' is neither"},
      {"opt step.lks --run-reproducer -p identity-removal", "leave out --passes"},
      {"dump step.lks --before step.lks --format dot", "needs --format html"},
      {"diff - -", "only one of the graphs"},
      {"run step.lks --feed x", "expected NAME=VALUE"},
      {"run step.lks --feed x=1 ", "expected a file that ends in .npy"},
      {"run step.lks --feed 'x=f32[2]{1.0, 2.0'", "1:"},
      {"run step.lks --feed x=- --feed rate=-", "only one value can come on standard input"},
      {"run - --feed x=-", "the graph comes on standard input already"},
      {"run step.lks --feed 'x=f32[]{1.0}' --feed 'x=f32[]{1.0}'", "'x' is fed twice"},
      {"run step.lks --steps 0", "--steps: expected a whole number from 1 to 1000000000, got '0'\n"},
      {"run step.lks --steps 1e3", "--steps: expected a whole number from 1"},
      {"run step.lks --steps ''", "--steps: expected a whole number from 1"},
      {"run step.lks --threads -1", "--threads: expected a whole number from 0 to 1000000000, got '-1'"},
      {"run step.lks --seed -1", "--seed: expected a whole number from 0 to 18446744073709551615, got '-1'"},
      {"profile step.lks --warmup -1", "--warmup: expected a whole number from 0"},
      {"profile step.lks --warmup 18446744073709551615", "--warmup: expected a whole number from 0"},
      {"profile step.lks --runs 0", "--runs: expected a whole number from 1"},
      {"profile step.lks --copy-rate 0", "--copy-rate: expected a whole number from 1"},
      {"profile step.lks --peak 1.5", "--peak: expected a whole number from 1"},
      {"dump step.lks -f dot --depth -1", "--depth: expected a whole number from 0"},
      {"run step.lks --trace -", "the results and the trace (--trace) would both go to standard output"},
      {"run step.lks -o - --variables -", "the results and the variables (--variables) would both go"},
      {"run step.lks -o y.npz --variables - --trace -",
       "the variables (--variables) and the trace (--trace)"},
      {"run step.lks -o a.npz --variables a.npz", "would both go to a.npz: name another file"},
      {"profile step.lks --trace -", "name a file for the trace"},
      {"diff step.lks step.lks --html -", "name a file for the page, or give --quiet"},
      {"run step.lks --shared x", "needs --strategy"},
      {"run step.lks -o results.txt", "must end in .npz or .npy"},
      {"run step.lks --strategy one-device --devices cpu:0,cpu:1", "takes one device, got 2"},
      {"run step.lks --strategy 'mirrored(devices=[cpu:0])' --devices cpu:0", "leave out one of them"},
      {"ops add --markdown", "leave out the name"},
      {"completion tcsh", "tcsh"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = lockstep(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("lockstep: "), HasSubstr(message))) << arguments;
  }
  EXPECT_THAT(lockstep("opt").err, HasSubstr("Run 'lockstep opt --help'"));
}

TEST_F(Tool, WhatFailsIsStatus1AndLeavesOutputsAsTheyWere) {
  write("broken.lks", "%y = relu(%x : f32[2]\n");
  write("wrong.lks", "%x = placeholder() : f32[2]\n%y = no_such_op(%x) : f32[2]\nreturn %y\n");
  write("empty.lkg", "");
  write("x.npy", "no array");
  write("kept", "as it was");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"opt missing.lks -o kept", "missing.lks"},
      {"opt broken.lks -o kept", "broken.lks"},
      {"opt empty.lkg -o kept", "DataLoss: graph file 'empty.lkg': it is empty"},
      {"opt - -o kept", "DataLoss: graph file 'standard input': it is empty"},
      {"opt wrong.lks -o kept", "NotFound: graph file 'wrong.lks': node 'y': no op named 'no_such_op'"},
      {"opt step.lks -p constnt-folding -o kept", "did you mean 'constant-folding'"},
      {"opt step.lks -p 'constant-folding(max=1)' -o kept", "max"},
      {"opt step.lks -p 'prove-sync(' -o kept", "at "},
      {"opt step.lks -o no/such/folder.lks", "no/such"},
      {"dump step.lks -p nonsense -f text -o kept", "nonsense"},
      {"run step.lks", "placeholders without a feed: x: f32[?,2], rate: f32[]"},
      {"run step.lks --feed x=x.npy", "x.npy: this is no whole .npy file"},
      {"run step.lks --feed 'x=f32[1,2]{*1.0}' --feed 'rate=f32[]{0.5}' --feed 'z=f32[]{1.0}'",
       "no placeholder 'z'; it has x: f32[?,2], rate: f32[]"},
      {"run step.lks --feed 'x=f32[1,3]{*1.0}' --feed 'rate=f32[]{0.5}'", "x"},
      {"run step.lks --strategy mirored",
       "no strategy named 'mirored' is registered; did you mean 'mirrored'"},
      {"ops no_such_op", "no_such_op"},
      {"passes no-such-pass", "no-such-pass"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = lockstep(arguments);
    EXPECT_EQ(outcome.status, 1) << arguments;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("lockstep: "), HasSubstr(message))) << arguments;
    EXPECT_EQ(contents(file("kept")), "as it was");
  }
  // A full disk shows only when the last byte is written.
  if (fs::exists("/dev/full")) {
    EXPECT_EQ(lockstep("opt step.lks", "", "/dev/full").status, 1);
    EXPECT_EQ(lockstep("opt step.lks -o /dev/full").status, 1);
    EXPECT_TRUE(fs::is_character_file("/dev/full"));
  }
}

TEST_F(Tool, OptRunsPassesFromStandardInputToStandardOutput) {
  const Outcome plain = lockstep("opt -", kStep);
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ(plain.out, kStep);
  const Outcome removed =
      lockstep("opt --passes=identity-removal --verify-each --time --print-after=changed -", kStep);
  EXPECT_EQ(removed.status, 0) << removed.err;
  EXPECT_THAT(removed.out, AllOf(Not(HasSubstr("identity")), HasSubstr("%squares = square(%x)")));
  EXPECT_THAT(removed.err,
              AllOf(HasSubstr("// after identity-removal: changed\n"), HasSubstr("%squares = square(%x)"),
                    HasSubstr("nodes before"), HasSubstr("all passes")));
  // A pass that changes nothing is printed where it is asked for by name, or where all are.
  EXPECT_THAT(lockstep("opt step.lks -p constant-folding --print-after changed").err, IsEmpty());
  EXPECT_THAT(lockstep("opt step.lks -p constant-folding --print-after constant-folding").err,
              AllOf(StartsWith("// after constant-folding"), HasSubstr(": unchanged\nvar @w")));
  EXPECT_THAT(lockstep("opt step.lks -p constant-folding,identity-removal --print-after all").err,
              AllOf(HasSubstr("// after constant-folding"), HasSubstr("// after identity-removal")));
}

TEST_F(Tool, OutputsGoWhereLinksLead) {
  write("there.lks", "old");
  fs::create_symlink("there.lks", file("link.lks"));
  ASSERT_EQ(lockstep("opt step.lks -o link.lks").status, 0);
  EXPECT_EQ(contents(file("there.lks")), kStep);
  EXPECT_TRUE(fs::is_symlink(file("link.lks")));
  // What standard output was sent to, also where that is a file; not a new file over the link in /dev.
  if (!fs::exists("/dev/stdout")) GTEST_SKIP() << "no /dev/stdout";
  EXPECT_EQ(lockstep("opt step.lks -o /dev/stdout").out, kStep);
  EXPECT_TRUE(fs::is_symlink("/dev/stdout"));
  write("added", "before\n");
  const Outcome added = lockstep("opt step.lks -o /dev/stdout", "", ">added");
  EXPECT_EQ(added.status, 0) << added.err;
  EXPECT_EQ(contents(file("added")), "before\n" + std::string(kStep));
}

// Whoever came first has read a part of it: the rest is the graph.
TEST_F(Tool, StandardInputIsReadFromWhereItStands) {
  write("rest", "first line\n" + std::string(kStep));
  const std::string line = "cd '" + file("").string() +
                           "' && { read -r skipped; '" LOCKSTEP_TOOL "' opt -; } < rest > .out 2> .err";
  EXPECT_EQ(std::system(("bash -c \"" + line + "\"").c_str()), 0) << contents(file(".err"));
  EXPECT_EQ(contents(file(".out")), kStep);
}

TEST_F(Tool, OptConvertsBetweenTheFormatsOfGraphs) {
  ASSERT_EQ(lockstep("opt step.lks -o step.json").status, 0);
  ASSERT_EQ(lockstep("opt step.json -o step.lkg").status, 0);
  EXPECT_EQ(lockstep("opt step.lkg").out, kStep);
  EXPECT_EQ(lockstep("opt step.lks --format json").out.substr(0, 1), "{");
  EXPECT_EQ(lockstep("opt - --format text", contents(file("step.lkg"))).out, kStep);
}

TEST_F(Tool, OptDistributesByTheNameOfAStrategy) {
  const Outcome outcome = lockstep(
      "opt step.lks --passes='identity-removal,enter-replicas(replicas=2,shared=[rate]),"
      "mirrored(devices=[cpu:0,cpu:1],optimize=false),dead-node-elimination' --verify-each");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("%replica_1/squares = square(%x/replica_1)"),
                                 HasSubstr("on \"cpu:1\""), HasSubstr("copy_of=@w")));
}

// Passes ask the topology, which may be of a machine that is not here.
TEST_F(Tool, OptTakesATopology) {
  write("placed.lks", R"(%x = placeholder() : f32[] on "gpu:0"
%y = neg(%x) : f32[] on "gpu:1"
return %y
)");
  write("machine.txt", "cpu:0\ngpu:0 gpu:1 memory=1  # one card\n");
  const auto copies = [this](const std::string& topology) {
    const Outcome outcome = lockstep("opt placed.lks --passes=insert-copies " + topology);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out.find("copy(") != std::string::npos;
  };
  EXPECT_TRUE(copies(""));
  EXPECT_TRUE(copies("--topology='cpu:0; gpu:0; gpu:1'"));
  EXPECT_FALSE(copies("--topology='gpu:0 gpu:1 memory=1'"));
  EXPECT_FALSE(copies("--topology machine.txt"));
  const Outcome absent = lockstep("opt placed.lks --topology 'cpu:0; gpu:0'");
  EXPECT_EQ(absent.status, 1);
  EXPECT_THAT(absent.err,
              HasSubstr("'y' is placed on 'gpu:1': there is no device gpu:1; there are cpu:0, gpu:0"));
  const Outcome wrong = lockstep("opt placed.lks --topology 'gpu:0 speed=1'");
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.err, HasSubstr("topology, line 1, 'gpu:0 speed=1': there is no fact 'speed'"));
}

TEST_F(Tool, AFailingPassLeavesAReproducer) {
  // prove-sync refuses replicas that assign what differs between them.
  write("drift.lks", R"(var @w : f32[]
%x = placeholder() : f32[]
%u = assign[variable=@w](%x) : f32[]
)");
  const std::string passes =
      "identity-removal,enter-replicas(replicas=2),replicate,prove-sync,dead-node-elimination";
  const Outcome failed = lockstep("opt drift.lks --passes='" + passes + "' --reproducer again.lks");
  EXPECT_EQ(failed.status, 1);
  EXPECT_THAT(failed.err,
              AllOf(HasSubstr("prove-sync"), HasSubstr("what the pass was given is in again.lks")));
  const std::string reproducer = contents(file("again.lks"));
  EXPECT_THAT(reproducer, AllOf(HasSubstr("\n// passes: prove-sync\n"), HasSubstr("x/replica_1"),
                                HasSubstr("lockstep opt --run-reproducer again.lks")));
  const Outcome again = lockstep("opt --run-reproducer again.lks");
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.err, AllOf(StartsWith("lockstep: "), HasSubstr("prove-sync: ")));
  EXPECT_THAT(again.err, Not(HasSubstr("--reproducer"))) << "this is one";
  // Nothing is written that was not asked for.
  const auto files = [this] {
    return std::distance(fs::directory_iterator(file("")), fs::directory_iterator());
  };
  const auto before = files();
  for (const char* none : {"", "--reproducer ''", "--reproducer="}) {
    const Outcome plain = lockstep("opt -p '" + passes + "' " + none + " drift.lks");
    EXPECT_EQ(plain.status, 1);
    EXPECT_THAT(plain.err, StartsWith("lockstep: add --reproducer FILE to keep the graph"));
  }
  EXPECT_EQ(files(), before);
  EXPECT_THAT(lockstep("opt -p identity-removal no.lks").err, Not(HasSubstr("--reproducer")))
      << "no pass failed";
  if (has_graphviz()) {  // a page of the passes up to that one, as far as they got
    const Outcome page = lockstep("dump drift.lks -p '" + passes + "' -o failed.html");
    EXPECT_EQ(page.status, 1);
    EXPECT_THAT(page.err,
                AllOf(HasSubstr("up to the one that failed is in failed.html\nlockstep: "),
                      HasSubstr("what all replicas should see whole is shared: enter-replicas(shared=[x])")));
    EXPECT_THAT(contents(file("failed.html")), HasSubstr("prove-sync (failed)"));
  }
  EXPECT_THAT(lockstep("opt --run-reproducer step.lks").err, HasSubstr("this is no reproducer"));
  // A reproducer that cannot be written does not hide the error.
  const Outcome unwritten =
      lockstep("opt drift.lks --passes='" + passes + "' --reproducer no/such/folder.lks");
  EXPECT_EQ(unwritten.status, 1);
  EXPECT_THAT(unwritten.err, AllOf(HasSubstr("the reproducer cannot be written"), HasSubstr("\nlockstep: "),
                                   HasSubstr("prove-sync: ")));
}

// What the end shows to be broken leaves one as well; its command knows the plugin, and survives a shell.
TEST_F(Tool, APassThatBreaksItsContractLeavesAReproducer) {
  write("a.lks", "%x = placeholder() : f32[2]\n%a = relu(%x) : f32[2]\n%b = relu(%a) : f32[2]\nreturn %b\n");
  const Outcome failed = lockstep(
      "opt a.lks -p 'constant-folding,loses-a-node' --print-after all --reproducer "
      "\"what's left.lks\" " +
      plugin("good"));
  EXPECT_EQ(failed.status, 1);
  EXPECT_THAT(failed.err, AllOf(HasSubstr("after loses-a-node: "), HasSubstr("is in what's left.lks")));
  const std::size_t first = failed.err.find("// after constant-folding");
  EXPECT_EQ(failed.err.find("// after constant-folding", first + 1), std::string::npos) << "once is enough";
  const std::string reproducer = contents(file("what's left.lks"));
  EXPECT_THAT(reproducer, AllOf(HasSubstr("\n// passes: loses-a-node\n"), HasSubstr("%b = relu(%a)")));
  // The command as it stands there, with this build's lockstep.
  const std::string mark = "//   lockstep ";
  const std::size_t begin = reproducer.find(mark) + mark.size();
  const Outcome again = lockstep(reproducer.substr(begin, reproducer.find('\n', begin) - begin));
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.err, AllOf(StartsWith("lockstep: "), HasSubstr("after loses-a-node: ")));
}

TEST_F(Tool, InputsAreReadWithinTheLimit) {
  write("id.lks", "%x = placeholder() : u8[?]\n%s = identity(%x) : u8[?]\nreturn %s\n");
  write("zeros.npz", write_npz({{"x", Tensor::zeros(DType::kU8, {80 << 20})}}, {.deflate = true}));
  ASSERT_LT(fs::file_size(file("zeros.npz")), 100'000U);
  for (const char* feed : {"zeros.npz", "x=zeros.npz", "x=-"}) {
    const auto run = [&](const std::string& limit) {
      return lockstep("run id.lks -o y.npy --feed " + (feed + limit), contents(file("zeros.npz")));
    };
    for (const char* small : {" --read-limit 1MiB", ""}) {
      const Outcome refused = run(small);
      EXPECT_EQ(refused.status, 1) << feed << small;
      EXPECT_THAT(refused.err,
                  AllOf(HasSubstr("bytes of memory, the limit for a file of"), HasSubstr("--read-limit")));
    }
    for (const char* large : {" --read-limit 100MiB", " --read-limit=unlimited"})
      EXPECT_EQ(run(large).status, 0) << feed << large;
  }
  fs::create_symlink("/dev/zero", file("endless.npy"));
  const Outcome device = lockstep("run id.lks --feed x=endless.npy");
  EXPECT_EQ(device.status, 1);
  EXPECT_THAT(device.err, AllOf(HasSubstr("67108864 bytes"), HasSubstr("--read-limit")));
  for (const char* size : {"-1", "1MB", "1.5GiB", "99999999TiB", "lots", "''"})
    EXPECT_EQ(lockstep(std::string("opt step.lks --read-limit ") + size).status, 2) << size;
}

// A name in a file must not speak to the terminal.
TEST_F(Tool, PrintsNoControlCharactersOfFiles) {
  write("bad.npz", write_npz({{"x\x1b]0;owned\x07\xc2\x9b\n\u202e", Tensor::scalar(1.0F)}}));
  const Outcome feeds =
      lockstep("run step.lks --feed 'x=f32[1,2]{*1.0}' --feed 'rate=f32[]{1.0}' --feed bad.npz");
  EXPECT_EQ(feeds.status, 1);
  write("bad.lks", "%\"a\x1b[2J\" = nothing\x1b[31m() : f32[2]\nreturn %\x9b\n");
  write("bad.json", "{\"lockstep_graph\": 1, \"origins\": [], \"graphs\": [], \"\x1b[2J\": 1}");
  std::vector<Outcome> outcomes = {feeds};
  const std::string spoken = "\"$(printf 'x\\033[2J')\"";  // as a shell makes it
  for (const std::string& line :
       {std::string("opt bad.lks"), std::string("dump bad.lks"), std::string("diff bad.lks step.lks"),
        std::string("opt bad.json"), "opt " + spoken, "opt step.lks -p " + spoken, spoken}) {
    outcomes.push_back(lockstep(line));
    EXPECT_NE(outcomes.back().status, 0) << line;
  }
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.err, Not(IsEmpty()));
    for (const char c : outcome.err + outcome.out)
      ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') << outcome.err;
  }
  EXPECT_THAT(feeds.err, AllOf(HasSubstr("x\\x1b]0;owned\\x07\\u009b"), HasSubstr("\\u202e")));
}

TEST_F(Tool, DiffSaysWhatChangedAndHowItCompared) {
  ASSERT_EQ(lockstep("opt step.lks -o before.json").status, 0);
  ASSERT_EQ(lockstep("opt before.json -p identity-removal -o after.json").status, 0);
  const Outcome same = lockstep("diff step.lks -", kStep);
  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_THAT(same.out,
              AllOf(HasSubstr("compared by name"), HasSubstr("0 added, 0 removed, 0 changed, 7 unchanged")));
  const Outcome differ = lockstep("diff before.json after.json");
  EXPECT_EQ(differ.status, 1);
  EXPECT_THAT(differ.out, AllOf(HasSubstr("compared by identity"), HasSubstr("- %copy = identity(%x)"),
                                HasSubstr("input 0: %copy -> %x")));
  EXPECT_THAT(lockstep("diff step.lks after.json").out, HasSubstr("compared by name"));
  const Outcome quiet = lockstep("diff -q before.json after.json");
  EXPECT_EQ(quiet.status, 1);
  EXPECT_THAT(quiet.out + quiet.err, IsEmpty());
  const Outcome trouble = lockstep("diff before.json missing.json");
  EXPECT_EQ(trouble.status, 2) << "not to be taken for a difference";
  EXPECT_THAT(trouble.err, HasSubstr("missing.json"));
}

TEST_F(Tool, DumpDrawsInEveryFormat) {
  EXPECT_EQ(lockstep("dump step.lks").out, kStep);
  EXPECT_THAT(lockstep("dump --sites step.lks").out, HasSubstr("// step.lks:"));
  EXPECT_THAT(lockstep("dump step.lks -f dot --color replica --depth 0").out,
              AllOf(HasSubstr("digraph"), HasSubstr("square")));
  const std::string explorer = lockstep("dump - -f json", kStep).out;
  EXPECT_THAT(explorer, AllOf(HasSubstr("\"graphs\""), HasSubstr("squares")));
  EXPECT_THAT(lockstep("opt -", explorer).err, HasSubstr("made for Model Explorer"));
  EXPECT_THAT(lockstep("dump step.lks -p identity-removal").out, Not(HasSubstr("identity")));
  if (!has_graphviz()) GTEST_SKIP() << "no Graphviz";
  ASSERT_EQ(lockstep("dump step.lks -o step.svg").status, 0);
  EXPECT_THAT(contents(file("step.svg")), HasSubstr("<svg"));
  ASSERT_EQ(lockstep("dump step.lks -p 'identity-removal,dead-node-elimination' -o passes.html").status, 0);
  EXPECT_THAT(contents(file("passes.html")), AllOf(HasSubstr("<html"), HasSubstr("identity-removal")));
  ASSERT_EQ(lockstep("opt step.lks -p identity-removal -o after.lks").status, 0);
  ASSERT_EQ(lockstep("dump after.lks --before step.lks -o pair.html").status, 0);
  EXPECT_THAT(contents(file("pair.html")), HasSubstr("<html"));
  EXPECT_EQ(lockstep("diff step.lks after.lks --html diff.html").status, 1);
  EXPECT_THAT(contents(file("diff.html")), HasSubstr("<html"));
  // Text files keep no identities: names tell that all is the same, and nothing remade.
  write("again.lks", kStep);
  EXPECT_EQ(lockstep("diff step.lks again.lks --html same.html").status, 0);
  EXPECT_THAT(contents(file("same.html")), AllOf(HasSubstr("\"b\":1"), Not(HasSubstr(",[1,4,"))));
}

TEST_F(Tool, RunFeedsTheGraphAndKeepsResults) {
  write("x.npy", write_npy(Tensor::from({3, 2}, {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F})));
  write("all.npz", write_npz({{"x", Tensor::from({1, 2}, {1.0F, 2.0F})}, {"rate", Tensor::scalar(0.5F)}}));
  const Outcome printed = lockstep("run step.lks --feed x=x.npy --feed 'rate=f32[]{0.5}'");
  EXPECT_EQ(printed.status, 0) << printed.err;
  EXPECT_EQ(printed.out, "y: f32[3] {5, 25, 61}\n");
  EXPECT_EQ(lockstep("run step.lks --feed all.npz").out, "y: f32[1] {5}\n");
  EXPECT_EQ(lockstep("run step.lks --feed x=x.npy --feed rate=all.npz -o y.npy").out, "");
  EXPECT_TRUE(read_npy(contents(file("y.npy"))).bit_equal(Tensor::from({3}, {5.0F, 25.0F, 61.0F})));
  const Outcome kept = lockstep(
      "run - --feed x=x.npy --feed rate=all.npz --steps 2 -o y.npz --variables w.npz --trace t.json", kStep);
  EXPECT_EQ(kept.status, 0) << kept.err;
  EXPECT_TRUE(read_npz(contents(file("y.npz"))).at("y").bit_equal(Tensor::from({3}, {5.0F, 25.0F, 61.0F})));
  EXPECT_TRUE(read_npz(contents(file("w.npz"))).at("w").bit_equal(Tensor::from({2}, {-8.0F, -11.0F})));
  EXPECT_THAT(contents(file("t.json")), AllOf(HasSubstr("traceEvents"), HasSubstr("squares")));
  for (const char* bytes : {"x.npy", "all.npz"}) {
    const Outcome fed = lockstep("run step.lks --feed x=- --feed 'rate=f32[]{0.5}'", contents(file(bytes)));
    EXPECT_THAT(fed.out, StartsWith("y: f32[")) << bytes << fed.err;
  }
  EXPECT_THAT(lockstep("run step.lks --feed x=-", "neither").err,
              HasSubstr("standard input: this is no whole"));
  // One thing can go to standard output.
  const std::map<std::string, Tensor> variables =
      read_npz(lockstep("run step.lks --feed all.npz -o y.npz --variables -").out);
  EXPECT_TRUE(variables.at("w").bit_equal(Tensor::from({2}, {0.5F, 0.0F})));
  EXPECT_THAT(lockstep("run step.lks --feed all.npz -o y.npz --trace -").out, StartsWith("{"));
  // A result has the name of its node, also where another one is returned twice.
  const std::map<std::string, Tensor> named =
      read_npz(lockstep("run - --feed 'x=f32[1]{2.0}' -o -",
                        "%x = placeholder() : f32[1]\n%y = neg(%x) : f32[1]\n%y_1 = square(%x) : f32[1]\n"
                        "return %y, %y, %y_1\n")
                   .out);
  ASSERT_EQ(named.size(), 3U);
  EXPECT_TRUE(named.at("y_1").bit_equal(Tensor::from({1}, {4.0F})));
  EXPECT_TRUE(named.at("y_2").bit_equal(named.at("y")));
  // What cannot be written is known before anything runs.
  const Outcome two =
      lockstep("run - --feed 'x=f32[2]{*1.0}' -o y.npy --variables v.npz",
               "%x = placeholder() : f32[2]\n%a = relu(%x) : f32[2]\n%b = abs(%x) : f32[2]\nreturn %a, %b\n");
  EXPECT_EQ(two.status, 1);
  EXPECT_THAT(two.err, HasSubstr("an .npy file holds one tensor, and there are 2"));
  EXPECT_FALSE(fs::exists(file("v.npz")));
}

TEST_F(Tool, RunSplitsFeedsOverReplicasAndTrainsAsOneDevice) {
  write("x.npy", write_npy(Tensor::from({3, 2}, {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F})));
  const std::string feeds = " --feed x=x.npy --feed 'rate=f32[]{0.5}' ";
  const Outcome outcome = lockstep("run step.lks --devices cpu:0,cpu:1 --strategy mirrored" + feeds +
                                   "-o y.npz --variables w.npz");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::map<std::string, Tensor> results = read_npz(contents(file("y.npz")));
  ASSERT_EQ(results.size(), 2U);
  EXPECT_TRUE(results.at("y").bit_equal(Tensor::from({2}, {5.0F, 25.0F}))) << "two rows, then one";
  EXPECT_TRUE(results.at("y/replica_1").bit_equal(Tensor::from({1}, {61.0F})));
  const std::map<std::string, Tensor> variables = read_npz(contents(file("w.npz")));
  EXPECT_EQ(variables.size(), 1U) << "one value, whatever the replicas";
  EXPECT_TRUE(variables.at("w").bit_equal(Tensor::from({2}, {-3.5F, -5.0F})));
  ASSERT_EQ(lockstep("run step.lks --devices cpu:0,cpu:1 --strategy 'mirrored(share_mirrored=false)'" +
                     feeds + "--variables w.npz")
                .status,
            0);
  EXPECT_EQ(read_npz(contents(file("w.npz"))).size(), 1U) << "also where each has a copy";
  EXPECT_EQ(
      lockstep("run step.lks --devices cpu:0,cpu:1 --strategy 'mirrored(cross_device_ops=ring)'" + feeds).out,
      "y: per replica {0: f32[2] {5, 25}, 1: f32[1] {61}}\n");
  // More replicas than rows: the last ones run on none.
  EXPECT_THAT(lockstep("run step.lks --devices cpu:0,cpu:1,cpu:2,cpu:3 --strategy mirrored" + feeds).out,
              HasSubstr("3: f32[0] {}"));
  EXPECT_EQ(lockstep("run step.lks --devices cpu:0 --strategy one-device" + feeds).out,
            "y: f32[3] {5, 25, 61}\n");
  EXPECT_THAT(lockstep("run step.lks --devices cpu:0,cpu:1 --strategy mirrored --shared x" + feeds).out,
              HasSubstr("y: f32[3] {5, 25, 61}"));
  EXPECT_THAT(lockstep("run step.lks --devices cpu:0,cpu:1 --strategy mirrored --shared z" + feeds).err,
              HasSubstr("no placeholder 'z'"));
  EXPECT_THAT(lockstep("run step.lks --devices cpu:0,cpu:1 --strategy mirrored -o y.npy" + feeds).err,
              HasSubstr("an .npy file holds one tensor, and there are 2"));
  // Rows that belong together are not torn apart.
  write("rows.lks",
        "%x = placeholder() : f32[?,2]\n%y = placeholder() : f32[?,2]\n%z = sub(%x, %y) : f32[?,2]\nreturn "
        "%z\n");
  const std::string unlike =
      "run rows.lks --devices cpu:0,cpu:1 --strategy mirrored --feed x=x.npy --feed 'y=f32[1,2]{*1.0}'";
  const Outcome torn = lockstep(unlike);
  EXPECT_EQ(torn.status, 1);
  EXPECT_THAT(torn.err, HasSubstr("'x' has 3 rows and 'y' 1: with --strategy feeds are split row by row"));
  EXPECT_THAT(lockstep(unlike + " --shared y").out, HasSubstr("1: f32[1,2] "));
  // A node that is called as the value of a replica is another result.
  write("names.lks",
        "%x = placeholder() : f32[?]\n%y = relu(%x) : f32[?]\n%\"y/replica_1\" = neg(%x) : f32[?]\n"
        "return %y, %\"y/replica_1\"\n");
  ASSERT_EQ(lockstep("run names.lks --devices cpu:0,cpu:1 --strategy mirrored --feed 'x=f32[2]{1.0, 2.0}' -o "
                     "names.npz")
                .status,
            0);
  const std::map<std::string, Tensor> named = read_npz(contents(file("names.npz")));
  EXPECT_EQ(named.size(), 4U);
  EXPECT_TRUE(named.at("y/replica_1").bit_equal(Tensor::from({1}, {-1.0F})));
  EXPECT_TRUE(named.at("y/replica_1_1").bit_equal(Tensor::from({1}, {2.0F})));
  // What opt distributed runs by itself, fed replica by replica.
  ASSERT_EQ(lockstep("opt step.lks -p "
                     "'enter-replicas(replicas=2,shared=[rate]),mirrored(devices=[cpu:0,cpu:1])' -o two.lks")
                .status,
            0);
  EXPECT_THAT(lockstep("run two.lks --feed 'x=f32[1,2]{*1.0}' --feed 'x/replica_1=f32[1,2]{*2.0}' --feed "
                       "'rate=f32[]{0.5}'")
                  .out,
              AllOf(HasSubstr("f32[1] {2}"), HasSubstr("f32[1] {8}")));
}

TEST_F(Tool, ProfileSaysWhereTimeGoes) {
  const Outcome outcome = lockstep(
      "profile step.lks --runs 3 --warmup 1 --feed 'x=f32[8,2]{*1.0}' --feed 'rate=f32[]{0.5}' --trace "
      "t.json");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("seconds a run: least"), HasSubstr("(3 runs"), HasSubstr("plan: "),
                                 HasSubstr("square")));
  EXPECT_THAT(contents(file("t.json")), AllOf(HasSubstr("traceEvents"), HasSubstr("\"bytes_moved\": 128")));
}

TEST_F(Tool, ProfileComparesNodesWithWhatTheDeviceReaches) {
  write("product.lks", R"(%x = placeholder() : f32[?,64]
%w = constant[value=f32[64,64]{*0.5}]() : f32[64,64]
%y = matmul(%x, %w) : f32[?,64]
%z = relu(%y) : f32[?,64]
return %z
)");
  const std::string line = "profile product.lks --runs 2 --feed 'x=f32[32,64]{*1.0}' ";
  const Outcome measured = lockstep(line);
  EXPECT_EQ(measured.status, 0) << measured.err;
  EXPECT_THAT(measured.out,
              ::testing::ContainsRegex("\ncpu:0 reaches [0-9.]+ GB/s in a copy, [0-9.]+ GFLOP/s in a "
                                       "product of f32\n"));
  EXPECT_THAT(measured.out, HasSubstr("GB/s  of copy    GFLOP/s  of peak\n"));
  EXPECT_THAT(measured.out, Not(HasSubstr("time by node")));
  const Outcome known = lockstep(line + "--no-measure --copy-rate 12 --peak 345 --nodes 1");
  EXPECT_EQ(known.status, 0) << known.err;
  EXPECT_THAT(known.out,
              AllOf(HasSubstr("\ncpu:0 reaches 12.0 GB/s in a copy, 345.0 GFLOP/s in a product of f32\n"),
                    HasSubstr("\ntime by node"), HasSubstr("  ... and 1 more\n")));
  const Outcome bare = lockstep(line + "--no-measure");
  EXPECT_EQ(bare.status, 0) << bare.err;
  EXPECT_THAT(bare.out, AllOf(HasSubstr("GFLOP/s\n"), Not(HasSubstr("of peak")), Not(HasSubstr("reaches"))));
  // 32 x 64 by 64 x 64, twice.
  EXPECT_THAT(bare.out, HasSubstr("65.54 kB"));
}

TEST_F(Tool, InfoNamesVersionsAndDevices) {
  const Outcome outcome = lockstep("info");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr(std::string(kVersion)), HasSubstr("Taskflow"), HasSubstr("cpu:0"),
                                 HasSubstr("\nNCCL "), HasSubstr("\ncuDNN "),
                                 HasSubstr("central-storage, mirrored, one-device")));
  const Outcome described =
      lockstep("info --topology='cpu:0; gpu:0 gpu:1 memory=3 bytes=1GiB kernels=card collectives=nccl'");
  EXPECT_EQ(described.status, 0);
  EXPECT_THAT(described.out, AllOf(HasSubstr("\ngpu:1              3     -   1073741824  card        nccl\n"),
                                   HasSubstr("\ncpu:0              0     -            -  ")));
  EXPECT_THAT(lockstep("info --topology='gpu:x'").err, HasSubstr("gpu:x"));
}

TEST_F(Tool, LaunchStartsWorkersAndPassesOnWhatTheySay) {
  const Outcome two = lockstep(R"(launch -n 2 -- sh -c 'echo "$TF_CONFIG"; echo trouble >&2; printf end')");
  EXPECT_EQ(two.status, 0) << two.err;
  for (const char* worker : {"0", "1"}) {
    const std::string name = std::string("[worker:") + worker + "] ";
    EXPECT_THAT(two.out,
                AllOf(HasSubstr(name + "{\"cluster\": {\"worker\": [\"127.0.0.1:"), HasSubstr(name + "end\n"),
                      HasSubstr(std::string("\"index\": ") + worker + "}}\n")));
    EXPECT_THAT(two.err, HasSubstr(name + "trouble\n"));
  }
}

TEST_F(Tool, LaunchStartsAllAgainIfOneWantsIt) {
  const std::string line = R"(launch -n 2 --restarts 2 -- sh -c 'echo at $LOCKSTEP_GENERATION; )";
  const Outcome third = lockstep(line + R"(test $LOCKSTEP_GENERATION = 2 || exit 42')");
  EXPECT_EQ(third.status, 0) << third.err;
  EXPECT_THAT(third.out, AllOf(HasSubstr("[worker:1] at 0"), HasSubstr("[worker:1] at 1"),
                               HasSubstr("[worker:0] at 2")));
  EXPECT_THAT(third.err, HasSubstr("starting all workers again, 2 of 2"));
  const Outcome never = lockstep(line + "exit 42'");
  EXPECT_EQ(never.status, 42);
  EXPECT_THAT(never.out, Not(HasSubstr("at 3")));
  // A failure is none that starting again would mend, and it counts more than those that were told of it.
  const Outcome failed =
      lockstep(R"(launch -n 2 --restarts 2 -- sh -c 'case "$TF_CONFIG" in *"index\": 1"*) exit 3;; esac')");
  EXPECT_EQ(failed.status, 3);
  EXPECT_THAT(failed.err, HasSubstr("worker:1 ended with status 3"));
  const Outcome killed = lockstep(R"(launch -- sh -c 'kill -9 $$')");
  EXPECT_EQ(killed.status, 128 + 9);
  EXPECT_THAT(killed.err, HasSubstr("worker:0 was ended by signal 9"));
  const Outcome nothing = lockstep("launch -n 1 -- ./there_is_no_such_program");
  EXPECT_EQ(nothing.status, 127);
  EXPECT_THAT(nothing.err, HasSubstr("cannot run './there_is_no_such_program'"));
}

TEST_F(Tool, StatusOfNobodyIsAnError) {
  const Outcome outcome = lockstep("status 127.0.0.1:1");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("127.0.0.1:1"));
}

TEST_F(Tool, TheReferencePagesAreWhatTheToolWrites) {
  for (const std::string command : {"ops", "passes"}) {
    const Outcome outcome = lockstep(command + " --markdown");
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out, contents(fs::path(LOCKSTEP_DOCS_DIR) / ("reference_" + command + ".md")))
        << "write it anew: lockstep " << command << " --markdown > docs/reference_" << command << ".md";
  }
  EXPECT_THAT(lockstep("ops").out, AllOf(HasSubstr("\nmatmul "), HasSubstr("\nsgd ")));
  EXPECT_THAT(lockstep("ops sgd").out,
              AllOf(StartsWith("sgd: "), HasSubstr("updates a variable"), HasSubstr("writes_variable")));
  EXPECT_THAT(lockstep("passes").out, AllOf(HasSubstr("\nprove-sync "), HasSubstr("\nmirrored ")));
  EXPECT_THAT(lockstep("passes bucket-all-reduce").out,
              AllOf(HasSubstr("(pass)"), HasSubstr("bytes_per_pack")));
  EXPECT_THAT(lockstep("passes mirrored").out, HasSubstr("\n  num_gpus_per_worker  int ")) << "columns";
  EXPECT_THAT(lockstep("passes central-storage").out,
              AllOf(HasSubstr("(strategy)"), HasSubstr("parameter_device")));
}

TEST_F(Tool, PluginsBringOpsPassesAndStrategies) {
  write("relus.lks", R"(%x = placeholder() : f32[2]
%a = relu(%x) : f32[2]
%b = relu(%a) : f32[2]
%c = thrice(%b) : f32[2]
return %c
)");
  EXPECT_EQ(lockstep("opt relus.lks").status, 1) << "nobody knows thrice";
  const Outcome outcome =
      lockstep("opt relus.lks --passes=remove-double-relu --verify-each " + plugin("good"));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("%c = thrice(%a)"), Not(HasSubstr("%b"))));
  EXPECT_EQ(
      lockstep("run relus.lks --feed 'x=f32[2]{1.0, -1.0}' " + plugin("good") + " " + plugin("good")).out,
      "c: f32[2] {3, 0}\n")
      << "loading it again changes nothing";
  EXPECT_THAT(lockstep("run relus.lks --feed 'x=f32[2]{*2.0}' --strategy plain --devices cpu:0,cpu:1 " +
                       plugin("good"))
                  .err,
              HasSubstr("f32[1]"))
      << "two elements, one for each replica, do not fit a placeholder of two";
  EXPECT_THAT(lockstep("passes " + plugin("good")).out,
              AllOf(HasSubstr("remove-double-relu"), HasSubstr("plain")));
  EXPECT_THAT(lockstep("ops thrice " + plugin("good")).out, HasSubstr("three times its input"));
}

TEST_F(Tool, PluginsThatDoNotFitAreRefusedWithTheReason) {
  write("text.so", "this is no library");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {plugin("no_entry"), "is no Lockstep plugin"},
      {plugin("other_format"), "has format 2, this program reads format 1"},
      {plugin("other_build"), "was built for Lockstep 0.0.7 with libstdc++, this is Lockstep"},
      {plugin("other_registry"), "brings a Lockstep of its own"},
      {plugin("failing"), "'constant-folding' is registered already"},
      {"--load text.so", "cannot be loaded"},
      {"--load missing.so", "there is no plugin 'missing.so'"},
  };
  for (const auto& [load, message] : cases) {
    const Outcome outcome = lockstep("opt step.lks " + load);
    EXPECT_EQ(outcome.status, 1) << load;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

}  // namespace
}  // namespace lockstep
