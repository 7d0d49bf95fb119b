// A transformer block learns to copy: it reads eight symbols and a mark, and must say the eight symbols
// again.
//
//   tokens [n,16] --> embed + position --> norm --> attention --> + --> norm --> feed forward --> + --> logits
//                                      |                          ^ |                             ^
//                                      +--------------------------+ +-----------------------------+
//
// Usage: 08_copy_task [--quick]     (--quick: a few steps, no bar to clear)
#include <cmath>
#include <iomanip>
#include <iostream>
#include <random>
#include <string_view>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

constexpr std::int64_t kSymbols = 10, kMark = kSymbols, kLength = 8;
constexpr std::int64_t kSequence = 2 * kLength, kWidth = 64, kHeads = 4, kBatch = 64;

class Model {
 public:
  explicit Model(GraphBuilder& b) : b_(b) {}

  // The logits of the symbol that follows each token.
  Value operator()(const Value& tokens) {
    const Value places = weight("positions", {kSequence, kWidth}, 0.02);
    Value x = gather(weight("symbols", {kSymbols + 1, kWidth}, 0.02), tokens) + places;
    x = x + attention(norm("norm1", x));
    x = x + dense("out", gelu(dense("in", norm("norm2", x), 4 * kWidth)), kWidth);
    return dense("logits", norm("norm3", x), kSymbols);
  }
  const std::vector<VariableRef>& variables() const { return variables_; }

 private:
  Value variable(const std::string& name, const Tensor& initial) {
    variables_.push_back(b_.variable(name, initial));
    return b_.read(variables_.back());
  }
  Value weight(const std::string& name, const Shape& shape, double stddev) {
    return variable(name, initializers::normal(shape, variables_.size() + 1, {0, stddev}));
  }
  Value norm(const std::string& name, const Value& x) {
    const Value scale = variable(name + "/scale", initializers::constant({kWidth}, 1));
    return layer_norm(x, scale, variable(name + "/shift", initializers::zeros({kWidth})));
  }
  Value dense(const std::string& name, const Value& x, std::int64_t width) {
    const std::int64_t from = x.shape().dim(-1);
    const Value w = weight(name + "/w", {from, width}, 1 / std::sqrt(static_cast<double>(from)));
    return matmul(x, w) + variable(name + "/b", initializers::zeros({width}));
  }
  Value attention(const Value& x) {
    const auto heads = [&](const std::string& name) {  // [n,s,w] -> [n,h,s,w/h]
      return transpose(reshape(dense(name, x, kWidth), {-1, kSequence, kHeads, kWidth / kHeads}),
                       {0, 2, 1, 3});
    };
    const Value q = heads("query"), k = heads("key"), v = heads("value");
    const Value scores = matmul(q, k, false, true) * (1 / std::sqrt(kWidth / kHeads));
    const Value mixed = matmul(softmax(scores + mask()), v);
    return dense("mix", reshape(transpose(mixed, {0, 2, 1, 3}), {-1, kSequence, kWidth}), kWidth);
  }
  // Nobody looks ahead.
  Value mask() {
    Tensor mask = Tensor::zeros({kSequence, kSequence});
    for (std::int64_t i = 0; i < kSequence * kSequence; ++i) {
      if (i % kSequence > i / kSequence) mask.data<float>()[static_cast<std::size_t>(i)] = -1e9F;
    }
    return b_.constant(mask, "mask");
  }

  GraphBuilder& b_;
  std::vector<VariableRef> variables_;
};

Graph training_step() {
  GraphBuilder b;
  const Value tokens = b.placeholder("tokens", DType::kI64, {kBatch, kSequence});
  const Value copy = b.placeholder("copy", DType::kI64, {kBatch, kLength});
  Model model(b);
  const Value answers = slice(model(tokens), {0, kLength, 0}, {kBatch, kSequence, kSymbols});
  const Value loss = mean(softmax_cross_entropy(answers, copy));
  Adam(3e-3).minimize(loss, model.variables());
  b.result(loss);
  b.result(mean(cast(equal(argmax(answers, -1), copy), DType::kF32)));
  return b.finish();
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const Program step = compile(optimize(training_step()), Runtime());
  std::mt19937_64 bits(3);
  Tensor tokens = Tensor::empty(DType::kI64, {kBatch, kSequence}),
         copy = Tensor::empty(DType::kI64, {kBatch, kLength});
  double right = 0;
  for (int i = 1; i <= (quick ? 5 : 600) && right < 0.999; ++i) {
    for (std::size_t at = 0; at < static_cast<std::size_t>(kBatch * kLength); ++at) {
      const std::size_t row = at / kLength * kSequence, column = at % kLength;
      const auto symbol = static_cast<std::int64_t>(bits() % kSymbols);
      copy.data<std::int64_t>()[at] = symbol;
      // The symbols, the mark, and all symbols but the last again.
      tokens.data<std::int64_t>()[row + column] = symbol;
      if (column + 1 < kLength) tokens.data<std::int64_t>()[row + kLength + 1 + column] = symbol;
      tokens.data<std::int64_t>()[row + kLength] = kMark;
    }
    const std::vector<Tensor> results = step.run({{"tokens", tokens}, {"copy", copy}});
    right = results[1].item();
    if (i % 50 == 0 || right >= 0.999) {
      std::cout << "step " << std::setw(3) << i << std::fixed << std::setprecision(3) << "   loss "
                << results[0].item() << "   copied right " << std::setprecision(1) << 100 * right << " %"
                << std::endl;
    }
  }
  return quick || right >= 0.99 ? 0 : 1;
}
