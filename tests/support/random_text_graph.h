// tests/support/random_text_graph.h - random graphs for tests of the text form, structure and verifier.
//
// random_any_graph makes graphs that hold anything a graph can hold, sense or nonsense; random_valid_graph
// makes graphs that verify, through the builder. Both depend on the seed alone.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep::testing {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t bits() { return engine_(); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  bool once_in(std::size_t n) { return below(n) == 0; }
  template <class List>
  const auto& one_of(const List& list) {
    return list[below(std::size(list))];
  }

 private:
  std::mt19937_64 engine_;
};

inline std::string random_name(Dice& dice) {
  static const std::string kPieces[] = {"x",
                                        "layer_1/",
                                        "-",
                                        ".",
                                        " ",
                                        "\"",
                                        "\\",
                                        "\n",
                                        "\t",
                                        "%",
                                        "@",
                                        ":1",
                                        "//",
                                        "{",
                                        "}",
                                        "ümlaut",
                                        "日本語",
                                        "\xF0\x9F\x8E\x89",
                                        std::string(1, '\0'),
                                        "\x01",
                                        "\x7f",
                                        "\xff",
                                        "\xc3",
                                        "\xed\xa0\x80",
                                        "\xe2\x82",
                                        "return",
                                        "var",
                                        "region",
                                        "0",
                                        "<lambda>"};
  std::string name;
  const std::size_t pieces = 1 + dice.below(4);
  for (std::size_t i = 0; i < pieces; ++i) name += dice.one_of(kPieces);
  return name;
}

inline double random_double(Dice& dice) {
  static const double kSpecial[] = {0.0,
                                    -0.0,
                                    1.0,
                                    -1.5,
                                    0.1,
                                    1e300,
                                    5e-324,
                                    100000.0,
                                    1e22,
                                    123456789012345680.0,
                                    std::numeric_limits<double>::infinity(),
                                    -std::numeric_limits<double>::infinity(),
                                    std::numeric_limits<double>::quiet_NaN()};
  return dice.once_in(2) ? dice.one_of(kSpecial) : std::bit_cast<double>(dice.bits());
}

inline Shape random_shape(Dice& dice, bool known) {
  std::vector<std::int64_t> dims;
  const std::size_t rank = dice.once_in(20) ? 6 : dice.below(4);
  for (std::size_t i = 0; i < rank; ++i) {
    dims.push_back(!known && dice.once_in(4) ? kUnknown : static_cast<std::int64_t>(dice.below(4)));
  }
  return Shape(std::span<const std::int64_t>(dims));
}

inline DType random_dtype(Dice& dice) { return dice.one_of(kAllDTypes); }

// Any bits at all, or one element over and over.
inline Tensor random_tensor(Dice& dice) {
  Tensor tensor = Tensor::empty(random_dtype(dice), random_shape(dice, true));
  const bool splat = dice.once_in(3);
  const std::uint64_t same = dice.bits();
  const std::size_t size = size_of(tensor.dtype());
  auto* bytes = static_cast<unsigned char*>(tensor.raw());
  for (std::size_t i = 0; i < tensor.num_bytes(); i += size) {
    const std::uint64_t bits = splat ? same : dice.bits();
    for (std::size_t b = 0; b < size; ++b) bytes[i + b] = static_cast<unsigned char>(bits >> (8 * b));
    if (tensor.dtype() == DType::kBool) bytes[i] &= 1U;
  }
  return tensor;
}

inline AttributeValue random_attribute(Dice& dice) {
  switch (dice.below(11)) {
    case 0: return dice.once_in(2);
    case 1: return static_cast<std::int64_t>(dice.bits());
    case 2: return random_double(dice);
    case 3: return random_name(dice);
    case 4: return random_dtype(dice);
    case 5: return random_shape(dice, false);
    case 6: return dice.once_in(10) ? Tensor() : random_tensor(dice);
    case 7: return VariableRef{random_name(dice)};
    case 8: {
      std::vector<std::int64_t> list(dice.below(3));
      for (auto& element : list) element = static_cast<std::int64_t>(dice.bits());
      return list;
    }
    case 9: {
      std::vector<double> list(dice.below(3));
      for (auto& element : list) element = random_double(dice);
      return list;
    }
    default: {
      std::vector<std::string> list(dice.below(3));
      for (auto& element : list) element = random_name(dice);
      return list;
    }
  }
}

inline void declare_random_variables(Dice& dice, Graph& graph) {
  for (std::size_t i = dice.below(3); i > 0; --i) {
    VariableDecl decl;
    decl.name = random_name(dice);
    if (graph.find_variable(decl.name) != nullptr) continue;
    decl.initial = dice.once_in(2) ? random_tensor(dice) : Tensor();
    decl.spec = decl.initial.defined() ? decl.initial.spec()
                                       : TensorSpec{random_dtype(dice), random_shape(dice, true)};
    decl.trainable = !dice.once_in(3);
    decl.synchronization = static_cast<Synchronization>(dice.below(4));
    decl.aggregation = static_cast<Aggregation>(dice.below(4));
    graph.declare_variable(std::move(decl));
  }
}

inline Graph random_any_graph(Dice& dice, std::size_t nodes, int depth = 0) {
  static const char* const kOps[] = {"add", "relu", "constant", "cond", "mystery.op", "placeholder", "sum"};
  static const char* const kDevices[] = {"cpu:0", "cpu:1", "gpu:3", "/job:worker/task:1/gpu:0",
                                         "no such device\n"};
  Graph graph;
  declare_random_variables(dice, graph);
  // Ids in an order of their own: edges lead from lower to higher numbers, which are not the ids.
  std::vector<std::size_t> making(nodes);
  std::iota(making.begin(), making.end(), std::size_t{0});
  for (std::size_t i = nodes; i > 1; --i) std::swap(making[i - 1], making[dice.below(i)]);
  std::vector<NodeId> ids(nodes);
  for (const std::size_t number : making) {
    NodeInit init;
    const std::shared_ptr<const OpDef> op = OpRegistry::global().find_or_unknown(dice.one_of(kOps));
    init.op = op.get();
    init.name = graph.unique_name(random_name(dice));
    for (std::size_t i = dice.below(3); i > 0; --i)
      init.outputs.push_back({random_dtype(dice), random_shape(dice, false)});
    std::vector<std::string> names;
    for (std::size_t i = dice.below(4); i > 0; --i) names.push_back(random_name(dice));
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) ==
          names.begin() + static_cast<std::ptrdiff_t>(i)) {
        init.attributes.push_back({names[i], random_attribute(dice)});
      }
    }
    if (dice.once_in(4)) init.device = dice.one_of(kDevices);
    if (depth < 3 && dice.once_in(6)) {
      for (std::size_t i = 1 + dice.below(2); i > 0; --i) {
        init.regions.push_back(random_any_graph(dice, dice.below(5), depth + 1));
      }
    }
    ids[number] = graph.add(std::move(init));
  }
  std::vector<NodeId> parameters;
  for (std::size_t i = 0; i < nodes; ++i) {
    if (graph.node(ids[i]).op().name == "placeholder") {
      parameters.insert(parameters.begin() + static_cast<std::ptrdiff_t>(dice.below(parameters.size() + 1)),
                        ids[i]);
      continue;
    }
    std::vector<ValueId> inputs;
    std::vector<NodeId> controls;
    if (i > 0) {
      for (std::size_t n = dice.below(4); n > 0; --n) {
        inputs.push_back({ids[dice.below(i)], static_cast<std::uint32_t>(dice.below(3))});
      }
      for (std::size_t n = dice.once_in(2) ? dice.below(3) : 0; n > 0; --n)
        controls.push_back(ids[dice.below(i)]);
    }
    graph.set_inputs(ids[i], inputs);
    graph.set_controls(ids[i], controls);
  }
  graph.set_parameters(std::move(parameters));
  if (nodes > 0) {
    for (std::size_t n = dice.below(4); n > 0; --n) {
      graph.add_result({ids[dice.below(nodes)], static_cast<std::uint32_t>(dice.below(3))});
    }
  }
  return graph;
}

// A few random ops on f32[?,4] values, with regions down to the given depth.
inline void add_random_nodes(Dice& dice, GraphBuilder& b, std::vector<Value>& values,
                             const std::vector<VariableRef>& variables, std::size_t nodes, int depth) {
  const auto any = [&] { return dice.one_of(values); };
  const auto region = [&] {
    std::vector<Value> inner = values;
    add_random_nodes(dice, b, inner, variables, 1 + dice.below(4), depth - 1);
    return std::vector<Value>{inner.back()};
  };
  for (std::size_t i = 0; i < nodes; ++i) {
    switch (dice.below(depth > 0 ? 9 : 7)) {
      case 0: values.push_back(any() + any()); break;
      case 1: values.push_back(any() * any()); break;
      case 2: values.push_back(relu(any())); break;
      case 3: values.push_back(any() - static_cast<float>(dice.below(5))); break;
      case 4: values.push_back(any() + b.read(dice.one_of(variables))); break;
      case 5: b.assign_add(dice.one_of(variables), sum(any(), {0}, false)); break;
      case 6: {
        const auto device = b.device(dice.once_in(2) ? "cpu:1" : "/device:GPU:2");
        values.push_back(identity(any()));
        break;
      }
      case 7: {
        const Value predicate = less(sum(any()), sum(any()));
        values.push_back(cond(predicate, region, region)[0]);
        break;
      }
      default: {
        const std::vector<Value> initial = {any()};
        values.push_back(while_loop(
            initial, [&](std::span<const Value> carried) { return less(sum(carried[0]), 3.0F); },
            [&](std::span<const Value> carried) {
              std::vector<Value> inner = {carried[0]};
              add_random_nodes(dice, b, inner, variables, 1 + dice.below(3), depth - 1);
              return std::vector<Value>{inner.back()};
            })[0]);
        break;
      }
    }
  }
}

inline Graph random_valid_graph(std::uint64_t seed, std::size_t nodes) {
  Dice dice(seed);
  GraphBuilder b;
  std::vector<Value> values = {b.placeholder("x", DType::kF32, {kUnknown, 4}),
                               b.placeholder("größe", DType::kF32, {kUnknown, 4})};
  const std::vector<VariableRef> variables = {b.variable("w", Tensor::zeros({4})),
                                              b.variable("bias term", Tensor::full(DType::kF32, {4}, 0.1))};
  add_random_nodes(dice, b, values, variables, nodes, 2);
  b.result(values.back());
  return b.finish();
}

}  // namespace lockstep::testing
