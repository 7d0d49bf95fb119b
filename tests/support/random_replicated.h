// tests/support/random_replicated.h - random training steps of several replicas, which stay in lockstep.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep::testing {

// A step over `replicas` replicas: variables are read and written (by values that are equal on all replicas),
// values are reduced, gathered, broadcast and drawn, branches and loops hold all replicas or one. Equal for
// equal seeds.
inline Graph random_replicated_step(std::int64_t replicas, std::uint64_t seed, int size = 30) {
  std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(replicas));
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  GraphBuilder b;
  std::vector<VariableRef> variables;
  for (int i = 0; i < 3; ++i) {
    const Tensor initial = Tensor::full(DType::kF32, Shape{3}, 0.25 * (i + 1));
    variables.push_back(b.variable(str("v", i), initial));
  }
  VariableDecl own_decl{.name = "own", .spec = {DType::kF32, Shape{3}}, .initial = {}};
  own_decl.synchronization = Synchronization::kOnRead;
  const VariableRef own_variable = b.variable(std::move(own_decl));
  const Value shared[] = {b.placeholder("s", DType::kF32, {3})};
  std::vector<std::vector<Value>> own(1);
  for (std::int64_t r = 0; r < replicas; ++r) own[0].push_back(b.placeholder(str("x", r), DType::kF32, {3}));
  const auto results =
      replicated(b, replicas, shared, own, [&](std::span<const Value> in) -> std::vector<Value> {
        std::vector<Value> equal = {in[0]};  // on all replicas
        std::vector<Value> any = {in[0], in[1]};
        const auto some = [&](const std::vector<Value>& list) { return list[below(list.size())]; };
        const auto note = [&](const Value& value, bool is_equal) {
          any.push_back(value);
          if (is_equal) equal.push_back(value);
        };
        for (int i = 0; i < size; ++i) {
          const bool is_equal = below(2) == 0;
          const std::vector<Value>& from = is_equal ? equal : any;
          switch (below(10)) {
            case 0: note(tanh(some(from)), is_equal); break;
            case 1: {
              const Value a = some(from);
              note(a * some(from), is_equal);
              break;
            }
            case 2:
              note(all_reduce(below(2) == 0 ? ReduceOp::kSum : ReduceOp::kMean, some(any)), true);
              break;
            case 3: note(b.read(variables[below(3)]), true); break;
            case 4: note(tanh(b.assign(variables[below(3)], tanh(some(equal)))), true); break;
            case 5: b.assign_add(variables[below(3)], some(equal)); break;
            case 6: note(b.random_uniform({DType::kF32, Shape{3}}), false); break;
            case 7:
              note(broadcast_replica(some(any),
                                     static_cast<std::int64_t>(below(static_cast<std::size_t>(replicas)))),
                   true);
              break;
            case 8: {
              const VariableRef written = variables[below(3)];
              const bool writes = below(2) == 0;
              const Value p = sum(some(writes ? equal : from)) > 0.F;
              const Value a = some(equal), c = some(from);
              const std::vector<Value> out = cond(
                  p,
                  [&]() -> std::vector<Value> {
                    if (writes) b.assign_add(written, tanh(a));
                    return {tanh(a), c};
                  },
                  [&]() -> std::vector<Value> {
                    return {a * b.read(written), tanh(c)};
                  });
              note(out[0], is_equal || writes);
              note(out[1], is_equal);
              break;
            }
            default: {
              const Value initial[] = {some(equal), some(any)};
              const Value captured = some(equal);
              const VariableRef written = variables[below(3)];
              const std::vector<Value> out = while_loop(
                  initial, [&](std::span<const Value> c) { return sum(c[0]) < 3.F; },
                  [&](std::span<const Value> c) -> std::vector<Value> {
                    const Value total = all_reduce(ReduceOp::kMean, tanh(c[1]));
                    b.assign_add(written, total);
                    return {c[0] + tanh(captured) * total + 1.F, c[1] * 0.5F};
                  },
                  LoopOptions{.max_trips = 3});
              note(out[0], true);
              note(out[1], false);
              break;
            }
          }
        }
        b.assign_add(own_variable, some(any));
        return {some(equal), some(any), b.read(variables[0]), any.back()};
      });
  for (const std::vector<Value>& result : results) {
    for (const Value& value : result) b.result(value);
  }
  return b.finish();
}

}  // namespace lockstep::testing
