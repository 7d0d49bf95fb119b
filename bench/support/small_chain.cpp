#include "support/small_chain.h"

#include <utility>

#include "lockstep/core/random.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/compile.h"

namespace lockstep::bench {

Graph small_chains(int chains, int ops, std::int64_t elements) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {elements});
  std::vector<Value> ends;
  for (int chain = 0; chain < chains; ++chain) {
    Value a = x;
    for (int i = 0; i < ops; ++i) {
      switch (i % 4) {
        case 0: a = a * 0.5F; break;
        case 1: a = a + x; break;
        case 2: a = relu(a); break;
        default: a = a - 0.25F; break;
      }
    }
    ends.push_back(a);
  }
  Value sum = ends[0];
  for (std::size_t i = 1; i < ends.size(); ++i) sum = sum + ends[i];
  b.result(sum);
  return b.finish();
}

Tensor random_floats(std::int64_t elements) {
  Tensor tensor = Tensor::empty(DType::kF32, {elements});
  const RandomStream stream{.seed = 1, .key = 1};
  std::uint64_t i = 0;
  for (float& element : tensor.data<float>()) element = Philox::to_unit_float(stream.block(i++)[0]) * 4 - 2;
  return tensor;
}

Runner::Runner(Graph graph, const Runtime& runtime, const Tensor& feed)
    : program_(compile(std::move(graph), runtime)),
      feeds_{feed},
      results_{Tensor::empty(feed.dtype(), feed.shape())} {
  run(1);
}

void Runner::run(std::size_t times, const RunOptions& options) {
  for (std::size_t i = 0; i < times; ++i) program_.run_into(feeds_, results_, options);
}

}  // namespace lockstep::bench
