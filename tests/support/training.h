// tests/support/training.h - a small model in f64, trained by one device and by several replicas.
//
// The model has a dense layer, a bias whose gradient does not depend on the data, and a table whose gradient
// is rows; Adam counts its steps. Batches differ in size between the replicas; the loss is a global mean, so
// one device with the joined batch must end with the same variables, up to rounding.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "support/pass_test.h"

namespace lockstep::testing {

struct Batch {
  Tensor x;     // f64[n, 3]
  Tensor rows;  // i64[n]
};

inline Batch make_batch(std::int64_t size, std::uint64_t seed) {
  return {random_tensor({DType::kF64, Shape{size, 3}}, seed),
          random_tensor({DType::kI64, Shape{size}}, seed + 1)};
}

inline Tensor joined(const std::vector<Tensor>& parts) {
  std::int64_t rows = 0;
  for (const Tensor& part : parts) rows += part.shape()[0];
  Tensor whole = Tensor::empty(parts[0].dtype(), parts[0].shape().with_dim(0, rows));
  std::int64_t at = 0;
  for (const Tensor& part : parts) {
    whole.slice(at, at + part.shape()[0]).assign(part);
    at += part.shape()[0];
  }
  return whole;
}

// The step of one replica.
inline void train(const Value& x, const Value& rows, bool by_rows) {
  GraphBuilder& b = x.builder();
  const auto variable = [&](const char* name, Shape shape, std::uint64_t seed) {
    VariableDecl decl;
    decl.name = name;
    decl.spec = {DType::kF64, shape};
    decl.initial = random_tensor(decl.spec, seed);
    return internal::BuilderAccess(b).find_or_declare(decl);
  };
  const VariableRef w = variable("w", {3, 2}, 5), table = variable("table", {7, 2}, 7),
                    bias = variable("bias", {2}, 9);
  const Value looked_up =
      by_rows ? gather(b.read(table), rows) : matmul(one_hot(rows, 7, DType::kF64), b.read(table));
  const Value hidden = tanh(matmul(x, b.read(w))) * looked_up;
  const Value loss = global_mean(hidden + b.read(bias));
  Adam(0.1).minimize(loss, {w, table, bias});
}

inline Graph plain_step(bool by_rows = true) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {kUnknown, 3});
  const Value rows = b.placeholder("rows", DType::kI64, {kUnknown});
  train(x, rows, by_rows);
  return b.finish();
}

inline Graph replicated_step(std::int64_t replicas, bool by_rows = true) {
  GraphBuilder b;
  std::vector<std::vector<Value>> own(2);
  for (std::int64_t r = 0; r < replicas; ++r) {
    own[0].push_back(b.placeholder(str("x", r), DType::kF64, {kUnknown, 3}));
    own[1].push_back(b.placeholder(str("rows", r), DType::kI64, {kUnknown}));
  }
  replicated(b, replicas, {}, own, [&](std::span<const Value> in) -> std::vector<Value> {
    train(in[0], in[1], by_rows);
    return {};
  });
  return b.finish();
}

inline void expect_close(const Tensor& expected, const Tensor& actual, const std::string& what) {
  ASSERT_EQ(expected.spec(), actual.spec()) << what;
  if (expected.dtype() != DType::kF64) {
    EXPECT_TRUE(expected.bit_equal(actual)) << what << ": " << expected << " and " << actual;
    return;
  }
  const auto a = expected.data<double>();
  const auto b = actual.data<double>();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12) << what << " at " << i;
}

// One device does `plain` passes and sees each step's whole batch; replicas do `distributed` passes. The
// device makes one step of `gathered` batches, joined. Without `by_rows` the table's gradient is dense.
inline void expect_same_training(const std::string& plain, const std::string& distributed,
                                 std::int64_t replicas, int gathered = 1, bool by_rows = true) {
  Graph one = plain_step(by_rows);
  if (!plain.empty()) PassRegistry::global().parse_pipeline(plain).run(one);
  Graph many = replicas > 0 ? replicated_step(replicas, by_rows) : plain_step(by_rows);
  PassRegistry::global().parse_pipeline(distributed).run(many);
  Interpreter device(one), together(many);
  const std::int64_t parts = std::max<std::int64_t>(replicas, 1);
  for (int step = 0; step < 3; ++step) {
    std::vector<Tensor> xs, rows;
    for (int part = 0; part < gathered; ++part) {
      Interpreter::Feeds feeds;
      for (std::int64_t r = 0; r < parts; ++r) {
        const auto seed = static_cast<std::uint64_t>((step * gathered + part) * 100 + r * 10 + 1);
        // Parts of one mean over several steps must be of one size; over replicas they need not.
        const Batch batch = make_batch(2 + r, seed);
        xs.push_back(batch.x);
        rows.push_back(batch.rows);
        feeds[replicas > 0 ? str("x", r) : "x"] = batch.x;
        feeds[replicas > 0 ? str("rows", r) : "rows"] = batch.rows;
      }
      together.run(feeds);
    }
    device.run(Interpreter::Feeds{{"x", joined(xs)}, {"rows", joined(rows)}});
    for (const auto& [name, value] : device.variables()) {
      expect_close(value, together.variables().at(name), str(name, ", step ", step));
      for (std::int64_t r = 1; r < replicas; ++r) {
        EXPECT_TRUE(together.variables().at(name).bit_equal(together.variables().at(copy_name(name, r))))
            << name << " of replica " << r << ", step " << step;
      }
    }
  }
}

}  // namespace lockstep::testing
