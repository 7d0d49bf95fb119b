// Tests: graph/text/text_lexer.cpp, graph/text/text_parse.cpp, graph/text/text_print.cpp,
//        graph/text/text_values.cpp
#include "lockstep/graph/text/text.h"

#include <cmath>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/check/structure.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "support/random_text_graph.h"

namespace lockstep {
namespace {

using lockstep::testing::Dice;
using lockstep::testing::random_any_graph;
using lockstep::testing::random_valid_graph;
using ::testing::HasSubstr;

// What print wrote reads back as the same graph and prints the same again.
void expect_round_trip(const Graph& graph) {
  const std::string text = print(graph);
  SCOPED_TRACE(text);
  const Graph back = parse(text);
  EXPECT_EQ(structural_difference(graph, back), "");
  EXPECT_EQ(print(back), text);
}

// The text is what print writes.
void expect_canonical(std::string_view text) { EXPECT_EQ(print(parse(text)), text); }

std::string parse_failure(std::string_view text) {
  try {
    parse(text);
  } catch (const ParseError& error) {
    return error.message();
  }
  return "it parses";
}

// The value of attribute `a` of a node written with it.
AttributeValue parse_attribute(const std::string& text) {
  const Graph graph = parse("%x = op[a=" + text + "]()");
  return graph.node(graph.find("x")).attributes().at(0).value;
}

// --- every construct

TEST(Text, PrintsWhatTheHeaderShows) {
  expect_canonical(
      "var @w : f32[4] = f32[4]{*0.0}\n"
      "%x = placeholder() : f32[4]\n"
      "%r = read[variable=@w]() : f32[4]\n"
      "%y = add(%x, %r) : f32[4] on \"cpu:1\" after(%r)\n"
      "return %y\n");
}

TEST(Text, AnEmptyGraphIsEmptyText) {
  expect_canonical("");
  EXPECT_EQ(parse("  \n\n // nothing\n\t\r\n").size(), 0U);
}

TEST(Text, VariablesPrintOnlyWhatIsNotDefault) {
  expect_canonical("var @plain : f64[]\n");
  expect_canonical("var @w : i32[2] = i32[2]{1, -2} [trainable=false]\n");
  expect_canonical("var @w : f32[2,0] [synchronization=on_read, aggregation=only_first_replica]\n");
  expect_canonical(
      "var @w : f32[2] [device=\"cpu:0\"]\n"
      "var @w/replica_1 : f32[2] [device=\"cpu:1\", copy_of=@w, replica=1, shares=true]\n");
  expect_canonical("%a = op() : f32[] on \"cpu:0\" replica 3\n%b = op(%a) replica 0 after(%a)\n");
  expect_canonical("%a = op() : f32[] gradient\n%b = op(%a) replica 0 gradient after(%a)\n");
  expect_canonical(
      "var @\"odd name\" : bool[1] = bool[1]{true} [trainable=false, synchronization=none, "
      "aggregation=sum]\n");
  const Graph graph = parse("var @w : f32[4] [aggregation=mean, synchronization=on_write]");
  const VariableDecl* w = graph.find_variable("w");
  ASSERT_NE(w, nullptr);
  EXPECT_FALSE(w->initial.defined());
  EXPECT_TRUE(w->trainable);
  EXPECT_EQ(w->synchronization, Synchronization::kOnWrite);
  EXPECT_EQ(w->aggregation, Aggregation::kMean);
}

// Passes ask who made a node: what gradients() made is marked, and is so after reading.
TEST(Text, GradientsAreMarked) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::scalar(2.F));
  b.result(gradients(square(b.read(w)) * 3.F, {w})[0].dense());
  const Graph graph = b.finish();
  const Graph read = parse(print(graph));
  int marked = 0;
  for (const Node& node : graph.nodes()) {
    const bool made = graph.text(node.provenance().made_by) == "gradients";
    const Node& other = read.node(read.find(node.name()));
    EXPECT_EQ(read.text(other.provenance().made_by), made ? "gradients" : "") << node.name();
    marked += made ? 1 : 0;
  }
  EXPECT_GT(marked, 0);
}

TEST(Text, AttributesOfEveryType) {
  expect_canonical(
      "%x = op[a=true, b=-7, c=1.5, d=\"text\", e=bf16, f=<2,?,3>, g=<>, h=@w, i=[1, 2], j=[1.0, inf], "
      "k=[\"a\", \"\"], l=ints[], m=floats[], n=strings[], o=undefined, p=@\"odd one\", \"q r\"=false]()\n");
  EXPECT_EQ(type_of(parse_attribute("7")), AttributeType::kInt);
  EXPECT_EQ(type_of(parse_attribute("7.0")), AttributeType::kFloat);
  EXPECT_EQ(type_of(parse_attribute("7e0")), AttributeType::kFloat);
  EXPECT_EQ(type_of(parse_attribute("f32")), AttributeType::kDType);
  EXPECT_EQ(type_of(parse_attribute("f32[]{1.0}")), AttributeType::kTensor);
  EXPECT_EQ(type_of(parse_attribute("<>")), AttributeType::kShape);
  EXPECT_EQ(type_of(parse_attribute("floats[]")), AttributeType::kFloats);
  EXPECT_FALSE(std::get<Tensor>(parse_attribute("undefined")).defined());
  EXPECT_EQ(std::get<std::int64_t>(parse_attribute("-9223372036854775808")),
            std::numeric_limits<std::int64_t>::min());
}

TEST(Text, AttributesAreSortedByName) {
  EXPECT_EQ(print(parse("%x = op[b=1, a=2]()")), "%x = op[a=2, b=1]()\n");
}

TEST(Text, TensorsAreListsOrSplats) {
  EXPECT_EQ(print(Tensor::from<float>({2, 2}, {1, 2, 3, 4})), "f32[2,2]{1.0, 2.0, 3.0, 4.0}");
  EXPECT_EQ(print(Tensor::zeros({1000})), "f32[1000]{*0.0}");
  EXPECT_EQ(print(Tensor::from<float>({2}, {0.0F, -0.0F})), "f32[2]{0.0, -0.0}");
  EXPECT_EQ(print(Tensor::scalar(2.5)), "f64[]{2.5}");
  EXPECT_EQ(print(Tensor::scalar(true)), "bool[]{true}");
  EXPECT_EQ(print(Tensor::from<std::uint8_t>({3}, {1, 2, 255})), "u8[3]{1, 2, 255}");
  EXPECT_EQ(print(Tensor::zeros(DType::kI64, {0, 3})), "i64[0,3]{}");
  EXPECT_EQ(print(Tensor()), "undefined");
  const Tensor splat = std::get<Tensor>(parse_attribute("f16[3,2]{*-1.5}"));
  EXPECT_TRUE(splat.bit_equal(Tensor::full(DType::kF16, {3, 2}, -1.5)));
  EXPECT_TRUE(
      std::get<Tensor>(parse_attribute("f32[2]{1, -2}")).bit_equal(Tensor::from<float>({2}, {1, -2})));
}

TEST(Text, FloatsReadBackBitByBit) {
  EXPECT_EQ(print(1.0), "1.0");
  EXPECT_EQ(print(-0.0), "-0.0");
  EXPECT_EQ(print(0.1), "0.1");
  EXPECT_EQ(print(1e300), "1e+300");
  EXPECT_EQ(print(100000.0), "1e+05");
  EXPECT_EQ(print(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(print(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(print(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(print(std::bit_cast<double>(0x7ff8000000000001U)), "nan(0x7ff8000000000001)");
  EXPECT_EQ(print(std::bit_cast<double>(0xfff0000000000123U)), "nan(0xfff0000000000123)");
  Dice dice(7);
  for (int i = 0; i < 20000; ++i) {
    const double value = lockstep::testing::random_double(dice);
    const std::string text = print(value);
    ASSERT_TRUE(same_value(value, parse_attribute(text))) << text;
  }
}

TEST(Text, EveryHalfReadsBackBitByBit) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Tensor all = Tensor::empty(dtype, {1 << 16});
    auto* bits = static_cast<std::uint16_t*>(all.raw());
    for (std::size_t i = 0; i < (1U << 16U); ++i) bits[i] = static_cast<std::uint16_t>(i);
    EXPECT_TRUE(std::get<Tensor>(parse_attribute(print(all))).bit_equal(all));
  }
  EXPECT_EQ(print(Tensor::full(DType::kF16, {}, 0.1)), "f16[]{0.1}");
  EXPECT_EQ(print(Tensor::full(DType::kBF16, {}, 3.14159)), "bf16[]{3.14}");
  EXPECT_EQ(print(Tensor::full(DType::kF16, {}, 65504)), "f16[]{65500.0}");
}

TEST(Text, SinglesReadBackBitByBit) {
  Dice dice(3);
  Tensor some = Tensor::empty(DType::kF32, {1 << 16});
  auto* bits = static_cast<std::uint32_t*>(some.raw());
  for (std::size_t i = 0; i < (1U << 16U); ++i) bits[i] = static_cast<std::uint32_t>(dice.bits());
  EXPECT_TRUE(std::get<Tensor>(parse_attribute(print(some))).bit_equal(some));
  EXPECT_EQ(print(std::get<Tensor>(parse_attribute("f32[2]{nan, nan(0xffc00000)}"))),
            "f32[2]{nan, nan(0xffc00000)}");
}

TEST(Text, NamesAreQuotedWhereTheyMustBe) {
  const auto printed = [](std::string name) {
    Graph graph;
    NodeInit init;
    const std::shared_ptr<const OpDef> op = OpRegistry::global().find_or_unknown("op");
    init.op = op.get();
    init.name = std::move(name);
    graph.add(std::move(init));
    expect_round_trip(graph);
    return print(graph);
  };
  EXPECT_EQ(printed("layer_1/mat-mul.x"), "%layer_1/mat-mul.x = op()\n");
  EXPECT_EQ(printed("_x"), "%_x = op()\n");
  EXPECT_EQ(printed("1x"), "%\"1x\" = op()\n");
  EXPECT_EQ(printed("odd name\n"), "%\"odd name\\n\" = op()\n");
  EXPECT_EQ(printed("a\"b\\c\td\r"), "%\"a\\\"b\\\\c\\td\\r\" = op()\n");
  EXPECT_EQ(printed("größe 日本"), "%\"größe 日本\" = op()\n");
  EXPECT_EQ(printed(std::string("\0\x1f\x7f", 3)), "%\"\\x00\\x1f\\x7f\" = op()\n");
  EXPECT_EQ(printed("\xff"), "%\"\\xff\" = op()\n");
  EXPECT_EQ(printed("\xc0\xaf"), "%\"\\xc0\\xaf\" = op()\n");           // overlong
  EXPECT_EQ(printed("\xed\xa0\x80"), "%\"\\xed\\xa0\\x80\" = op()\n");  // surrogate
  EXPECT_EQ(printed("\xf4\x90\x80\x80"), "%\"\\xf4\\x90\\x80\\x80\" = op()\n");
  EXPECT_EQ(printed("\xe2\x82"), "%\"\\xe2\\x82\" = op()\n");  // cut short
}

TEST(Text, RegionsNest) {
  expect_canonical(
      "%p = placeholder() : bool[]\n"
      "%x = placeholder() : f32[4]\n"
      "%y = cond(%p, %x) : f32[4] {\n"
      "  region {\n"
      "    %a = placeholder() : f32[4]\n"
      "    %loop = while_loop[carried=1](%a) : f32[4] on \"cpu:0\" {\n"
      "      region {\n"
      "        %b = placeholder() : f32[4]\n"
      "        %c = constant[value=bool[]{false}]() : bool[]\n"
      "        return %c\n"
      "      }\n"
      "      region {\n"
      "        %b = placeholder() : f32[4]\n"
      "        return %b\n"
      "      }\n"
      "    }\n"
      "    return %loop\n"
      "  }\n"
      "  region {\n"
      "    %a = placeholder() : f32[4]\n"
      "    return %a\n"
      "  }\n"
      "}\n"
      "return %y\n");
  EXPECT_EQ(print(parse("%x = op() { region { } region { return } }")),
            "%x = op() {\n  region {\n  }\n  region {\n  }\n}\n");
  EXPECT_EQ(print(parse("%x = op() {}")), "%x = op()\n");
}

TEST(Text, OutputsBeyondTheFirstAreNumbered) {
  expect_canonical(
      "%a = split() : f32[2], i32[], bool[?]\n"
      "%b = op(%a, %a:1, %a:2)\n"
      "return %a:1, %a\n");
}

// --- reading

TEST(Text, LinesMayEndInsideBrackets) {
  const Graph graph = parse(
      "%a = op[\n  x=[1,\n 2], // two\n  y=f32[2]{1.0,\n 2.0}\n](\n) : f32[\n2]\n"
      "%b = op(%a,\n  %a) after(\n%a)");
  EXPECT_EQ(print(graph), "%a = op[x=[1, 2], y=f32[2]{1.0, 2.0}]() : f32[2]\n%b = op(%a, %a) after(%a)\n");
}

TEST(Text, ReferencesMayComeBeforeTheirNodes) {
  const Graph graph = parse(
      "%c = op(%b:1, %a) after(%a, %d, %b)\n"
      "%b = op(%a) : f32[], f32[]\n"
      "%a = op() : f32[]\n"
      "%d = op()\n"
      "return %b, %c\n");
  EXPECT_EQ(print(graph),
            "%a = op() : f32[]\n"
            "%b = op(%a) : f32[], f32[]\n"
            "%d = op()\n"
            "%c = op(%b:1, %a) after(%a, %d, %b)\n"
            "return %b, %c\n");
}

TEST(Text, CyclesParse) {
  const Graph graph = parse("%a = op(%b) : f32[]\n%b = op(%a) : f32[]\n%c = op(%c) : f32[]\n");
  std::vector<NodeId> cycle;
  graph.topological_order(&cycle);
  EXPECT_FALSE(cycle.empty());
  EXPECT_TRUE(same_structure(graph, parse(print(graph))));
}

TEST(Text, PlaceholdersAreParametersInTheOrderOfTheText) {
  const Graph graph = parse("%b = placeholder() : f32[]\n%s = op()\n%a = placeholder() : f32[]\n");
  ASSERT_EQ(graph.parameters().size(), 2U);
  EXPECT_EQ(graph.node(graph.parameters()[0]).name(), "b");
  EXPECT_EQ(graph.node(graph.parameters()[1]).name(), "a");
  EXPECT_EQ(print(graph), "%b = placeholder() : f32[]\n%a = placeholder() : f32[]\n%s = op()\n");
  Graph swapped = graph;
  swapped.set_parameters({graph.parameters()[1], graph.parameters()[0]});
  expect_round_trip(swapped);
}

TEST(Text, SitesAreLinesOfTheSource) {
  const Graph graph =
      parse("\n// comment\n%a = op()\n\n%b = op() {\n  region {\n    %c = op()\n  }\n}\n", "step.lks");
  const Node& a = graph.node(graph.find("a"));
  EXPECT_STREQ(a.site().file, "step.lks");
  EXPECT_EQ(a.site().line, 3U);
  const Node& b = graph.node(graph.find("b"));
  EXPECT_EQ(b.site().line, 5U);
  EXPECT_EQ(b.regions()[0].node(b.regions()[0].find("c")).site().line, 7U);
}

TEST(Text, DevicesBecomeCanonicalWhereTheyAreDevices) {
  EXPECT_EQ(print(parse("%a = op() on \"/device:GPU:1\"\n%b = op() on \"nowhere\"\n")),
            "%a = op() on \"gpu:1\"\n%b = op() on \"nowhere\"\n");
}

TEST(Text, UnknownOpsAreKept) {
  const Graph graph = parse("%a = nobody.registered_this(%a) : f32[]");
  EXPECT_FALSE(graph.node(graph.find("a")).op().known);
}

TEST(Text, LambdasPrintAsOpaqueAndDoNotParse) {
  GraphBuilder b;
  b.call("work", [] {});
  const std::string text = print(b.finish());
  EXPECT_THAT(text, HasSubstr("%work = call[effects=16, function=<lambda>]()"));
  const std::string failure = parse_failure(text);
  EXPECT_THAT(failure, HasSubstr("node 'work' holds C++ code"));
  EXPECT_THAT(failure, HasSubstr("build this graph in C++, or register"));
}

// --- comments

TEST(Text, SitesAndProvenanceAreComments) {
  Graph graph = parse("%a = op()\n%b = op() {\n  region {\n    %c = op()\n  }\n}\n%d = op()\n", "model.cpp");
  const NodeId d = graph.find("d");
  Provenance made;
  made.identity = Graph::new_identity();
  made.origin = graph.node(graph.find("a")).provenance().identity;
  made.made_by = graph.intern("replicate");
  made.why = graph.intern("one\nper replica");
  made.replica = 1;
  graph.set_provenance(d, made);
  EXPECT_EQ(print(graph, {.sites = true, .provenance = true}),
            "%a = op()  // model.cpp:1\n"
            "%b = op() {  // model.cpp:2\n"
            "  region {\n"
            "    %c = op()  // model.cpp:4\n"
            "  }\n"
            "}\n"
            "%d = op() replica 1  // model.cpp:7; from a, by replicate: one\\nper replica\n");
  EXPECT_TRUE(same_structure(graph, parse(print(graph, {.sites = true, .provenance = true}))));
  made.origin = 0;
  graph.set_provenance(d, made);
  EXPECT_THAT(print(graph, {.sites = false, .provenance = true}),
              HasSubstr("%d = op() replica 1  // from #0, by replicate"));
}

TEST(Text, NodesThatAreGoneAreVisible) {
  Graph graph = parse("%a = op() : f32[]\n%b = op(%a) after(%a)\nreturn %a\n");
  graph.erase(graph.find("a"));
  EXPECT_EQ(print(graph), "%b = op(%?0) after(%?0)\nreturn %?0\n");
}

// --- errors

struct BadText {
  const char* text;
  const char* message;
};
class TextErrors : public ::testing::TestWithParam<BadText> {};

TEST_P(TextErrors, SaysWhereAndWhatWasExpected) {
  EXPECT_EQ(parse_failure(GetParam().text), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, TextErrors,
    ::testing::Values(
        BadText{"x", "1:1: expected a statement ('%name = ...', 'var @name ...' or 'return ...'), got 'x'"},
        BadText{"%x = add(%x -> %y)", "1:13: expected ',' or ')', got '-'"},
        BadText{"%x = op(\n%y = op()", "2:4: expected ',' or ')', got '='"},
        BadText{"%x = op() %y = op()", "1:11: expected the end of the line, got '%'"},
        BadText{"%x = op() :", "1:12: expected a type such as f32[2,?], got the end of the text"},
        BadText{"%x = op() : f33[2]", "1:13: expected a type such as f32[2,?], got 'f33'"},
        BadText{"%x = op() : f32", "1:16: expected '[' and dimensions, got the end of the text"},
        BadText{"%x = op() : f32[-1]", "1:17: a dimension must not be negative, got -1"},
        BadText{"%x = op() : f32[a]", "1:17: expected a dimension (a number or '?'), got 'a'"},
        BadText{"%x = op() : f32[99999999999999999999]",
                "1:17: 99999999999999999999 is out of range for a dimension"},
        BadText{"%x = op() on cpu", "1:14: expected a device name in quotes, got 'cpu'"},
        BadText{"%x = op() after()", "1:17: expected '%' and the name of a node, got ')'"},
        BadText{"%x op()", "1:4: expected '=', got 'op'"},
        BadText{"%x =\n", "1:5: expected the name of an op, got the end of the line"},
        BadText{"%x = op", "1:8: expected '[' and attributes, or '(' and inputs, got the end of the text"},
        BadText{"%x = op[a=1]", "1:13: expected '(' and inputs, got the end of the text"},
        BadText{"% = op()", "1:3: expected the node's name, got '='"},
        BadText{"%\"\" = op()", "1:2: a node's name must not be empty"},
        BadText{"%x = op()\n  %x = op()", "2:4: a node named 'x' exists already"},
        BadText{"%x = op(%y)\n", "1:10: there is no node named 'y' in this graph"},
        BadText{"%x = op() after(%nobody)\n", "1:18: there is no node named 'nobody' in this graph"},
        BadText{"return %y", "1:9: there is no node named 'y' in this graph"},
        BadText{"%x = op(%x:a)", "1:12: expected the number of an output, got 'a'"},
        BadText{"%x = op(%x:4294967296)", "1:12: 4294967296 is out of range for the number of an output"},
        BadText{"return\n%x = op()",
                "2:1: 'return' is the last statement of its graph; nothing may follow it"},
        BadText{"return %x,\n", "1:11: expected '%' and the name of a value, got the end of the line"},
        BadText{"}", "1:1: expected a statement or the end of the text, got '}'"},
        BadText{"%x = op() {\n  %y = op()\n}", "2:3: expected 'region' or '}', got '%'"},
        BadText{"%x = op() {", "1:12: expected 'region' or '}', got the end of the text"},
        BadText{"%x = op() { region {\n", "2:1: expected a statement or '}', got the end of the text"},
        BadText{"%x = op() { region {\n%y = op(%x) } }", "2:10: there is no node named 'x' in this graph"},
        BadText{"%\"abc = op()", "1:2: this string has no closing '\"' on its line"},
        BadText{"%\"abc\n\" = op()", "1:2: this string has no closing '\"' on its line"},
        BadText{"%\"a\\q\" = op()", "1:5: expected one of \\\" \\\\ \\n \\t \\r \\xHH in a string"},
        BadText{"%\"\\x4\" = op()", "1:5: expected two hexadecimal digits after '\\x'"},
        BadText{"%x = op[a=1, a=2]()", "1:8: attribute 'a' is given twice"},
        BadText{"%x = op[a]()", "1:10: expected '=' and the attribute's value, got ']'"},
        BadText{"%x = op[a=what]()", "1:11: expected an attribute's value, got 'what'"},
        BadText{"%x = op[a=9223372036854775808]()",
                "1:11: 9223372036854775808 is out of range for an int attribute (64 bits)"},
        BadText{"%x = op[a=1x]()", "1:11: expected an integer for an int attribute (64 bits), got '1x'"},
        BadText{"%x = op[a=1e999]()", "1:11: 1e999 is out of range for f64"},
        BadText{"%x = op[a=1.5.5]()", "1:11: expected a number, got '1.5.5'"},
        BadText{"%x = op[a=[]]()", "1:11: an empty list is written ints[], floats[] or strings[]"},
        BadText{"%x = op[a=ints[1]]()",
                "1:16: expected ']' (a list with elements is written without its type), got '1'"},
        BadText{"%x = op[a=[1, 2.0]]()", "1:15: expected an integer like the elements before"},
        BadText{"%x = op[a=[1, nan]]()", "1:15: expected an integer like the elements before"},
        BadText{"%x = op[a=[1.0, 2]]()", "1:17: expected a number with '.' or 'e' like the elements before"},
        BadText{"%x = op[a=[\"s\", 2]]()", "1:17: expected a string like the elements before, got '2'"},
        BadText{"%x = op[a=[true]]()", "1:12: expected a number or a string, got 'true'"},
        BadText{"%x = op[a=<1]()", "1:13: expected ',' or '>', got ']'"},
        BadText{"%x = op[a=-]()", "1:11: expected an attribute's value, got '-'"},
        BadText{"%x = op[a=nan(0x1)]()", "1:15: expected the bits of a NaN of f64 as 0x... (hexadecimal)"},
        BadText{"%x = op[a=f32[1]{nan(0x7ff8000000000001)}]()",
                "1:22: expected the bits of a NaN of f32 as 0x... (hexadecimal)"},
        BadText{"%x = op[a=f32[2]]()", "1:17: expected '{' and the tensor's elements, got ']'"},
        BadText{"%x = op[a=f32[2]{1.0}]()", "1:11: f32[2] has 2 elements; 1 are given"},
        BadText{"%x = op[a=f32[1]{1.0, 2.0}]()", "1:23: f32[1] has 1 element; more are given"},
        BadText{"%x = op[a=f32[?]{1.0}]()", "1:11: a tensor's dimensions must be numbers, not '?'"},
        BadText{"%x = op[a=u8[1]{256}]()", "1:17: 256 is out of range for u8"},
        BadText{"%x = op[a=u8[1]{-1}]()", "1:17: expected an integer for u8, got '-1'"},
        BadText{"%x = op[a=i32[1]{1.0}]()", "1:18: expected an integer for i32, got '1.0'"},
        BadText{"%x = op[a=i32[1]{nan}]()", "1:18: expected an element of type i32, got 'nan'"},
        BadText{"%x = op[a=bool[1]{1}]()", "1:19: expected true or false, got '1'"},
        BadText{"%x = op[a=f16[1]{1e6}]()", "1:18: 1e6 is out of range for f16"},
        BadText{"%x = op[a=f16[1]{1e-20}]()", "1:18: 1e-20 is out of range for f16"},
        BadText{"%x = op[a=f32[1000000000]{1.0}]()",
                "1:11: f32[1000000000] has 1000000000 elements; the text is too short to hold them"},
        BadText{"%x = op[a=f32[4294967296]{*1.0}]()",
                "1:11: reading these 34 bytes would take more than 67109000 bytes of memory: 17179869440 "
                "more for a "
                "tensor; if the file is trusted, raise the limit: ReadLimits::base_bytes in C++, "
                "--read-limit of the "
                "lockstep command"},
        BadText{
            "%x = op[f=<lambda>]()",
            "1:11: node 'x' holds C++ code (<lambda>), which text cannot carry: build this graph in C++, or "
            "register the code as an op and use that"},
        BadText{"var w : f32[]", "1:5: expected '@' and the variable's name, got 'w'"},
        BadText{"var @w f32[]", "1:8: expected ':' and the variable's type, got 'f32'"},
        BadText{"var @w : f32[?]", "1:6: variable 'w' needs a known shape, got f32[?]"},
        BadText{"var @w : f32[]\nvar @w : f32[]", "2:6: variable 'w' is declared already"},
        BadText{"var @w : f32[2] = f32[3]{*0.0}",
                "1:6: variable 'w' is declared f32[2] but its initial value is f32[3]"},
        BadText{"var @w : f32[2] = 1", "1:19: expected a tensor such as f32[2]{1.0, 2.0}, got '1'"},
        BadText{"var @w : f32[2] [color=red]",
                "1:18: expected trainable, synchronization, aggregation, slice_axis, slice_extent, device, "
                "copy_of, replica or "
                "shares, got 'color'"},
        BadText{"var @w : f32[2] [trainable=1]", "1:28: expected true or false, got '1'"},
        BadText{"var @w : f32[2] [aggregation=max]",
                "1:30: expected one of none, sum, mean, only_first_replica, slices, got 'max'"},
        BadText{
            "\x01",
            "1:1: expected a statement ('%name = ...', 'var @name ...' or 'return ...'), got byte 0x01"}));

TEST(Text, ErrorsCarryLineAndColumn) {
  try {
    parse("\n\n  %x = op(?)");
    FAIL();
  } catch (const ParseError& error) {
    EXPECT_EQ(error.line(), 3U);
    EXPECT_EQ(error.column(), 11U);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
}

TEST(Text, TooManyDimensionsAreRefused) {
  std::string dims = "1";
  for (int i = 0; i < 300; ++i) dims += ",1";
  EXPECT_THAT(parse_failure("%x = op() : f32[" + dims + "]"), HasSubstr("more than 255 dimensions"));
  EXPECT_THAT(parse_failure("%x = op() : f32[4000000000,4000000000]"), HasSubstr("1:13: "));
}

TEST(Text, NestingIsBounded) {
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += "%x = op() { region {\n";
    for (int i = 0; i < depth; ++i) text += "} }\n";
    return text;
  };
  EXPECT_EQ(parse(nested(256)).size(), 1U);
  expect_round_trip(parse(nested(256)));
  EXPECT_EQ(parse_failure(nested(257)), "257:13: regions are nested deeper than 256 levels");
  EXPECT_THAT(parse_failure(nested(100000)), HasSubstr("nested deeper"));
}

TEST(Text, SplatsShareOneLimit) {
  EXPECT_THAT(parse_failure("%x = op[a=u8[2,1024]{*1}, b=u8[4294967000]{*1}]()"),
              HasSubstr("take more than"));
}

// --- random graphs

TEST(Text, AnyGraphReadsBack) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    expect_round_trip(random_any_graph(dice, 1 + dice.below(20)));
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(Text, BuiltGraphsReadBack) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    expect_round_trip(random_valid_graph(seed, 20));
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(Text, AnyBytesEndInAGraphOrAParseError) {
  static const std::string kPieces[] = {"%",   "@",        "{",  "}",         "[",      "]",        "(",
                                        ")",   "\"",       "\n", ",",         "=",      "region {", "return",
                                        "nan", "<",        ">",  "999999999", "-",      "//",       "f32",
                                        "\\x", "<lambda>", "*",  "after(",    " on \"", ":"};
  std::size_t graphs = 0;
  std::size_t errors = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Dice dice(seed);
    const std::string original = print(random_any_graph(dice, 1 + dice.below(8)));
    for (int round = 0; round < 200; ++round) {
      std::string text = original;
      for (std::size_t edits = 1 + dice.below(4); edits > 0 && !text.empty(); --edits) {
        const std::size_t at = dice.below(text.size());
        switch (dice.below(5)) {
          case 0: text[at] = static_cast<char>(dice.below(256)); break;
          case 1: text.erase(at, 1 + dice.below(8)); break;
          case 2: text.insert(at, dice.one_of(kPieces)); break;
          case 3: text.insert(at, text.substr(dice.below(text.size()), dice.below(40))); break;
          default: text.resize(at); break;
        }
      }
      try {
        const Graph graph = parse(text);
        ++graphs;
        // Whatever is read can be written, and read again.
        ASSERT_EQ(structural_difference(graph, parse(print(graph))), "") << text;
      } catch (const ParseError& error) {
        ++errors;
        ASSERT_GE(error.line(), 1U);
        ASSERT_GE(error.column(), 1U);
      }
    }
  }
  EXPECT_GT(graphs, 100U);
  EXPECT_GT(errors, 1000U);
}

}  // namespace
}  // namespace lockstep
