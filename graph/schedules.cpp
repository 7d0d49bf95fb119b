#include "lockstep/graph/schedules.h"

#include <cmath>

#include "lockstep/core/error.h"

namespace lockstep {

LearningRate::LearningRate(double number, int) : number_(number) {
  if (!std::isfinite(number) || number < 0) {
    throw InvalidArgument(str("the learning rate is ", number, "; it must be finite, and 0 or more"));
  }
}

Value LearningRate::at(GraphBuilder& builder, const VariableRef& iterations) const {
  if (schedule_) return schedule_(builder.read(iterations));
  if (make_) return make_(builder);
  // f64 is exact for variables of every dtype: the update rounds it to what it computes in.
  return builder.constant(Tensor::scalar(number_), "learning_rate");
}

}  // namespace lockstep
