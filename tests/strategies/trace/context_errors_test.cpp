// Tests: strategies/trace/context.cpp, strategies/trace/replica_context.cpp
// Calls in the wrong context, and scopes.
#include <functional>
#include <memory>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/strategies/extended.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/run_steps.h"
#include "support/mistakes.h"

namespace lockstep {
namespace {

using testing::kVector;
using testing::vec;

// --- the four errors of contexts

TEST_F(StrategyErrors, CrossReplicaMethodsAreNoneOfOneReplica) {
  using extended::Destinations;
  const auto fn = [](std::span<const Value> in) { return in[0]; };
  const std::vector<std::pair<std::string, std::function<void(Value)>>> methods = {
      {"reduce()", [&](Value x) { strategy.reduce(ReduceOp::kSum, PerReplica<Value>(x)); }},
      {"reduce()", [&](Value) { strategy.reduce(ReduceOp::kSum, per_replica); }},
      {"run()", [&](Value x) { strategy.run([](Value v) { return v; }, PerReplica<Value>(x)); }},
      {"function()", [&](Value) { strategy.function({kVector}, [](Value v) { return v; }); }},
      {"cross_function()",
       [&](Value) { strategy.cross_function({kVector}, [](const PerReplica<Value>& v) { return v; }); }},
      {"scope()", [&](Value) { auto scope = strategy.scope(); }},
      {"run()", [&](Value) { strategy.run([](Value v) { return v; }, per_replica); }},
      {"broadcast()", [&](Value) { strategy.broadcast(vec({1})); }},
      {"distribute_values_from_function()",
       [&](Value) {
         strategy.distribute_values_from_function([](std::int64_t, std::int64_t) { return vec({1}); });
       }},
      {"update() of 'w'",
       [&](Value) {
         strategy.update(w, [](const Variable& copy, std::span<const Value>) { return copy.read(); }, {});
       }},
      {"reduce_to()", [&](Value x) { extended::reduce_to(strategy, ReduceOp::kSum, x, w); }},
      {"batch_reduce_to()",
       [&](Value x) {
         const std::pair<PerReplica<Value>, Destinations> pairs[] = {{x, w}};
         extended::batch_reduce_to(strategy, ReduceOp::kSum, pairs);
       }},
      {"broadcast_to()", [&](Value x) { extended::broadcast_to(strategy, x, w); }},
      {"update_non_slot()",
       [&](Value) { extended::update_non_slot(strategy, strategy.worker_devices(), fn, {}); }},
      {"first_replica_to()", [&](Value x) { extended::first_replica_to(strategy, x, w); }},
      {"non_slot_devices()", [&](Value) { extended::non_slot_devices(strategy); }},
      {"worker_device_index()", [&](Value) { extended::worker_device_index(strategy); }},
      {"colocate_vars_with()", [&](Value) { auto guard = extended::colocate_vars_with(strategy, w); }},
      {"read_var()", [&](Value) { extended::read_var(strategy, w); }},
      {"group()", [&](Value x) { extended::group(strategy, x); }},
      {"map()",
       [&](Value x) {
         extended::map(strategy, {&x, 1}, [](const Value& v) { return v; });
       }},
      {"run_steps()",
       [&](Value) {
         run_steps(
             strategy, [] { return std::nullopt; }, 1, {}, [](MultiStepContext&, auto) {});
       }},
  };
  std::vector<Mistake> mistakes;
  for (const auto& [name, call] : methods) {
    mistakes.push_back(
        {name, in_replica(call), kContext, {name, "requires cross-replica context", "merge_call()"}});
  }
  expect_refused(mistakes);
}

// What makes nodes for all replicas has no place in the code of one copy; entering the scope again changes
// nothing.
TEST_F(StrategyErrors, AnUpdateIsTheCodeOfOneCopy) {
  const auto in_update = [this](const std::function<void()>& body) {
    return across([this, body](const PerReplica<Value>&) {
      strategy.update(w,
                      [&](const Variable& copy, std::span<const Value>) {
                        body();
                        return copy.read();
                      },
                      {});
    });
  };
  const auto says = [](const std::string& method) {
    return std::vector<std::string>{
        method + " requires cross-replica context, and this is the code of one copy, in an update",
        "call it before the update"};
  };
  const auto ids = [] { return replica_context().replica_id(); };
  const auto read = [](const Variable& copy, std::span<const Value>) { return copy.read(); };
  expect_refused({
      {"run", in_update([&] { strategy.run(ids); }), kContext, says("run()")},
      {"run in a scope", in_update([&] {
         auto scope = strategy.scope();
         strategy.run(ids);
       }),
       kContext, says("run()")},
      {"run beside a variable", in_update([&] {
         auto guard = extended::colocate_vars_with(strategy, w);
         strategy.run(ids);
       }),
       kContext, says("run()")},
      {"an update", in_update([&] { strategy.update(w, read, {}); }), kContext, says("update() of 'w'")},
      {"one without a variable", in_update([&] {
         extended::update_non_slot(strategy, strategy.worker_devices(),
                                   [](std::span<const Value> in) { return in[0]; }, {});
       }),
       kContext, says("update_non_slot()")},
      {"a mean over replicas",
       in_update([&] { global_mean(w.read()); }),
       kContext,
       {"global_count() requires replica context, and this is the code of one copy, in an update",
        "compute it before the update"}},
      {"a sum over replicas in a branch",
       in_update([&] {
         cond(
             sum(w.read()) > 0.F, [&] { return std::vector<Value>{all_reduce(ReduceOp::kSum, w.read())}; },
             [&] { return std::vector<Value>{w.read()}; });
       }),
       kContext,
       {"all_reduce() requires replica context", "in an update"}},
      {"a function",
       in_update([&] { strategy.function({kVector}, [](Value x) { return x; }); }),
       kContext,
       {"function(): a function cannot be made while another one is being traced"}},
  });
  int entered = 0;
  in_update([&] {
    auto scope = strategy.scope();
    auto guard = extended::colocate_vars_with(strategy, w);
    EXPECT_EQ(current_context(), ContextKind::kUpdate);
    EXPECT_TRUE(in_cross_replica_context());
    ++entered;
  })();
  EXPECT_EQ(entered, 1);
}

TEST_F(StrategyErrors, OneStrategyIsActiveAtATime) {
  const auto mixed = [&](auto body) {
    return [this, body] {
      auto scope = strategy.scope();
      body();
    };
  };
  const std::vector<std::string> says = {"mixes strategies"};
  expect_refused({
      {"scope",
       mixed([&] { auto scope = other.scope(); }),
       kContext,
       {"mixes strategies", "leave its scope first"}},
      {"reduce", mixed([&] { other.reduce(ReduceOp::kSum, vec({1})); }), kContext, says},
      {"function", mixed([&] { other.function({kVector}, [](Value x) { return x; }); }), kContext, says},
      {"broadcast", mixed([&] { other.broadcast(vec({1})); }), kContext, says},
      {"a variable's value",
       mixed([&] { foreign.value(); }),
       kContext,
       {"variable 'foreign' mixes strategies"}},
      {"its copies", mixed([&] { foreign.copies(); }), kContext, {"variable 'foreign' mixes strategies"}},
      {"numbers of replicas", mixed([&] { extended::worker_device_index(other); }), kContext, says},
      {"devices of slots", mixed([&] { extended::non_slot_devices(other); }), kContext, says},
      {"its assignment", mixed([&] {
         foreign.assign(vec({1, 2}));
       }),
       kContext, says},
      {"its read in a replica", in_replica([&](Value) { foreign.read(); }), kContext, says},
      {"its read across", across([&](const PerReplica<Value>&) { foreign.read(); }), kContext, says},
      {"its gradient", in_replica([&](Value x) { gradients(sum(x), {static_cast<VariableRef>(foreign)}); }),
       kContext, says},
      {"its update", across([&](const PerReplica<Value>&) {
         strategy.update(foreign, [](const Variable& copy, std::span<const Value>) { return copy.read(); },
                         {});
       }),
       kContext, says},
      {"in a replica", in_replica([&](Value) { auto scope = other.scope(); }), kContext, says},
      {"a merge function", in_replica([&](Value x) {
         replica_context().merge_call(
             [&](Strategy&, const PerReplica<Value>& v) { return other.reduce(ReduceOp::kSum, v); }, x);
       }),
       kContext, says},
      {"colocation",
       [&] { auto guard = extended::colocate_vars_with(strategy, foreign); },
       kArgument,
       {"'foreign' belongs to another strategy"}},
      {"reduce_to its devices",
       across([&](const PerReplica<Value>& x) { extended::reduce_to(strategy, ReduceOp::kSum, x, foreign); }),
       kArgument,
       {"reduce_to(): the destination is variable 'foreign'", "another strategy"}},
      {"batch_reduce_to them",
       across([&](const PerReplica<Value>& x) {
         const std::pair<PerReplica<Value>, extended::Destinations> pairs[] = {{x, w}, {x, foreign}};
         extended::batch_reduce_to(strategy, ReduceOp::kSum, pairs);
       }),
       kArgument,
       {"batch_reduce_to(): the destination is variable 'foreign'"}},
      {"broadcast_to them",
       across([&](const PerReplica<Value>& x) { extended::broadcast_to(strategy, x[0], foreign); }),
       kArgument,
       {"broadcast_to(): the destination is variable 'foreign'"}},
      {"first_replica_to them",
       across([&](const PerReplica<Value>& x) { extended::first_replica_to(strategy, x, foreign); }),
       kArgument,
       {"first_replica_to(): the destination is variable 'foreign'"}},
  });
  EXPECT_FALSE(has_strategy());
}

TEST_F(StrategyErrors, ReplicaMethodsNeedAReplica) {
  const std::vector<std::string> says = {"requires replica context"};
  std::optional<ReplicaContext> kept;
  strategy.function({kVector}, [&](Value) { kept = replica_context(); });
  const auto in_another = [&](auto body) { return in_replica(body); };
  const std::vector<std::string> foreign_says = {"belongs to another function", "ask replica_context()"};
  expect_refused({
      {"outside of all",
       [] { replica_context(); },
       kContext,
       {"replica_context() requires", "default context"}},
      {"in a scope",
       [&] {
         auto scope = strategy.scope();
         replica_context();
       },
       kContext,
       {"this is the cross-replica context"}},
      {"across", across([](const PerReplica<Value>&) { replica_context(); }), kContext, says},
      {"in a merge function", in_replica([](Value x) {
         replica_context().merge_call(
             [](Strategy&, const PerReplica<Value>& v) {
               replica_context();
               return v;
             },
             x);
       }),
       kContext, says},
      {"in an update",
       across([&](const PerReplica<Value>&) {
         strategy.update(w,
                         [](const Variable& copy, std::span<const Value>) {
                           replica_context();
                           return copy.read();
                         },
                         {});
       }),
       kContext,
       {"this is the update context"}},
      {"a kept one", [&] { kept->replica_id(); }, kContext, {"replica_id() requires replica context"}},
      // A context of another function.
      {"replica_id", in_another([&](Value) { kept->replica_id(); }), kContext, foreign_says},
      {"all_reduce", in_another([&](Value x) { kept->all_reduce(ReduceOp::kSum, x); }), kContext,
       foreign_says},
      {"all_gather", in_another([&](Value x) { kept->all_gather(x); }), kContext, foreign_says},
      {"num_replicas", in_another([&](Value) { kept->num_replicas_in_sync(); }), kContext, foreign_says},
      {"strategy", in_another([&](Value) { kept->strategy(); }), kContext, foreign_says},
      {"merge_call", in_another([&](Value x) {
         kept->merge_call([](Strategy&, const PerReplica<Value>& v) { return v; }, x);
       }),
       kContext, foreign_says},
  });
}

// --- scopes

TEST_F(StrategyErrors, ScopesMayBeLeftInAnyOrder) {
  auto outer = std::unique_ptr<Strategy::Scope>(new Strategy::Scope(strategy.scope()));
  auto inner = std::unique_ptr<Strategy::Scope>(new Strategy::Scope(strategy.scope()));
  auto innermost = std::unique_ptr<Strategy::Scope>(new Strategy::Scope(strategy.scope()));
  inner.reset();
  EXPECT_EQ(current_strategy(), &strategy);
  outer.reset();
  EXPECT_EQ(current_strategy(), &strategy);
  EXPECT_TRUE(in_cross_replica_context());
  innermost.reset();
  EXPECT_FALSE(has_strategy());
  auto scope = other.scope();  // nothing is left of the first
}

TEST_F(StrategyErrors, AnErrorInAFunctionLeavesItsContexts) {
  EXPECT_THROW(strategy.function({kVector},
                                 [](Value x) -> Value {
                                   return replica_context().merge_call(
                                       [](Strategy&, const PerReplica<Value>&) -> Value {
                                         throw std::out_of_range("mine");
                                       },
                                       x);
                                 }),
               std::out_of_range);
  EXPECT_FALSE(has_strategy());
  EXPECT_EQ(current_builder(), nullptr);
  const auto f = strategy.function({kVector}, [](Value x) { return x + 1.F; });
  EXPECT_EQ(f(per_replica)[2].item(), 4);
}

}  // namespace
}  // namespace lockstep
