// bench/gpu/models.h - the models that a card trains, and in which arithmetic.
//
//   const Case what = parse_case("mlp-tf32");               // mlp or block, tf32 or bf16
//   Value loss = train(what, x, y);                         // of Values with the dtypes and shapes of batch_of(what, n)
//
// In bf16 weights, gradients and activations are bf16; the loss is computed in f32, and so are the optimizer's slots. models.py
// has the same sizes, learning rates and ranges of initial weights.
#pragma once

#include <cstdint>
#include <string>

#include "support/models.h"

namespace lockstep::bench {

struct Case {
  std::string model;
  DType dtype = DType::kF32;
  bool tf32 = false;
};

inline Case parse_case(const std::string& text) {
  const std::size_t dash = text.find('-');
  const std::string model = text.substr(0, dash),
                    arithmetic = dash == std::string::npos ? "" : text.substr(dash + 1);
  if ((model != "mlp" && model != "block") || (arithmetic != "tf32" && arithmetic != "bf16"))
    throw InvalidArgument(str("no case is called '", text, "': expected mlp or block, then -tf32 or -bf16"));
  const bool tf32 = arithmetic == "tf32";
  return {model, tf32 ? DType::kF32 : DType::kBF16, tf32};
}

constexpr std::int64_t kMlpWidths[] = {784, 4096, 4096, 10};
constexpr float kMlpHalves[] = {0.07F, 0.03F, 0.03F};
constexpr BlockSizes kBlock = {512, 1024, 16, 0.04F, 0.05F, 0.035F, 0.035F};
constexpr double kMlpRate = 0.02, kBlockRate = 1e-4;

inline Value train(const Case& what, const Value& x, const Value& y) {
  Parameters p(x.builder(), what.dtype);
  if (what.model == "mlp") {
    const Value logits = cast(mlp_logits(p, x, kMlpWidths, kMlpHalves), DType::kF32);
    Value loss = global_mean(softmax_cross_entropy(logits, y));
    Sgd(kMlpRate).minimize(loss, p.variables());
    return loss;
  }
  const Value rows = cast(transformer_block(p, x, kBlock), DType::kF32);
  Value loss = global_mean(square(rows - reshape(y, rows.shape())));
  AdamW(kBlockRate).minimize(loss, p.variables());
  return loss;
}

inline Batch batch_of(const Case& what, std::int64_t batch) {
  if (what.model == "mlp")
    return {rounded(uniform({batch, kMlpWidths[0]}, 100, 1), what.dtype), labels(batch)};
  const Shape shape = {batch, kBlock.sequence, kBlock.width};
  return {rounded(uniform(shape, 100, 1), what.dtype), uniform(shape, 101, 1)};
}

}  // namespace lockstep::bench
