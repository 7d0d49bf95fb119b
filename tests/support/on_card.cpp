// tests/support/on_card.cpp - the same graph on a card of this machine, and what it gives there.
#include "support/on_card.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/core/runtime.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/transform/pass.h"
#include "lockstep/strategies/passes/place.h"

namespace lockstep::testing {

namespace {

const Runtime& card_runtime() {
  static const Runtime runtime({.threads = 2});
  return runtime;
}

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 1e-12;
    case DType::kF32: return 2e-6;
    case DType::kF16: return 2e-3;
    case DType::kBF16: return 1.6e-2;
    default: return 0;
  }
}

double element(const Tensor& tensor, std::int64_t i) {
  return visit_dtype(tensor.dtype(), [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      return static_cast<double>(static_cast<float>(static_cast<const T*>(tensor.raw())[i]));
    } else {
      return static_cast<double>(static_cast<const T*>(tensor.raw())[i]);
    }
  });
}

enum class Nearness : std::uint8_t {
  kEqual,    // to the bit, but for what a NaN holds
  kElement,  // of an element's size
  kChain,  // the same where a function reads another one's result: log1p(erf(x)) makes much of a small difference
  kLargest,  // of the largest element of a result
};
constexpr double kChainFactor = 64;  // of the tolerance

// What a card has to give of this graph: nothing but the CPU's bits, unless a function or a sum is in it.
Nearness nearness_of(const Graph& graph) {
  static const std::set<std::string, std::less<>> kExact = {"abs",
                                                            "add",
                                                            "cast",
                                                            "ceil",
                                                            "clip",
                                                            "div",
                                                            "equal",
                                                            "floor",
                                                            "greater",
                                                            "identity",
                                                            "isfinite",
                                                            "less",
                                                            "logical_and",
                                                            "logical_not",
                                                            "logical_or",
                                                            "maximum",
                                                            "minimum",
                                                            "mul",
                                                            "neg",
                                                            "not_equal",
                                                            "random_integers",
                                                            "random_uniform",
                                                            "reciprocal",
                                                            "relu",
                                                            "round",
                                                            "sign",
                                                            "sqrt",
                                                            "square",
                                                            "sub",
                                                            "where"};
  Nearness nearness = Nearness::kEqual;
  std::vector<bool> follows_function(graph.id_bound(), false);
  for (const NodeId id : graph.topological_order()) {
    const Node& node = graph.node(id);
    const OpDef& op = node.op();
    const bool reads_one = std::ranges::any_of(
        node.inputs(), [&](ValueId input) { return follows_function[input.node.index()]; });
    follows_function[id.index()] = reads_one;
    if (kExact.contains(op.name) || op.moves || op.traits.alias || op.inputs.max == 0) continue;
    const bool is_fused = op.name == "fused";
    if (op.source.empty() && !is_fused) return Nearness::kLargest;
    Nearness own = is_fused ? nearness_of(node.regions()[0]) : Nearness::kElement;
    if (own == Nearness::kEqual) continue;
    if (reads_one) own = std::max(own, Nearness::kChain);
    follows_function[id.index()] = true;
    nearness = std::max(nearness, own);
  }
  return nearness;
}

void expect_near_tensors(std::span<const Tensor> actual, std::span<const Tensor> expected,
                         Nearness nearness) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const Tensor there = actual[i].host(), here = expected[i].host();
    ASSERT_EQ(there.spec(), here.spec());
    const double tolerance = nearness == Nearness::kEqual   ? 0
                             : nearness == Nearness::kChain ? kChainFactor * tolerance_of(here.dtype())
                                                            : tolerance_of(here.dtype());
    double largest = 1;
    for (std::int64_t e = 0; nearness == Nearness::kLargest && e < here.num_elements(); ++e) {
      if (const double y = std::abs(element(here, e)); std::isfinite(y)) largest = std::max(largest, y);
    }
    for (std::int64_t e = 0; e < here.num_elements(); ++e) {
      const double x = element(there, e), y = element(here, e);
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      const bool finite = std::isfinite(x) && std::isfinite(y);
      EXPECT_TRUE(finite && std::abs(x - y) <= tolerance * std::max(largest, std::abs(y)))
          << "result " << i << ", element " << e << ": " << x << " on the card, " << y << " here";
      if (::testing::Test::HasFailure()) return;
    }
  }
}

bool same_bits(std::span<const Tensor> actual, std::span<const Tensor> expected) {
  return std::ranges::equal(actual, expected, [](const Tensor& x, const Tensor& y) {
    const Tensor a = x.host(), b = y.host();
    return a.spec() == b.spec() &&
           (a.num_bytes() == 0 ||
            std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.num_bytes())) == 0);
  });
}

}  // namespace

bool has_card() {
  const Topology& topology = card_runtime().topology();
  return std::ranges::any_of(topology.devices(),
                             [](const DeviceFacts& facts) { return facts.kernels == "cuda"; });
}

std::vector<std::vector<Tensor>> run_on_card(Graph graph, std::span<const std::vector<Tensor>> feeds) {
  if (!has_card()) return {};
  PassContext context{.topology = &card_runtime().topology()};
  make_place({.devices = {"gpu:0"}})->run(graph, context);
  const Program program =
      compile(std::move(graph), card_runtime(), {.variables = std::make_shared<VariableStore>()});
  std::vector<std::vector<Tensor>> results;
  for (const std::vector<Tensor>& fed : feeds) results.push_back(program.run(fed));
  program.wait();
  return results;
}

void expect_same_on_card(const Graph& graph, const std::vector<Tensor>& feeds) {
  const std::vector<std::vector<Tensor>> there = run_on_card(graph, std::vector(3, feeds));
  Interpreter steps(graph);
  std::vector<Tensor> before;
  for (std::size_t run = 0; run < there.size(); ++run) {
    const std::vector<Tensor> here = steps.run(feeds);
    expect_near_tensors(there[run], here, nearness_of(graph));
    if (run > 0 && same_bits(here, before)) {
      EXPECT_TRUE(same_bits(there[run], there[run - 1])) << "runs " << run - 1 << " and " << run;
    }
    before = here;
  }
}

void expect_same_bits_on_card(const Graph& graph, const Graph& other, const std::vector<Tensor>& feeds) {
  const std::vector<std::vector<Tensor>> once = {feeds};
  const auto first = run_on_card(graph, once), second = run_on_card(other, once);
  for (std::size_t run = 0; run < first.size(); ++run)
    expect_near_tensors(second[run], first[run], Nearness::kEqual);
}

}  // namespace lockstep::testing
