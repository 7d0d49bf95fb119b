// Values that differ between replicas, and code that sees all of them.
//
//   replica 0: x --> best = max(x) --+                      +--> replica 0: am I the winner?
//   replica 1: x --> best = max(x) --+--> merge function -->+--> replica 1
//   replica 2: x --> best = max(x) --+    (once, for all)   +--> replica 2
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

int main() {
  MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1", "cpu:2"}});

  const auto contest = strategy.function({InputSpec(DType::kF32, {kUnknown}, "x")}, [](Value x) {
    const ReplicaContext replica = replica_context();
    const Value best = max(x);  // differs between replicas
    const Value winner = replica.merge_call(
        [](Strategy& all, const PerReplica<Value>& bests) { return all.reduce(ReduceOp::kMax, bests); },
        best);
    return std::tuple(best, equal(best, winner), winner);
  });

  const PerReplica<Tensor> x =
      strategy.distribute_values_from_function([](std::int64_t replica, std::int64_t) {
        const auto r = static_cast<float>(replica);
        return Tensor::from({3}, {r, 5 - r * r, 3 * r});
      });
  const auto [best, won, winner] = contest(x);
  std::cout << "best    " << best << '\n'     // one slot per replica
            << "won     " << won << '\n'      //
            << "winner  " << winner << '\n';  // the same on all, and known to be
  std::cout << "sum of bests " << strategy.reduce(ReduceOp::kSum, best) << '\n';
}
