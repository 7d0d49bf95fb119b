// Tests: graph/check/verifier_rules.cpp, graph/check/verifier_rules_regions.cpp,
//        graph/check/verifier_rules_variables.cpp
// tests/invalid - every rule of the verifier has graphs that break it, and says so in the words we expect.
//
// A case is a file <rule>.lks or <rule>.<variant>.lks whose first line is "// expect: <part of the message>".
// What text cannot express (nodes that are gone, a broken name index, parameters that are no placeholders) is
// built here.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/runtime.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/text/text.h"
#include "support/data_dir.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

std::string rule_of(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.substr(0, name.find('.'));
}

std::vector<std::string> case_files() {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(testing::data_dir() / "invalid")) {
    if (entry.path().extension() == ".lks") files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  return files;
}

// The graph breaks this rule, and no rule before it, with this message.
void expect_broken(const Graph& graph, const std::string& rule, const std::string& message,
                   const Topology* topology = nullptr) {
  try {
    verify(graph, topology);
    ADD_FAILURE() << "the graph verifies";
  } catch (const VerifyError& error) {
    EXPECT_EQ(error.rule(), rule);
    EXPECT_THAT(error.message(), HasSubstr("graph rule '" + rule + "' broken: "));
    EXPECT_THAT(error.message(), HasSubstr(message));
    const std::vector<Violation> all = find_violations(graph, topology);
    ASSERT_FALSE(all.empty());
    EXPECT_EQ(all[0].rule, rule);
    EXPECT_EQ("graph rule '" + rule + "' broken: " + all[0].message, error.message());
    EXPECT_EQ(all[0].place.node, error.place().node);
  }
}

// --- cases that are files

class InvalidGraph : public ::testing::TestWithParam<std::string> {};

TEST_P(InvalidGraph, BreaksTheRuleItIsNamedAfter) {
  const std::string text = read_file(GetParam());
  constexpr std::string_view kMark = "// expect: ";
  ASSERT_TRUE(text.starts_with(kMark)) << "the first line must say what is expected";
  const std::string expected = text.substr(kMark.size(), text.find('\n') - kMark.size());
  expect_broken(parse(text, GetParam()), rule_of(GetParam()), expected);
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = fs::path(info.param).stem().string();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Files, InvalidGraph, ::testing::ValuesIn(case_files()), test_name);

// --- cases that text cannot express

constexpr const char* kSmall = R"(
  %x = placeholder() : f32[4]
  %y = relu(%x) : f32[4]
  %z = relu(%y) : f32[4] after(%x)
  return %z
)";

// Names as the graph never lets them become.
void overwrite_name(Graph& graph, const char* name, const char* other) {
  const_cast<std::string&>(graph.node(graph.find(name)).name()) = other;  // NOLINT: that is the point
}

TEST(InvalidGraphs, TwoNodesOfOneName) {
  Graph graph = parse(kSmall);
  overwrite_name(graph, "z", "y");
  expect_broken(graph, "unique-names", "two nodes are named 'y'");
}

TEST(InvalidGraphs, ANodeThatIsNotFoundByItsName) {
  Graph graph = parse(kSmall);
  overwrite_name(graph, "z", "a quite different name");
  expect_broken(graph, "unique-names", "the graph does not find its node 'a quite different name' by name");
}

TEST(InvalidGraphs, ANodeWithoutAName) {
  Graph graph = parse(kSmall);
  overwrite_name(graph, "z", "");
  expect_broken(graph, "unique-names", "a node has an empty name");
}

TEST(InvalidGraphs, AnErasedInput) {
  Graph graph = parse(kSmall);
  graph.erase(graph.find("y"));
  expect_broken(graph, "live-inputs", "input 0 of 'z' is a node that is not in this graph");
}

TEST(InvalidGraphs, AnInputOfAnotherGraph) {
  Graph graph = parse(kSmall);
  graph.set_input(graph.find("y"), 0, {NodeId(std::size_t{4000000000}), 0});
  expect_broken(graph, "live-inputs", "input 0 of 'y' is a node that is not in this graph");
  graph.set_input(graph.find("y"), 0, ValueId());
  expect_broken(graph, "live-inputs", "input 0 of 'y' is a node that is not in this graph");
}

TEST(InvalidGraphs, AnErasedControlInput) {
  Graph graph = parse(
      "%a = constant[value=f32[]{1.0}]() : f32[]\n%b = relu(%b2) : f32[] after(%a)\n"
      "%b2 = constant[value=f32[]{1.0}]() : f32[]\n");
  graph.erase(graph.find("a"));
  expect_broken(graph, "control-inputs", "'b' runs after a node that is not in this graph");
}

TEST(InvalidGraphs, AnErasedResult) {
  Graph graph = parse(kSmall);
  graph.erase(graph.find("z"));
  expect_broken(graph, "results", "result 0 is a node that is not in this graph");
}

TEST(InvalidGraphs, AnErasedParameter) {
  Graph graph = parse("%x = placeholder() : f32[4]\n");
  graph.erase(graph.find("x"));
  expect_broken(graph, "parameters", "a parameter is a node that is not in this graph");
}

TEST(InvalidGraphs, AParameterTwice) {
  Graph graph = parse(kSmall);
  graph.add_parameter(graph.find("x"));
  expect_broken(graph, "parameters", "'x' is a parameter twice");
}

TEST(InvalidGraphs, AParameterThatIsNoPlaceholder) {
  Graph graph = parse(kSmall);
  graph.add_parameter(graph.find("y"));
  expect_broken(graph, "parameters", "the parameter 'y' is of op 'relu'; parameters are placeholders");
}

TEST(InvalidGraphs, APlaceholderThatIsNoParameter) {
  Graph graph = parse(kSmall);
  graph.set_parameters({});
  expect_broken(graph, "parameters", "the placeholder 'x' is not among the graph's parameters");
}

TEST(InvalidGraphs, ADeviceNameThatIsNotCanonical) {
  Graph graph = parse(kSmall);
  graph.set_device(graph.find("y"), "/device:CPU:0");
  expect_broken(graph, "device-known",
                "'y' is placed on '/device:CPU:0', which is not the canonical name; it is 'cpu:0'");
}

TEST(InvalidGraphs, ADeviceThatTheRuntimeDoesNotHave) {
  Graph graph = parse(kSmall);
  graph.set_device(graph.find("y"), "cpu:7");
  verify(graph);
  const Runtime runtime({.threads = 1, .cpu_devices = 2});
  expect_broken(graph, "device-known", "'y' is placed on 'cpu:7'", &runtime.topology());
  graph.set_device(graph.find("y"), "cpu:1");
  verify(graph, &runtime.topology());
}

TEST(InvalidGraphs, AVariableOnADeviceThatDoesNotExist) {
  Graph graph = parse("var @w : f32[] [device=\"gpu:1\"]\n%x = placeholder() : f32[]\nreturn %x\n");
  verify(graph);
  const Topology topology = Topology::parse("cpu:0; gpu:0");
  expect_broken(graph, "device-known",
                "variable 'w' is declared on 'gpu:1': there is no device gpu:1; there are cpu:0, gpu:0",
                &topology);
  const Topology larger = Topology::parse("cpu:0; gpu:0 gpu:1");
  verify(graph, &larger);
  VariableDecl decl = *graph.find_variable("w");
  decl.device = "/device:GPU:1";
  graph.redeclare_variable(decl);
  expect_broken(graph, "device-known", "which is not the canonical name; it is 'gpu:1'");
}

// --- completeness

TEST(InvalidGraphs, CoverEveryRule) {
  std::set<std::string> covered = {"unique-names"};  // broken above, by hand
  for (const std::string& file : case_files()) covered.insert(rule_of(file));
  const std::vector<std::string> rules = verifier_rules();
  EXPECT_EQ(covered, std::set<std::string>(rules.begin(), rules.end()));
}

TEST(InvalidGraphs, TheDocumentNamesEveryRuleInOrder) {
  const std::string document = read_file(testing::data_dir() / "../docs/graph_rules.md");
  std::size_t at = 0;
  for (const std::string& rule : verifier_rules()) {
    const std::size_t found = document.find("\n### " + rule + "\n", at);
    ASSERT_NE(found, std::string::npos)
        << "docs/graph_rules.md has no section '### " << rule << "' in its place";
    at = found;
  }
}

}  // namespace
}  // namespace lockstep
