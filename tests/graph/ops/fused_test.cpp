// Tests: graph/ops/fused/fused.cpp, graph/ops/fused/tile_program.cpp,
//        graph/ops/fused/tile_program_maker.cpp
// The op `fused` and the tile programs in it: what they compute is what the nodes compute, to the bit.
#include <random>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/fused/internal/tile_program.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/fuse_elementwise.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/gradients.h"
#include "support/on_card.h"
#include "support/pass_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

// Runs a graph of one fused node in the interpreter and in programs of one and three threads.
std::vector<Tensor> run_everywhere(const Graph& graph, const std::vector<Tensor>& feeds) {
  Interpreter::Feeds named;
  for (std::size_t i = 0; i < feeds.size(); ++i) named[graph.node(graph.parameters()[i]).name()] = feeds[i];
  const std::vector<Tensor> expected = Interpreter(graph).run(named);
  for (const std::size_t threads : {std::size_t{1}, std::size_t{3}}) {
    Runtime runtime({.threads = threads});
    for (const CompileOptions& options : {CompileOptions(), testing::with_lanes()}) {
      Program program = compile(graph, runtime, options);
      testing::expect_same_tensors(program.run(feeds), expected);
      testing::expect_same_tensors(program.run(feeds), expected);
    }
  }
  testing::expect_same_on_card(graph, feeds);
  return expected;
}

Graph fused(Graph graph) {
  PassRegistry::global().parse_pipeline("fuse-elementwise").run(graph);
  return graph;
}

void expect_same_bits(const Graph& graph, std::uint64_t seed) {
  const auto feeds = testing::random_feeds(graph, seed);
  std::vector<Tensor> list;
  for (const NodeId id : graph.parameters()) list.push_back(feeds->at(graph.node(id).name()));
  std::vector<Tensor> expected;
  try {
    expected = Interpreter(graph).run(*feeds);
  } catch (const Error&) {
    EXPECT_THROW(Interpreter(fused(graph)).run(*feeds), Error);
    return;
  }
  testing::expect_same_tensors(run_everywhere(fused(graph), list), expected);
  testing::expect_same_bits_on_card(graph, fused(graph), list);
}

TEST(Fused, RefusesWhatIsNotElementWise) {
  const auto rule_of = [](const std::string& text) {
    return testing::caught([&] { verify(parse(text)); }).what;
  };
  EXPECT_THAT(rule_of(R"(
      %x = placeholder() : f32[4]
      %y = fused(%x) : f32[] {
        region {
          %a = placeholder() : f32[4]
          %s = sum[axes=ints[], keepdims=false](%a) : f32[]
          return %s
        }
      })"),
              ::testing::HasSubstr("'s' (sum) in the region is no element-wise op that computes tiles"));
  EXPECT_THAT(rule_of(R"(
      %x = placeholder() : f32[4]
      %y = fused(%x, %x) : f32[4] {
        region {
          %a = placeholder() : f32[4]
          %s = relu(%a) : f32[4]
          return %s
        }
      })"),
              ::testing::HasSubstr("the region takes 1 parameters, the node gives it 2"));
  EXPECT_THAT(rule_of(R"(
      %x = placeholder() : f32[5]
      %y = fused(%x) : f32[4] {
        region {
          %a = placeholder() : f32[4]
          %s = relu(%a) : f32[4]
          return %s
        }
      })"),
              ::testing::HasSubstr("parameter 0 of the region is f32[4], the node gives it f32[5]"));
  EXPECT_THAT(rule_of(R"(
      %x = placeholder() : f32[4]
      %y = fused(%x) {
        region {
          %a = placeholder() : f32[4]
          %s = relu(%a) : f32[4]
        }
      })"),
              ::testing::HasSubstr("the region must give at least one result"));
}

TEST(Fused, ReadsAndPrints) {
  const std::string text = R"(%x = placeholder() : f32[?]
%y = fused(%x) : f32[?], f32[?] {
  region {
    %a = placeholder() : f32[?]
    %b = relu(%a) : f32[?]
    return %b, %a
  }
}
return %y, %y:1
)";
  const Graph graph = parse(text);
  verify(graph);
  EXPECT_EQ(print(graph), text);
  const auto results = run_everywhere(graph, {testing::vec({-1, 2})});
  EXPECT_EQ(testing::floats(results[0]), (std::vector<float>{0, 2}));
  EXPECT_EQ(testing::floats(results[1]), (std::vector<float>{-1, 2}));
}

TEST(Fused, GivesTheSameResultTwiceAndConstants) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[3]
      %y = fused(%x) : f32[3], f32[3], f32[], f32[2] {
        region {
          %a = placeholder() : f32[3]
          %c = constant[value=f32[]{2.5}]() : f32[]
          %d = constant[value=f32[2]{1.0, 2.0}]() : f32[2]
          %b = add(%a, %c) : f32[3]
          return %b, %b, %c, %d
        }
      }
      return %y, %y:1, %y:2, %y:3)");
  const auto results = run_everywhere(graph, {testing::vec({1, 2, 3})});
  EXPECT_EQ(testing::floats(results[0]), (std::vector<float>{3.5, 4.5, 5.5}));
  EXPECT_EQ(testing::floats(results[1]), (std::vector<float>{3.5, 4.5, 5.5}));
  EXPECT_EQ(testing::floats(results[2]), (std::vector<float>{2.5}));
  EXPECT_EQ(testing::floats(results[3]), (std::vector<float>{1, 2}));
}

// To the bit, along both axes.
TEST(Fused, HoldsConstantsOfEachDType) {
  const std::pair<DType, const char*> cases[] = {
      {DType::kF16, "inf, -inf, nan, -0.0"},  {DType::kBF16, "inf, -inf, nan, 0.5"},
      {DType::kF32, "inf, -inf, nan, 1e-45"}, {DType::kF64, "inf, -inf, nan, 5e-324"},
      {DType::kI32, "0, 1, -1, -2147483648"}, {DType::kI64, "0, 1, -1, -9223372036854775808"},
      {DType::kU8, "0, 1, 254, 255"},         {DType::kBool, "true, false, false, true"},
  };
  for (const auto& [dtype, elements] : cases) {
    const std::string row = str(dtype, "[1,4]"), column = str(dtype, "[4,1]"), all = str(dtype, "[4,4]");
    const Graph graph = parse(
        str("%x = placeholder() : bool[4,4]\n%y = fused(%x) : ", all, ", ", row,
            " {\n  region {\n    %a = placeholder() : bool[4,4]\n    %c = constant[value=", row, "{",
            elements, "}]() : ", row, "\n    %d = constant[value=", column, "{", elements, "}]() : ", column,
            "\n    %b = where(%a, %c, %d) : ", all, "\n    return %b, %c\n  }\n}\nreturn %y, %y:1\n"));
    Tensor x = Tensor::zeros(DType::kBool, {4, 4});
    for (std::size_t i = 0; i < 16; ++i) x.data<bool>()[i] = i % 3 == 0;
    run_everywhere(graph, {x});
  }
}

TEST(Fused, AnErrorNamesTheNodeInside) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {3});
  const Value y = b.placeholder("y", DType::kI32, {3});
  b.result(div(x + y, y) * x);
  const Graph graph = fused(b.finish());
  Runtime runtime({.threads = 1});
  Program program = compile(graph, runtime);
  const auto list =
      testing::list({Tensor::from<std::int32_t>({3}, {1, 2, 3}), Tensor::from<std::int32_t>({3}, {1, 0, 3})});
  const testing::Caught error = testing::caught([&] { program.run(list); });
  EXPECT_EQ(error.place.node, "div");
  EXPECT_EQ(error.place.op, "div");
  EXPECT_THAT(error.what, ::testing::HasSubstr("by zero"));
  const testing::Caught interpreted = testing::caught([&] {
    Interpreter(graph).run({{"x", list[0]}, {"y", list[1]}});
  });
  EXPECT_EQ(interpreted.code, ErrorCode::kInvalidArgument);
}

// What was taken for one batch turns out to be two: results are those of the nodes all the same.
TEST(Fused, IsRightWhereShapesDifferAfterAll) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  const Value y = b.placeholder("y", DType::kF32, {kUnknown});
  const Value a = relu(x) * 3.0F;
  const Value c = relu(y) + 1.0F;
  b.result(a);
  b.result(c);
  b.result(a * c - x);
  const Graph graph = b.finish();
  const Graph after = fused(graph);
  EXPECT_EQ(after.size(), 3U) << print(after);
  for (const auto& [n, m] :
       {std::pair<std::int64_t, std::int64_t>{5, 5}, {5, 1}, {1, 5}, {1, 1}, {100'000, 1}}) {
    const std::vector<Tensor> feeds = {testing::random_tensor({DType::kF32, {n}}, 1),
                                       testing::random_tensor({DType::kF32, {m}}, 2)};
    testing::expect_same_tensors(run_everywhere(after, feeds),
                                 Interpreter(graph).run({{"x", feeds[0]}, {"y", feeds[1]}}));
  }
}

// Output 0 lies where the product lies, which later nodes of the region still read.
TEST(Fused, ReadsAnInputBeforeItIsWrittenOver) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {300, 8});
  const Value w = b.placeholder("w", DType::kF32, {8, 400});
  const Value m = matmul(x, w);
  const Value r = relu(m);
  const Value s = r + m;
  const Value t = s * m;
  b.result(sum(r));
  b.result(sum(s));
  b.result(sum(t));
  expect_same_bits(b.finish(), 3);
}

TEST(Fused, WritesOverAnInputThatAnotherShapeReads) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[4]
      %z = placeholder() : f32[3,4]
      %s = sum[axes=[0], keepdims=false](%z) : f32[4]
      %y = fused(%s, %z) : f32[4], f32[3,4] {
        region {
          %a = placeholder() : f32[4]
          %b = placeholder() : f32[3,4]
          %c = relu(%a) : f32[4]
          %d = mul(%b, %a) : f32[3,4]
          return %c, %d
        }
      }
      %t = sum[axes=ints[], keepdims=false](%y) : f32[]
      %u = sum[axes=ints[], keepdims=false](%y:1) : f32[]
      return %t, %u)");
  run_everywhere(graph, {testing::vec({1, 2, 3, 4}), testing::random_tensor({DType::kF32, {3, 4}}, 5)});
}

// Fusion comes after gradients.
TEST(Fused, HasNoGradientAndSaysSo) {
  Graph region = parse(R"(
      %a = placeholder() : f32[]
      %b = relu(%a) : f32[]
      return %b)");
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {});
  std::vector<Graph> regions;
  regions.push_back(std::move(region));
  const NodeId node = b.node(OpRegistry::global().get("fused"), "f", std::vector<Value>{x}, {},
                             std::move(regions), SourceSite::current());
  const Value seed = b.constant(1.0F);
  const Value y(&b, {node, 0});
  EXPECT_THAT(testing::caught([&] { gradients(y, {x}, {.seed = seed}); }).what,
              ::testing::HasSubstr("op 'fused' has no gradient rule"));
}

TEST(TileProgram, KeepsAChainInNoRegister) {
  const Graph graph = fused(parse(R"(
      %x = placeholder() : f32[100000]
      %a = relu(%x) : f32[100000]
      %b = add(%a, %x) : f32[100000]
      %c = mul(%b, %x) : f32[100000]
      %d = sub(%c, %x) : f32[100000]
      return %d
    )"));
  const Node& node = graph.node(graph.find("d"));
  const auto specs = internal::infer_elementwise(node.regions()[0], input_specs(graph, node));
  const internal::TileProgram program(node.regions()[0], specs, std::vector<std::size_t>{0});
  EXPECT_EQ(program.num_registers(), 0U);
  EXPECT_GE(program.tile(), 256);
}

// --- random graphs

class RandomElementwise {
 public:
  explicit RandomElementwise(std::uint64_t seed) : random_(seed) {
    for (const std::string& name : OpRegistry::global().names()) {
      const OpDef& op = OpRegistry::global().get(name);
      if (op.tile != nullptr && op.inputs.min <= 3) ops_.push_back(&op);
    }
  }

  Graph make(const Shape& space, std::size_t nodes) {
    GraphBuilder b;
    std::vector<Value> values;
    for (const DType dtype : {DType::kF32, DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kF16,
                              DType::kBF16, DType::kU8, DType::kBool, DType::kBool}) {
      values.push_back(
          b.placeholder("x" + std::to_string(values.size()), dtype, below(2) == 0 ? space : part(space)));
    }
    values.push_back(b.constant(Tensor::full(DType::kF32, {}, 0.75)));
    values.push_back(b.constant(Tensor::full(DType::kI32, {1}, 2)));
    const std::size_t wanted = values.size() + nodes;
    for (int attempts = 0; values.size() < wanted && attempts < 10'000; ++attempts) grow(b, values);
    for (int i = 0; i < 4; ++i) b.result(values[values.size() - 1 - below(values.size() / 2)]);
    b.result(values.back());
    return b.finish();
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  // Some of the dimensions are 1, or absent.
  Shape part(const Shape& space) {
    std::vector<std::int64_t> dims;
    for (std::size_t axis = below(space.rank() + 1); axis < space.rank(); ++axis)
      dims.push_back(below(2) == 0 ? 1 : space[axis]);
    return Shape(dims);
  }

  void grow(GraphBuilder& b, std::vector<Value>& values) {
    const OpDef& op = *ops_[below(ops_.size())];
    std::vector<Value> operands;
    std::vector<Attribute> attributes;
    for (const AttributeSpec& spec : op.attributes) {
      if (spec.type == AttributeType::kDType) {
        constexpr DType kTo[] = {DType::kF32, DType::kF64, DType::kI32, DType::kF16, DType::kBool};
        attributes.push_back({spec.name, kTo[below(5)]});
      } else if (spec.type == AttributeType::kFloat) {
        attributes.push_back({spec.name, static_cast<double>(below(8)) / 4});
      }
    }
    for (std::size_t i = 0; i < op.inputs.min; ++i) operands.push_back(values[below(values.size())]);
    const bool may_fail = op.name == "div" || op.name == "floor_div" || op.name == "mod" || op.name == "pow";
    if (may_fail && is_integer(operands[1].dtype())) return;  // there would be little left to compare
    try {
      values.push_back(b.op(op.name, operands, std::move(attributes))[0]);
    } catch (const InvalidArgument&) {  // these operands do not go together
    }
  }

  std::mt19937_64 random_;
  std::vector<const OpDef*> ops_;
};

TEST(FuseElementwiseRandom, KeepsBitsWhateverTheDtypesAndShapes) {
  const std::vector<Shape> spaces = {{},        {1},          {7},    {4, 3, 5}, {3, 300},
                                     {700, 10}, {2, 3, 4, 5}, {0, 3}, {1, 5, 1}, {3, 2, 20, 20}};
  std::size_t groups = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const Graph graph = RandomElementwise(seed).make(spaces[seed % spaces.size()], 25);
    const Graph after = fused(graph);
    for (const Node& node : after.nodes()) groups += node.op().name == "fused" ? 1 : 0;
    EXPECT_EQ(print(parse(print(after))), print(after));
    expect_same_bits(graph, seed);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed << "\n" << print(graph) << "\n" << print(after);
      return;
    }
  }
  EXPECT_GT(groups, 100U);
}

TEST(FuseElementwiseRandom, KeepsBitsWhereNodesAreCutIntoShards) {
  const std::vector<Shape> spaces = {{200'000}, {300, 700}, {40'000, 5}, {50, 4000, 1}};
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const Graph graph = RandomElementwise(1000 + seed).make(spaces[seed % spaces.size()], 20);
    expect_same_bits(graph, seed);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed << "\n" << print(graph) << "\n" << print(fused(graph));
      return;
    }
  }
}

}  // namespace
}  // namespace lockstep
