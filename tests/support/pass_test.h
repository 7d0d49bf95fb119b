// tests/support/pass_test.h - pass tests: graph in, passes, graph out, as text.
//
//   using MyPassTest = PassTest;
//   TEST_F(MyPassTest, DropsTheSecondRelu) {
//     expect_rewrite("remove-double-relu", R"(
//         %x = placeholder() : f32[4]
//         %a = relu(%x) : f32[4]
//         %b = relu(%a) : f32[4]
//         return %b
//       )", R"(
//         %x = placeholder() : f32[4]
//         %a = relu(%x) : f32[4]
//         return %a
//       )");
//   }
//
// Each expectation also holds the passes to their contract (the graph verifies before and after, the claimed
// outcome is what happened), runs them a second time where `idempotent` says that nothing must change then,
// and, where every parameter has a known shape, interprets both graphs on the same random feeds: results and
// variables agree bit by bit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/random.h"
#include "lockstep/core/topology.h"
#include "lockstep/graph/check/structure.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/transform/bisect.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/graph/transform/pipeline.h"

namespace lockstep::testing {

// The lines of two texts side by side: "  both", "- only in the first", "+ only in the second".
inline std::string line_diff(const std::string& expected, const std::string& actual) {
  const auto split = [](const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  };
  const std::vector<std::string> a = split(expected);
  const std::vector<std::string> b = split(actual);
  std::vector<std::vector<std::size_t>> common(a.size() + 1, std::vector<std::size_t>(b.size() + 1, 0));
  for (std::size_t i = a.size(); i-- > 0;) {
    for (std::size_t j = b.size(); j-- > 0;) {
      common[i][j] = a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  std::string diff;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      diff += "  " + a[i] + "\n";
      ++i;
      ++j;
    } else if (j == b.size() || (i < a.size() && common[i + 1][j] >= common[i][j + 1])) {
      diff += "- " + a[i++] + "\n";
    } else {
      diff += "+ " + b[j++] + "\n";
    }
  }
  return diff;
}

// Random contents, the same for the same seed: floats in [-2, 2), small integers, either bool.
inline Tensor random_tensor(const TensorSpec& spec, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(spec.dtype, spec.shape);
  const RandomStream stream{.seed = seed, .key = 1};
  visit_dtype(spec.dtype, [&]<class T>(T) {
    std::uint64_t i = 0;
    for (T& element : tensor.data<T>()) {
      const std::uint32_t bits = stream.block(i++)[0];
      if constexpr (std::is_same_v<T, bool>) {
        element = (bits & 1U) != 0;
      } else if constexpr (std::is_integral_v<T>) {
        element = static_cast<T>(bits % 7U);
      } else {
        element = static_cast<T>(Philox::to_unit_float(bits) * 4 - 2);
      }
    }
  });
  return tensor;
}

// Feeds for every parameter; none where a shape is unknown.
inline std::optional<Interpreter::Feeds> random_feeds(const Graph& graph, std::uint64_t seed) {
  Interpreter::Feeds feeds;
  for (const NodeId id : graph.parameters()) {
    const TensorSpec& spec = graph.node(id).outputs()[0];
    if (!spec.shape.is_known()) return std::nullopt;
    feeds[graph.node(id).name()] = random_tensor(spec, ++seed * 7919);
  }
  return feeds;
}

// Do both graphs compute the same bits over a few steps? Where the first cannot run, neither may the second.
inline void expect_same_meaning(const Graph& before, const Graph& after, std::uint64_t seed = 1) {
  const std::optional<Interpreter::Feeds> feeds = random_feeds(before, seed);
  if (!feeds) return;
  Interpreter first(before, {.seed = seed});
  Interpreter second(after, {.seed = seed});
  for (int step = 0; step < 2; ++step) {
    std::vector<Tensor> expected;
    try {
      expected = first.run(*feeds);
    } catch (const std::exception& error) {
      EXPECT_ANY_THROW(second.run(*feeds)) << "before the passes the run fails: " << error.what();
      return;
    }
    const std::vector<Tensor> actual = second.run(*feeds);
    ASSERT_EQ(expected.size(), actual.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(expected[i].bit_equal(actual[i])) << "result " << i << ", step " << step << ": "
                                                    << expected[i] << " before, " << actual[i] << " after";
    }
    for (const auto& [name, value] : first.variables()) {
      EXPECT_TRUE(value.bit_equal(second.variables().at(name)))
          << "variable '" << name << "', step " << step << ": " << value << " before, "
          << second.variables().at(name) << " after";
    }
  }
}

struct RewriteChecks {
  bool idempotent = true;     // a second run must change nothing
  bool same_meaning = true;   // off for passes that are meant to change results
  std::string topology = {};  // as text: the machine that the graph is for; empty: not known
};

class PassTest : public ::testing::Test {
 protected:
  // Where the passes of a test are looked up; the global one by default.
  virtual const PassRegistry& registry() const { return PassRegistry::global(); }

  void expect_rewrite(PassPipeline passes, std::string_view input, std::string_view expected,
                      RewriteChecks checks = {}) {
    const Graph before = parse(input, "input");
    const std::string wanted = print(parse(expected, "expected"));
    Graph after = before;
    const Topology topology = Topology::parse(checks.topology);
    PassContext context{.topology = checks.topology.empty() ? nullptr : &topology};
    const PipelineReport report = passes.run(after, context);
    const std::string got = print(after);
    if (got != wanted) {
      ADD_FAILURE() << passes.to_string() << " made another graph (-expected, +got):\n"
                    << line_diff(wanted, got);
    }
    EXPECT_EQ(report.outcome, outcome_of(print(before) != wanted)) << passes.to_string();
    EXPECT_EQ(after.size(), after.id_bound()) << "ids have gaps";
    if (checks.same_meaning) expect_same_meaning(before, after);
    if (checks.idempotent) {
      const std::string once = got;
      EXPECT_EQ(passes.run(after, context).outcome, PassOutcome::kUnchanged)
          << "a second run of " << passes.to_string() << " changed the graph again (-first, +second):\n"
          << line_diff(once, print(after));
    }
  }
  void expect_rewrite(std::string_view passes, std::string_view input, std::string_view expected,
                      RewriteChecks checks = {}) {
    expect_rewrite(registry().parse_pipeline(passes), input, expected, checks);
  }
  void expect_rewrite(std::unique_ptr<Pass> pass, std::string_view input, std::string_view expected,
                      RewriteChecks checks = {}) {
    PassPipeline passes;
    passes.add(std::move(pass));
    expect_rewrite(std::move(passes), input, expected, checks);
  }

  template <class Passes>
  void expect_unchanged(Passes&& passes, std::string_view input, const RewriteChecks& checks = {}) {
    expect_rewrite(std::forward<Passes>(passes), input, input, checks);
  }
};

}  // namespace lockstep::testing
