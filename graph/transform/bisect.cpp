// graph/transform/bisect.cpp - bisection by meaning: which pass changed what the graph computes?
#include "lockstep/graph/transform/bisect.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

namespace lockstep {
namespace {

// What a graph does: results and variables after each step.
struct Behaviour {
  struct Step {
    std::vector<Tensor> results;
    std::map<std::string, Tensor> variables;
  };
  std::vector<Step> steps;
};

Behaviour observe(const Graph& graph, const BisectOptions& options) {
  Interpreter interpreter(graph, {.seed = options.seed});
  Behaviour behaviour;
  for (int step = 0; step < options.steps; ++step) {
    std::vector<Tensor> results = interpreter.run(options.feeds);
    behaviour.steps.push_back({std::move(results), interpreter.variables()});
  }
  return behaviour;
}

std::optional<Difference> compare(const Behaviour& before, const Behaviour& after, double tolerance) {
  for (std::size_t s = 0; s < before.steps.size(); ++s) {
    const auto named = [&](Difference difference, std::string what) {
      difference.what = std::move(what);
      difference.step = static_cast<int>(s);
      return std::optional(std::move(difference));
    };
    const Behaviour::Step& a = before.steps[s];
    const Behaviour::Step& b = after.steps[s];
    if (a.results.size() != b.results.size()) {
      return named(Difference{{}, -1, std::to_string(a.results.size()), std::to_string(b.results.size()), 0},
                   "the number of results");
    }
    for (std::size_t i = 0; i < a.results.size(); ++i) {
      if (auto found = first_difference(a.results[i], b.results[i], tolerance))
        return named(*found, str("result ", i));
    }
    // Variables that only one side has are added or removed by the passes: not a difference.
    for (const auto& [name, value] : a.variables) {
      const auto other = b.variables.find(name);
      if (other == b.variables.end()) continue;
      if (auto found = first_difference(value, other->second, tolerance)) {
        return named(*found, str("variable '", name, "'"));
      }
    }
  }
  return std::nullopt;
}

class Bisector final : public PassInstrumentation {
 public:
  Bisector(const Graph& graph, const BisectOptions& options)
      : options_(options), expected_(observe(graph, options)) {}

  void after_pass(const Pass& pass, const Graph& graph, std::size_t index,
                  const PassReport& report) override {
    if (found || report.outcome == PassOutcome::kUnchanged) return;
    std::optional<Difference> difference;
    try {
      difference = compare(expected_, observe(graph, options_), options_.tolerance);
    } catch (const std::bad_alloc&) {
      throw;  // says nothing about the graph
    } catch (const std::exception& error) {
      difference = Difference{"the run", -1, "succeeds", describe(error), 0};
    }
    if (difference) found = BisectFinding{std::string(pass.name()), index, std::move(*difference)};
  }

  std::optional<BisectFinding> found;

 private:
  const BisectOptions& options_;
  Behaviour expected_;
};

double as_double(F16 value) { return static_cast<double>(static_cast<float>(value)); }
double as_double(BF16 value) { return static_cast<double>(static_cast<float>(value)); }
template <class T>
double as_double(T value) {
  return static_cast<double>(value);
}

template <class T>
bool agree(const T& a, const T& b, double tolerance) {
  using Bytes = std::array<std::byte, sizeof(T)>;
  if (std::bit_cast<Bytes>(a) == std::bit_cast<Bytes>(b)) return true;
  if (tolerance == 0) return false;
  const double left = as_double(a);
  const double right = as_double(b);
  if (std::isnan(left) || std::isnan(right)) return std::isnan(left) && std::isnan(right);
  if (std::isinf(left) || std::isinf(right)) return left == right;
  return std::abs(left - right) <= tolerance * std::max({1.0, std::abs(left), std::abs(right)});
}

template <class T>
std::string show(const T& value) {
  std::ostringstream out;
  out.precision(17);
  if constexpr (std::is_integral_v<T>) {
    out << +value;
  } else {
    out.precision(std::is_same_v<T, double> ? 17 : 9);
    out << as_double(value);
  }
  return std::move(out).str();
}

}  // namespace

std::optional<Difference> first_difference(const Tensor& before, const Tensor& after, double tolerance) {
  if (before.spec() != after.spec()) {
    return Difference{{}, -1, to_string(before.spec()), to_string(after.spec()), 0};
  }
  return visit_dtype(before.dtype(), [&]<class T>(T) -> std::optional<Difference> {
    const std::span<const T> a = before.data<T>();
    const std::span<const T> b = after.data<T>();
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (agree(a[i], b[i], tolerance)) continue;
      return Difference{{}, static_cast<std::int64_t>(i), show(a[i]), show(b[i]), 0};
    }
    return std::nullopt;
  });
}

std::string BisectFinding::to_string() const {
  return str(pass, ": ", difference.what, " differs",
             difference.element < 0 ? std::string() : str(" in element ", difference.element), ": ",
             difference.before, " before, ", difference.after, " after (step ", difference.step, ")");
}

BisectReport bisect(const Graph& graph, PassPipeline& pipeline, const BisectOptions& options) {
  if (options.steps < 1)
    throw InvalidArgument(str("BisectOptions::steps must be at least 1, got ", options.steps));
  Bisector bisector(graph, options);
  Graph work = graph;
  BisectReport report;
  report.pipeline = pipeline.run(work, {.instrumentation = {&bisector}});
  report.found = std::move(bisector.found);
  return report;
}

}  // namespace lockstep
