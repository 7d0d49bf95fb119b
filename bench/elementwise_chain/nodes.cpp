#include "chain.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep::bench {

Value chain_of_nodes(Chain chain, const Value& x) {
  Value a = relu(x * 1.5F + 0.25F) - 0.5F;
  a = minimum(chain == Chain::kCheap ? abs(a) : tanh(a), 4.0F);
  a = square(a) * x;
  a = maximum(chain == Chain::kCheap ? neg(a) : sigmoid(a), -8.0F);
  return (a + x) * 0.75F;
}

}  // namespace lockstep::bench
