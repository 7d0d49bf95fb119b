// Tests: graph/check/verifier.cpp, graph/check/verifier_rules.cpp
// What verifies, and how violations are told. Graphs that break rules are in tests/invalid.
#include "lockstep/graph/check/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "support/random_text_graph.h"

namespace lockstep {
namespace {

using lockstep::testing::Dice;
using lockstep::testing::random_any_graph;
using lockstep::testing::random_valid_graph;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> broken_rules(std::string_view text) {
  std::vector<std::string> rules;
  for (const Violation& violation : find_violations(parse(text))) rules.push_back(violation.rule);
  return rules;
}

TEST(Verifier, AcceptsAnEmptyGraph) {
  verify(Graph());
  EXPECT_TRUE(find_violations(Graph()).empty());
}

TEST(Verifier, AcceptsWhatTheBuilderMakes) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Graph graph = random_valid_graph(seed, 25);
    SCOPED_TRACE(print(graph));
    EXPECT_NO_THROW(verify(graph));
    EXPECT_NO_THROW(verify(parse(print(graph))));
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(Verifier, AcceptsReplicatedRegions) {
  verify(parse(R"(
    var @w : f32[2]
    %s = placeholder() : f32[2]
    %a0 = placeholder() : f32[3,2]
    %a1 = placeholder() : f32[1,2]
    %b0 = placeholder() : i32[]
    %b1 = placeholder() : i32[]
    %r = replicated[replicas=2, shared=1](%s, %a0, %a1, %b0, %b1) : f32[?,2], f32[?,2], i32[], i32[] {
      region {
        %s = placeholder() : f32[2]
        %a = placeholder() : f32[?,2]
        %b = placeholder() : i32[]
        %w = read[variable=@w]() : f32[2]
        %y = add(%a, %s) : f32[?,2]
        %z = add(%y, %w) : f32[?,2]
        return %z, %b
      }
    }
    return %r:1, %r:3
  )"));
}

TEST(Verifier, AcceptsALambda) {
  GraphBuilder b;
  b.call("work", [] {});
  verify(b.finish());
}

TEST(Verifier, SurvivesAnyGraph) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const Graph graph = random_any_graph(dice, 1 + dice.below(20));
    const std::vector<Violation> violations = find_violations(graph);
    if (violations.empty()) {
      EXPECT_NO_THROW(verify(graph));
    } else {
      EXPECT_THROW(verify(graph), VerifyError);
    }
  }
}

TEST(Verifier, CollectsEverythingInTheOrderOfTheRules) {
  EXPECT_THAT(broken_rules(R"(
                %x = placeholder() : f32[4]
                %a = relu(%x) : i32[4] on "abacus"
                %b = relu(%x, %x) : f32[4]
                %c = unheard_of(%x:1)
                %d = relu(%x) : f32[5]
              )"),
              ElementsAre("known-ops", "live-inputs", "arity", "dtypes", "shapes", "device-known"));
}

TEST(Verifier, ThrowsForTheFirstRuleThatIsBroken) {
  const Graph graph = parse(
      "%x = placeholder() : f32[4]\n"
      "%a = relu(%x) : i32[4]\n"
      "%b = relu(%x, %x) : f32[4] on \"cpu:0\"\n",
      "model.lks");
  try {
    verify(graph);
    FAIL();
  } catch (const VerifyError& error) {
    EXPECT_EQ(error.rule(), "arity");
    EXPECT_EQ(error.message(), "graph rule 'arity' broken: 'b': relu takes 1 input, got 2");
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.place().node, "b");
    EXPECT_EQ(error.place().op, "relu");
    EXPECT_EQ(error.place().device, "cpu:0");
    EXPECT_EQ(error.place().file, "model.lks");
    EXPECT_EQ(error.place().line, 3U);
    EXPECT_THAT(error.what(), HasSubstr("model.lks:3"));
  }
}

TEST(Verifier, TellsTheRegionsAroundANode) {
  const std::vector<Violation> violations = find_violations(parse(R"(
    %x = placeholder() : f32[]
    %loop = while_loop[carried=1](%x) : f32[] {
      region {
        %a = placeholder() : f32[]
        %c = constant[value=bool[]{false}]() : bool[]
        return %c
      }
      region {
        %a = placeholder() : f32[]
        %y = relu(%a) : f32[1]
        return %a
      }
    }
  )",
                                                                  "m.lks"));
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].rule, "shapes");
  EXPECT_EQ(violations[0].message, "in loop/body: output 0 of 'y' is stated as f32[1]; relu gives f32[]");
  EXPECT_EQ(violations[0].place.node, "loop/body: y");
  EXPECT_EQ(violations[0].place.line, 11U);
}

TEST(Verifier, OneBrokenNodeIsReportedOnce) {
  EXPECT_THAT(broken_rules("%x = placeholder() : f32[4]\n%y = add(%x:1) : i32[7], f32[]\n"),
              ElementsAre("live-inputs", "arity"));
}

TEST(Verifier, AUsersRuleMayThrowAnything) {
  static const OpDef& op = [] {
    OpDef def;
    def.name = "verifier_test_throws";
    def.infer = [](InferContext&) { throw std::runtime_error("out of cheese"); };
    return std::cref(OpRegistry::global().add(std::move(def)));
  }();
  const std::vector<Violation> violations = find_violations(parse("%x = verifier_test_throws()"));
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].rule, "infer");
  EXPECT_EQ(violations[0].message, "'x': " + op.name + ": out of cheese");
}

TEST(Verifier, LongCyclesAreShortened) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += str("%n", i, " = relu(%n", (i + 99) % 100, ") : f32[]\n");
  const std::vector<Violation> violations = find_violations(parse(text));
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_THAT(violations[0].message, HasSubstr("n0 -> n1 -> "));
  EXPECT_THAT(violations[0].message, HasSubstr("n19 -> ... (79 more) -> n99 -> n0"));
}

// --- variable order

TEST(VerifierVariableOrder, ADataPathOrders) {
  verify(parse(R"(
    var @w : f32[4]
    %r = read[variable=@w]() : f32[4]
    %a = relu(%r) : f32[4]
    %b = add(%a, %a) : f32[4]
    %u = assign[variable=@w](%b) : f32[4]
    %c = relu(%u) : f32[4]
    %s = read[variable=@w]() : f32[4] after(%c)
    return %s
  )"));
}

TEST(VerifierVariableOrder, ReadsNeedNoOrderAmongThemselves) {
  verify(parse(R"(
    var @w : f32[4]
    %r = read[variable=@w]() : f32[4]
    %s = read[variable=@w]() : f32[4]
    %t = add(%r, %s) : f32[4]
    %u = assign_add[variable=@w](%t) : f32[4]
  )"));
}

TEST(VerifierVariableOrder, OneReadThatIsLeftOutIsFound) {
  std::string text = "var @w : f32[4]\n%x = placeholder() : f32[4]\n";
  std::string after;
  for (int i = 0; i < 50; ++i) {
    text += str("%r", i, " = read[variable=@w]() : f32[4]\n");
    if (i != 17) after += str(after.empty() ? "" : ", ", "%r", i);
  }
  text += "%u = assign[variable=@w](%x) : f32[4] after(" + after + ")\n";
  const std::vector<Violation> violations = find_violations(parse(text));
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_THAT(violations[0].message, HasSubstr("'r17' and 'u' both use the variable '@w'"));
}

TEST(VerifierVariableOrder, LinearHoweverManyWritesNeedASearch) {
  // Each write is reached through a chain that starts at all writes before it: searching for each would be
  // quadratic.
  constexpr int kVariables = 300;
  std::string text = "%x = placeholder() : f32[]\n%n0 = relu(%x) : f32[]\n";
  for (int i = 0; i < kVariables; ++i)
    text += str("var @v", i, " : f32[]\n%r", i, " = read[variable=@v", i, "]() : f32[]\n");
  int n = 0;
  for (int i = 0; i < kVariables; ++i, ++n)
    text += str("%n", n + 1, " = add(%n", n, ", %r", i, ") : f32[]\n");
  for (int i = 0; i < 2000; ++i, ++n) text += str("%n", n + 1, " = relu(%n", n, ") : f32[]\n");
  for (int i = 0; i < kVariables; ++i)
    text += str("%u", i, " = assign[variable=@v", i, "](%n", n, ") : f32[]\n");
  const Graph graph = parse(text);
  // Within the budget paths are found; beyond it only direct edges count. Either way it ends soon.
  const std::vector<Violation> violations = find_violations(graph);
  EXPECT_LT(violations.size(), static_cast<std::size_t>(kVariables));
  // With direct edges all is well, whatever the budget.
  Graph direct = graph;
  for (int i = 0; i < kVariables; ++i) direct.add_control(direct.find(str("u", i)), direct.find(str("r", i)));
  EXPECT_NO_THROW(verify(direct));
}

TEST(VerifierVariableOrder, RegionsCountAsWhatTheyHold) {
  constexpr std::string_view kText = R"(
    var @w : f32[4]
    %p = placeholder() : bool[]
    %x = placeholder() : f32[4]
    %r = read[variable=@w]() : f32[4]
    %choice = cond(%p, %x) after(%r) {
      region {
        %x = placeholder() : f32[4]
        %a = assign[variable=@w](%x) : f32[4]
      }
      region {
        %x = placeholder() : f32[4]
        %b = assign[variable=@w](%x) : f32[4]
      }
    }
    %s = read[variable=@w]() : f32[4] after(%choice)
  )";
  verify(parse(kText));
  Graph loose = parse(kText);
  loose.set_controls(loose.find("s"), {});
  EXPECT_THROW(verify(loose), VerifyError);
}

}  // namespace
}  // namespace lockstep
