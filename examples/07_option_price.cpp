// Monte-Carlo: the price of a call option, with its confidence interval, from as many runs of one step as it
// takes.
//
//   normals [n] --> price at expiry --> discounted payoff --> sum, sum of squares --> added to two variables
//
// Every run draws new numbers: they follow from the seed, the op's key and the step counter alone, so that
// the same program gives the same price on any number of threads.
#include <cmath>
#include <iomanip>
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

struct Option {
  double spot = 100, strike = 105, rate = 0.03, volatility = 0.2, years = 1;
};

Graph simulation(const Option& o, std::int64_t paths) {
  GraphBuilder b;
  const VariableRef total = b.variable("total", Tensor::scalar(0.0));
  const VariableRef squares = b.variable("squares", Tensor::scalar(0.0));
  const Value z = random_normal(b, {DType::kF64, {paths}});
  const double drift = (o.rate - 0.5 * o.volatility * o.volatility) * o.years;
  const auto payoff = [&](const Value& normal) {
    const Value price = o.spot * exp(drift + o.volatility * std::sqrt(o.years) * normal);
    return std::exp(-o.rate * o.years) * maximum(price - o.strike, 0.0);
  };
  const Value up = payoff(z);
  const Value down = payoff(-z);  // the mirror image of every path: the pair varies less than two would
  const Value pair = 0.5 * (up + down);
  b.assign_add(total, sum(pair));
  b.assign_add(squares, sum(square(pair)));
  return b.finish();
}

// Black and Scholes, 1973.
double closed_form(const Option& o) {
  const double deviation = o.volatility * std::sqrt(o.years);
  const double d1 =
      (std::log(o.spot / o.strike) + (o.rate + 0.5 * o.volatility * o.volatility) * o.years) / deviation;
  const auto cumulative = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  return o.spot * cumulative(d1) - o.strike * std::exp(-o.rate * o.years) * cumulative(d1 - deviation);
}

}  // namespace

int main() {
  constexpr std::int64_t kPaths = 50000;
  const Option option;
  const Program step = compile(optimize(simulation(option, kPaths)), Runtime({.seed = 2024}));
  double price = 0, half_width = 1, pairs = 0;
  for (int runs = 1; half_width > 0.02; ++runs) {
    step.run();
    pairs = static_cast<double>(runs * kPaths);
    price = step.variables().value("total").item() / pairs;
    const double variance = step.variables().value("squares").item() / pairs - price * price;
    half_width = 1.96 * std::sqrt(variance / pairs);
  }
  const double exact = closed_form(option);
  std::cout << std::fixed << std::setprecision(3) << "simulated   " << price << " +- " << half_width
            << "  (95 %, " << std::setprecision(0) << pairs << " pairs of paths)\n"
            << std::setprecision(3) << "closed form " << exact << '\n';
  return std::abs(price - exact) < 1.5 * half_width ? 0 : 1;
}
