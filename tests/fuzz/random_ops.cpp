// Any op on any inputs with any attributes, also inside choices, loops and replicas: refused with Error where the graph
// is built, or a graph that can be written, read, interpreted, compiled, optimized, differentiated and run, where kernels
// may refuse contents with Error. The bytes choose ops, inputs, attributes and contents. Where interpreter and program both run it, they agree to the bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "fuzz/fuzz_graph.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/gradients.h"

using namespace lockstep;

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxElements = 1 << 14;  // of a value that is computed

class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool over() const { return at_ >= size_; }
  std::uint8_t byte() { return over() ? 0 : data_[at_++]; }
  std::size_t below(std::size_t count) {
    std::size_t value = byte();
    if (count > 256) value = value << 8U | byte();
    return count == 0 ? 0 : value % count;
  }
  template <class List>
  const auto& of(const List& list) {
    return list[below(std::size(list))];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

constexpr std::int64_t kDims[] = {0, 1, 2, 3, 4, 5, 8, 17};
constexpr std::int64_t kInts[] = {0,         1,     2,         3,         4,      5,         -1,
                                  -2,        7,     8,         16,        64,     100,       1 << 20,
                                  1LL << 31, kMost, kMost - 1, kMost / 2, kLeast, -kMost / 2};
constexpr std::int64_t kSmall[] = {0, 1, 2, 3, -1, -2, 5};
constexpr double kFloats[] = {0,
                              1,
                              -1,
                              0.5,
                              2,
                              1e-30,
                              1e-300,
                              1e30,
                              1e300,
                              3.5,
                              -7,
                              std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()};
constexpr const char* kStrings[] = {"sum",  "mean",  "max",      "min", "prod",
                                    "same", "valid", "explicit", "",    "x"};
constexpr const char* kVariables[] = {"v", "w", "s", "n", "nowhere"};

Shape shape_from(Choices& choose, bool may_be_unknown) {
  std::vector<std::int64_t> dims(choose.below(5));
  for (std::int64_t& dim : dims) dim = may_be_unknown && choose.below(6) == 0 ? kUnknown : choose.of(kDims);
  return Shape(std::span<const std::int64_t>(dims));
}

Tensor tensor_from(Choices& choose, DType dtype, const Shape& shape) {
  Tensor tensor = Tensor::zeros(dtype, shape);
  const std::size_t kind = choose.below(4);
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    double value = static_cast<double>(i % 7) - 2;
    if (kind == 1) value = choose.of(kFloats);
    if (kind == 2) value = static_cast<double>(choose.of(kSmall));
    visit_dtype(dtype, [&]<class T>(T) {
      if constexpr (std::is_same_v<T, bool>) {
        static_cast<std::uint8_t*>(tensor.raw())[i] = value > 0 ? 1 : 0;
      } else if constexpr (std::is_integral_v<T>) {
        const std::int64_t whole = kind == 1 ? choose.of(kInts) : static_cast<std::int64_t>(value);
        static_cast<T*>(tensor.raw())[i] = static_cast<T>(whole);
      } else {
        static_cast<T*>(tensor.raw())[i] = T(static_cast<float>(value));
      }
    });
  }
  return tensor;
}

AttributeValue attribute_from(Choices& choose, AttributeType type) {
  switch (type) {
    case AttributeType::kBool: return choose.below(2) == 1;
    case AttributeType::kInt: return choose.below(2) == 1 ? choose.of(kInts) : choose.of(kSmall);
    case AttributeType::kFloat: return choose.of(kFloats);
    case AttributeType::kString: return std::string(choose.of(kStrings));
    case AttributeType::kDType: return choose.of(kAllDTypes);
    case AttributeType::kShape: {
      if (choose.below(4) != 0) return shape_from(choose, false);
      return Shape{choose.below(2) == 0 ? 1LL << 40 : 3, choose.of(kDims)};
    }
    case AttributeType::kTensor: return tensor_from(choose, choose.of(kAllDTypes), shape_from(choose, false));
    case AttributeType::kVariable: return VariableRef{choose.of(kVariables)};
    case AttributeType::kInts: {
      std::vector<std::int64_t> list(choose.below(6));
      const bool wild = choose.below(3) == 0;
      for (std::int64_t& one : list) one = wild ? choose.of(kInts) : choose.of(kSmall);
      return list;
    }
    case AttributeType::kFloats: {
      std::vector<double> list(choose.below(5));
      for (double& one : list) one = choose.of(kFloats);
      return list;
    }
    case AttributeType::kStrings: return std::vector<std::string>(choose.below(3), choose.of(kStrings));
    case AttributeType::kLambda: break;
  }
  return std::int64_t{0};
}

const std::vector<const OpDef*>& all_ops() {
  static const std::vector<const OpDef*> ops = [] {
    std::vector<const OpDef*> list;
    for (const std::string& name : OpRegistry::global().names()) {
      const OpDef& op = OpRegistry::global().get(name);
      const bool made_by_hand = op.regions == 0 && name != "placeholder" && name != "call";
      if (made_by_hand) list.push_back(&op);
    }
    return list;
  }();
  return ops;
}

// By the dimensions that are known: those that are fed are small.
bool is_small(const TensorSpec& spec) {
  std::int64_t elements = 1;
  for (const std::int64_t dim : spec.shape.dims()) {
    if (dim != kUnknown && __builtin_mul_overflow(elements, dim, &elements)) return false;
  }
  return elements <= kMaxElements;
}

void add_op(GraphBuilder& b, std::vector<Value>& values, Choices& choose) {
  const OpDef& op = *choose.of(all_ops());
  std::vector<Value> inputs(std::min(op.inputs.max, op.inputs.min + choose.below(4)));
  for (Value& input : inputs) input = choose.of(values);
  std::vector<Attribute> attributes;
  for (const AttributeSpec& spec : op.attributes) {
    if (spec.required ? choose.below(32) == 31 : choose.below(2) == 0) continue;
    attributes.push_back({spec.name, attribute_from(choose, spec.type)});
  }
  try {
    for (const Value& value : b.op(op.name, inputs, std::move(attributes))) {
      if (is_small(value.spec())) values.push_back(value);
    }
  } catch (const Error&) {
  }
}

void add_node(GraphBuilder& b, std::vector<Value>& values, Choices& choose, int depth);

// A few nodes inside a region, over its parameters and what the enclosing graphs have.
std::vector<Value> inside(GraphBuilder& b, const std::vector<Value>& outside,
                          std::span<const Value> parameters, Choices& choose, int depth) {
  std::vector<Value> values = outside;
  values.insert(values.end(), parameters.begin(), parameters.end());
  for (std::size_t i = 0, count = choose.below(5); i < count; ++i) add_node(b, values, choose, depth + 1);
  return values;
}

std::vector<Value> some_of(const std::vector<Value>& values, Choices& choose) {
  std::vector<Value> chosen(1 + choose.below(3));
  for (Value& one : chosen)
    one = values[values.size() - 1 - choose.below(std::min<std::size_t>(values.size(), 8))];
  return chosen;
}

// Nodes whose regions are made of such nodes: a choice, a bounded loop, replicas.
void add_region(GraphBuilder& b, std::vector<Value>& values, Choices& choose, int depth) {
  const std::size_t kind = choose.below(3);
  const std::vector<Value> given = some_of(values, choose);
  std::vector<Value> made;
  if (kind == 0) {
    std::vector<TensorSpec> specs;
    const BranchFn then_branch = [&] {
      const std::vector<Value> results = some_of(inside(b, values, {}, choose, depth), choose);
      for (const Value& result : results) specs.push_back(result.spec());
      return results;
    };
    const BranchFn else_branch = [&] {
      const std::vector<Value> local = inside(b, values, {}, choose, depth);
      std::vector<Value> results;
      for (const TensorSpec& spec : specs) {
        const auto fits =
            std::find_if(local.rbegin(), local.rend(), [&](const Value& one) { return one.spec() == spec; });
        results.push_back(fits == local.rend() ? local.back() : *fits);
      }
      return results;
    };
    made = cond(not_equal(sum(cast(given[0], DType::kF32)), 0.0F), then_branch, else_branch);
  } else if (kind == 1) {
    const LoopConditionFn condition = [&](std::span<const Value> carried) {
      return less(sum(cast(carried[0], DType::kF32)), choose.of(kFloats));
    };
    const LoopBodyFn body = [&](std::span<const Value> carried) {
      const std::vector<Value> local = inside(b, values, carried, choose, depth);
      std::vector<Value> results;
      for (const Value& one : carried) {
        const auto fits = std::find_if(local.rbegin(), local.rend(),
                                       [&](const Value& other) { return other.spec() == one.spec(); });
        results.push_back(fits == local.rend() ? one : *fits);
      }
      return results;
    };
    made = while_loop(given, condition, body, {.max_trips = static_cast<std::int64_t>(choose.below(4))});
  } else {
    const auto replicas = static_cast<std::int64_t>(1 + choose.below(3));
    const std::vector<std::vector<Value>> per_replica = {
        std::vector<Value>(static_cast<std::size_t>(replicas), given[0])};
    const auto results = replicated(b, replicas, given, per_replica, [&](std::span<const Value> parameters) {
      return some_of(inside(b, values, parameters, choose, depth), choose);
    });
    for (const std::vector<Value>& of_replicas : results)
      made.insert(made.end(), of_replicas.begin(), of_replicas.end());
  }
  for (const Value& value : made) {
    if (is_small(value.spec())) values.push_back(value);
  }
}

void add_node(GraphBuilder& b, std::vector<Value>& values, Choices& choose, int depth) {
  if (depth < 2 && choose.below(8) == 7) {
    try {
      add_region(b, values, choose, depth);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) fuzz::report(error.what());
    }
    return;
  }
  add_op(b, values, choose);
}

std::string last_refusal;

std::optional<std::vector<Tensor>> try_to(const std::function<std::vector<Tensor>()>& run) {
  try {
    return run();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) fuzz::report(error.what());
    last_refusal = error.what();
    return std::nullopt;
  }
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const char* what) {
  if (a.size() != b.size()) fuzz::report(std::string(what) + " gives another number of results");
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].spec() != b[i].spec()) fuzz::report(std::string(what) + " gives another spec");
    if (a[i].num_bytes() > 0 && std::memcmp(a[i].raw(), b[i].raw(), a[i].num_bytes()) != 0)
      fuzz::report(std::string(what) + " gives other bits");
  }
}

bool all_small(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    for (const TensorSpec& spec : node.outputs()) {
      if (!is_small(spec)) return false;
    }
    if (!std::ranges::all_of(node.regions(), all_small)) return false;
  }
  return true;
}

void run_everywhere(const Graph& graph, const std::vector<Tensor>& feeds) {
  static const Runtime runtime({.threads = 2});
  for (const GraphFormat format : {GraphFormat::kText, GraphFormat::kBinary}) {
    const std::string difference = structural_difference(graph, read_graph(write_graph(graph, format)));
    if (!difference.empty()) fuzz::report("after writing and reading: " + difference);
  }
  const auto run_program = [&](Graph copy) {
    return try_to([&] {
      CompileOptions options;
      options.variables = std::make_shared<VariableStore>();
      options.inline_seconds = 0;
      options.replicas_in_turn = true;  // as the interpreter runs them
      return compile(std::move(copy), runtime, options).run(feeds);
    });
  };
  const auto interpreted = try_to([&] { return Interpreter(graph).run(feeds); });
  const auto ran = run_program(graph);
  if (interpreted && ran) expect_same(*interpreted, *ran, "the program");
  const auto optimized = run_program(optimize(graph));
  if (ran && !optimized) fuzz::report("the optimized program refuses what the other runs: " + last_refusal);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Choices choose(data, size);
  GraphBuilder b;
  std::vector<Value> values;
  std::vector<Value> sources;
  std::vector<Tensor> feeds;
  for (std::size_t i = 0, count = 1 + choose.below(3); i < count; ++i) {
    const DType dtype = choose.below(2) == 0 ? DType::kF32 : choose.of(kAllDTypes);
    const Shape shape = shape_from(choose, true);
    sources.push_back(b.placeholder("x" + std::to_string(i), dtype, shape));
    std::vector<std::int64_t> dims(shape.dims().begin(), shape.dims().end());
    for (std::int64_t& dim : dims) dim = dim == kUnknown ? choose.of(kDims) : dim;
    feeds.push_back(tensor_from(choose, dtype, Shape(std::span<const std::int64_t>(dims))));
  }
  values = sources;
  for (std::size_t i = 0, count = choose.below(3); i < count; ++i)
    values.push_back(b.constant(tensor_from(choose, choose.of(kAllDTypes), shape_from(choose, false))));
  const Shape of_variables = shape_from(choose, false);
  for (const char* name : {"v", "w", "s"}) b.variable(name, tensor_from(choose, DType::kF32, of_variables));
  b.variable("n", Tensor::scalar(std::int64_t{0}));
  for (int i = 0; i < 24 && !choose.over(); ++i) add_node(b, values, choose, 0);
  if (choose.below(2) == 1) {
    Value target;
    for (const Value& value : values) {
      if (is_floating(value.spec().dtype)) target = value;
    }
    std::vector<Value> of;
    for (const Value& source : sources) {
      if (is_floating(source.spec().dtype)) of.push_back(source);
    }
    try {
      if (target.valid() && !of.empty()) {
        for (const Gradient& gradient : gradients(sum(target), of)) {
          if (gradient.valid()) values.push_back(to_dense(gradient));
        }
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) fuzz::report(error.what());
    }
  }
  for (const Value& value : values) {
    if (choose.below(4) != 3) b.result(value);  // the others may be dead
  }
  try {
    const Graph graph = b.finish();
    if (!all_small(graph)) return 0;
    run_everywhere(graph, feeds);
  } catch (const VerifyError& error) {
    fuzz::report(error.what());  // what the builder takes is valid
  }
  return 0;
}
