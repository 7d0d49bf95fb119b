// graph/train/schedules.cpp - learning rates that change from step to step.
#include "lockstep/graph/train/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {

LearningRate::LearningRate(double number, int) : number_(number) {
  if (!std::isfinite(number) || number < 0) {
    throw InvalidArgument(str("the learning rate is ", number, "; it must be finite, and 0 or more"));
  }
}

Value LearningRate::at(GraphBuilder& builder, const VariableRef& iterations, SourceSite site) const {
  if (make_) return make_(builder);
  if (schedule_) return schedule_(builder.read(iterations, site));
  if (std::isnan(number_)) {
    throw InvalidArgument(
        "the learning rate is an empty function; give a number, or a schedule that makes a value");
  }
  // f64 is exact for variables of every dtype: the update rounds it to what it computes in.
  return builder.constant(Tensor::scalar(number_), "learning_rate", site);
}

namespace schedules {

namespace {

void check_rate(std::string_view schedule, std::string_view what, double rate, const SourceSite& site) {
  if (std::isfinite(rate) && rate >= 0) return;
  throw InvalidArgument(str(schedule, ": ", what, " is ", rate, "; it must be finite, and 0 or more"),
                        place_of_call(schedule, site));
}

void check_steps(std::string_view schedule, std::string_view what, std::int64_t steps, std::int64_t least,
                 const SourceSite& site) {
  if (steps >= least) return;
  throw InvalidArgument(str(schedule, ": ", what, " is ", steps, "; it must be ", least, " or more"),
                        place_of_call(schedule, site));
}

double real(std::int64_t steps) { return static_cast<double>(steps); }

Value real(const Value& iterations) { return cast(iterations, DType::kF64); }

// A schedule whose nodes carry this line.
template <class F>
Schedule at_line(const SourceSite& site, F rate) {
  return [site, rate = std::move(rate)](const Value& iterations) {
    const auto made_at = internal::BuilderAccess(iterations.builder()).made_at(site);
    return rate(iterations);
  };
}

}  // namespace

Schedule constant(double rate, SourceSite site) {
  check_rate("constant", "the rate", rate, site);
  return at_line(site, [rate](const Value& iterations) {
    return iterations.builder().constant(Tensor::scalar(rate), "learning_rate");
  });
}

Schedule exponential_decay(const ExponentialDecay& options, SourceSite site) {
  check_rate("exponential_decay", "initial", options.initial, site);
  check_rate("exponential_decay", "factor", options.factor, site);
  check_steps("exponential_decay", "steps", options.steps, 1, site);
  return at_line(site, [options](const Value& iterations) {
    const Value periods = real(iterations) / real(options.steps);
    const Value exponent = options.staircase ? floor(periods) : periods;
    return options.initial * pow(options.factor, exponent);
  });
}

Schedule polynomial_decay(const PolynomialDecay& options, SourceSite site) {
  check_rate("polynomial_decay", "initial", options.initial, site);
  check_rate("polynomial_decay", "final", options.final, site);
  check_rate("polynomial_decay", "power", options.power, site);
  check_steps("polynomial_decay", "steps", options.steps, 1, site);
  return at_line(site, [options](const Value& iterations) {
    const Value done = minimum(real(iterations) / real(options.steps), 1.0);
    const Value left = 1.0 - done;
    const Value share = options.power == 1 ? left : pow(left, options.power);
    return share * (options.initial - options.final) + options.final;
  });
}

Schedule cosine_decay(const CosineDecay& options, SourceSite site) {
  check_rate("cosine_decay", "initial", options.initial, site);
  check_rate("cosine_decay", "final", options.final, site);
  check_steps("cosine_decay", "steps", options.steps, 1, site);
  check_steps("cosine_decay", "warmup", options.warmup, 0, site);
  return at_line(site, [options](const Value& iterations) {
    const Value t = real(iterations);
    const Value since = clip(t - real(options.warmup), 0, real(options.steps));
    const Value wave = cos(since * (std::numbers::pi / real(options.steps)));
    const Value decayed = (wave + 1.0) * ((options.initial - options.final) / 2) + options.final;
    if (options.warmup == 0) return decayed;
    const Value rising = (t + 1.0) * (options.initial / (real(options.warmup) + 1));
    return where(less(t, real(options.warmup)), rising, decayed);
  });
}

Schedule piecewise_constant(std::vector<std::int64_t> boundaries, std::vector<double> values,
                            SourceSite site) {
  if (values.size() != boundaries.size() + 1) {
    throw InvalidArgument(
        str("piecewise_constant: ", counted(boundaries.size(), "boundary needs", "boundaries need"), " ",
            counted(boundaries.size() + 1, "value"), ", got ", values.size()),
        place_of_call("piecewise_constant", site));
  }
  const auto falls = std::ranges::adjacent_find(boundaries, std::ranges::greater_equal());
  if (falls != boundaries.end()) {
    throw InvalidArgument(
        str("piecewise_constant: the boundaries must rise, got ", *falls, " before ", *(falls + 1)),
        place_of_call("piecewise_constant", site));
  }
  for (const double value : values) check_rate("piecewise_constant", "a value", value, site);
  return at_line(site,
                 [boundaries = std::move(boundaries), values = std::move(values)](const Value& iterations) {
                   GraphBuilder& builder = iterations.builder();
                   Value rate = builder.constant(values[0]);
                   for (std::size_t i = 0; i < boundaries.size(); ++i) {
                     const Value reached = greater_equal(iterations, boundaries[i]);
                     rate = where(reached, values[i + 1], rate);
                   }
                   return rate;
                 });
}

Schedule inverse_sqrt(const InverseSqrt& options, SourceSite site) {
  check_rate("inverse_sqrt", "peak", options.peak, site);
  check_steps("inverse_sqrt", "warmup", options.warmup, 1, site);
  return at_line(site, [options](const Value& iterations) {
    const Value done = (real(iterations) + 1.0) / real(options.warmup);
    const Value falling = rsqrt(done);
    return minimum(done, falling) * options.peak;
  });
}

}  // namespace schedules

}  // namespace lockstep
