// Tests: io/drawings/dot.cpp, io/drawings/drawing.cpp, io/drawings/svg.cpp
#include "lockstep/io/drawings/dot.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lockstep/core/error.h"
#include "lockstep/io/drawings/svg.h"
#include "lockstep/io/files/files.h"
#include "support/drawn_graphs.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Dot, MarksWhatThereIs) {
  const Graph graph = parse(testing::kTwoReplicas);
  const std::string dot = to_dot(graph, {.title = "two \"replicas\""});
  EXPECT_THAT(dot, HasSubstr("label=\"two \\\"replicas\\\"\""));
  EXPECT_THAT(dot, HasSubstr("label=\"a\\nsquare  x 2\""));   // name, op, replicas
  EXPECT_THAT(dot, HasSubstr("shape=hexagon"));               // the collective
  EXPECT_THAT(dot, HasSubstr("[label=\"  f32[?,4] \"]"));     // a data edge
  EXPECT_EQ(count(dot, "style=dashed, arrowhead=open"), 1U);  // both replicas' control edges are one
  EXPECT_THAT(dot, HasSubstr("peripheries=2"));               // the result
  EXPECT_THAT(dot, HasSubstr("cpu:0, cpu:1"));                // the legend
  EXPECT_THAT(dot, HasSubstr("joins replicas"));
  EXPECT_THAT(dot, Not(HasSubstr("replica_1/")));

  const std::string apart = to_dot(
      graph,
      {.view = {.fold_replicas = false, .max_children = 0}, .colours = ColourBy::kReplica, .legend = false});
  EXPECT_THAT(apart, HasSubstr("subgraph cluster_"));  // replica_1
  EXPECT_THAT(apart, Not(HasSubstr("legend")));
}

TEST(Dot, EdgesOfScopesSayWhatFlows) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[1]
      %a/p = neg(%x) : f32[1]
      %a/q = concat[axis=0](%x, %x) : f32[2]
      %a/r = relu(%x) : f32[1]
      %b/s = concat[axis=0](%a/p, %a/q, %a/r) : f32[4]
      %b/t = neg(%b/s) : f32[4]
      return %b/t
  )");
  EXPECT_THAT(to_dot(graph, {.max_depth = 0}), HasSubstr("[label=\"  2 of f32[1] \\n  f32[2] \"]"));
}

TEST(Dot, EverySetOfDevicesHasAColourOfItsOwn) {
  std::string text = "%x = placeholder() : f32[]\n", results;
  for (int i = 0; i < 30; ++i) {
    text += str("%n", i, " = neg(%x) : f32[] on \"cpu:", i, "\"\n");
    results += str(i == 0 ? "" : ", ", "%n", i);
  }
  const Graph graph = parse(text + "return " + results + "\n");
  const std::string dot = to_dot(graph);
  std::set<std::string> fills;
  const std::string key = "fillcolor=\"";
  for (std::size_t at = dot.find(key); at != std::string::npos; at = dot.find(key, at + 1))
    fills.insert(dot.substr(at + key.size(), 7));
  EXPECT_EQ(fills.size(), 31U) << "30 devices, and the feed, which is on none";
  EXPECT_LT(dot.find("cpu:2<"), dot.find("cpu:10<")) << "in the legend";

  // Sets that begin alike are not the same.
  std::string sets = "%x = placeholder() : f32[]\n";
  for (const int last : {3, 4}) {
    for (int r = 0; r < 4; ++r) {
      const std::string scope = r == 0 ? "" : str("replica_", r, "/");
      sets += str("%\"", scope, "n", last, "\" = neg(%x) : f32[] on \"cpu:", r < 3 ? r : last, "\" replica ",
                  r, "\n");
    }
  }
  const Graph unlike = parse(sets);
  const std::string two = to_dot(unlike);
  EXPECT_THAT(two, HasSubstr("cpu:0, cpu:1, cpu:2, cpu:3"));
  EXPECT_THAT(two, HasSubstr("cpu:0, cpu:1, cpu:2, cpu:4"));
}

TEST(Dot, IsTheSameForEqualGraphs) {
  const Graph graph = testing::layered_graph(6, 2);
  const Graph copy = graph;
  EXPECT_EQ(to_dot(graph), to_dot(copy));
  EXPECT_EQ(to_dot(graph), to_dot(testing::layered_graph(6, 2)));  // other identities
}

TEST(Dot, FoldsLayersAndStopsAtADepth) {
  const Graph graph = testing::layered_graph(12, 2);
  const std::string all = to_dot(graph);
  EXPECT_THAT(all, HasSubstr("layer_0 ... layer_11 x 11, one behind the other"));
  EXPECT_EQ(count(all, "relu  x 2"), 0U);  // the name says it
  EXPECT_EQ(count(all, "\"relu\\nx 2\""), 1U);
  const std::string shallow = to_dot(graph, {.max_depth = 0});
  EXPECT_THAT(shallow, HasSubstr("label=\"model\\n72 nodes\", shape=folder"));
  EXPECT_THAT(shallow, Not(HasSubstr("subgraph")));
  // A scope in layers that are drawn once has what one of them has.
  std::string text = "%x = placeholder() : f32[]\n", before = "%x";
  for (int i = 0; i < 4; ++i) {
    for (const char* const name : {"inner/a", "inner/b", "c"}) {
      const std::string now = str("%layer_", i, "/", name);
      text += str(now, " = neg(", before, ") : f32[]\n");
      before = now;
    }
  }
  const Graph nested = parse(text);
  EXPECT_THAT(to_dot(nested, {.max_depth = 1}),
              AllOf(HasSubstr("layer_0 ... layer_3 x 4"), HasSubstr("label=\"inner\\n2 nodes x 4\"")));
}

TEST(Dot, IsDrawnByGraphvizWithoutWarnings) {
  if (const Decision there = has_graphviz(); !there) GTEST_SKIP() << there.reason();
  const Graph awkward = parse(R"(
      %"a \"b\" <i> & \\N" = placeholder() : f32[]
      %"caf\xc3\xa9/\xff" = neg(%"a \"b\" <i> & \\N") : f32[] on "cpu:0"
      return %"caf\xc3\xa9/\xff"
  )");
  for (const Graph& graph : {parse(testing::kTwoReplicas), testing::layered_graph(7, 3), awkward, Graph()}) {
    for (const std::size_t depth : {0U, 9U}) {
      std::string warnings;
      const std::string svg = to_svg(graph, {.max_depth = depth}, {.warnings = &warnings});
      EXPECT_EQ(warnings, "") << to_dot(graph);
      EXPECT_THAT(svg, HasSubstr("</svg>"));
    }
  }
}

TEST(Svg, SaysWhatToInstall) {
  try {
    to_svg(parse(testing::kTwoReplicas), {}, {.program = "no-such-graphviz"});
    FAIL() << "there is no such program";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.message(), HasSubstr("no-such-graphviz"));
    EXPECT_THAT(error.message(), HasSubstr("install Graphviz"));
  }
}

TEST(Svg, EndsAProgramThatDoesNotFinishOrFails) {
  const TemporaryFolder folder;
  const auto program = [&](const char* name, const char* script) {
    const std::filesystem::path path = folder / name;
    write_file_whole(path, script);
    ::chmod(path.c_str(), 0700);
    return path.string();
  };
  const std::string hangs = program("hangs", "#!/bin/sh\nexec sleep 600\n");
  try {
    run_graphviz(std::string(1 << 20, 'x'), "svg",
                 {.program = hangs, .limit = std::chrono::milliseconds(50)});
    FAIL() << "it never ends";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
  }
  const std::string fails = program("fails", "#!/bin/sh\necho 'syntax error' >&2\nexit 3\n");
  try {
    run_graphviz(std::string(1 << 20, 'x'), "svg", {.program = fails});  // nobody reads what is written
    FAIL() << "it fails";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(error.message(), HasSubstr("status 3: syntax error"));
  }
}

}  // namespace
}  // namespace lockstep
