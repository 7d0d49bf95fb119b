// Tests: strategies/passes/allow_drift.cpp, strategies/passes/insert_all_reduce.cpp,
//        strategies/passes/register.cpp
#include "lockstep/strategies/passes/insert_all_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/strategies/passes/register.h"
#include "support/pass_test.h"
#include "support/training.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class InsertAllReduce : public testing::PassTest {
 protected:
  void SetUp() override { register_strategy_passes(); }

  // A replicated region over a shared %s and a per-replica %x, before and after.
  static std::string region(const std::string& nodes, const std::string& variables) {
    return variables + R"(
      %s0 = placeholder() : f32[4]
      %x0 = placeholder() : f32[4]
      %x1 = placeholder() : f32[4]
      %step = replicated[replicas=2, shared=1](%s0, %x0, %x1) {
        region {
          %s = placeholder() : f32[4]
          %x = placeholder() : f32[4]
          %lr = constant[value=f32[]{0.5}]() : f32[]
)" + nodes +
           R"(
        }
      })";
  }
  void expect_inserted(const std::string& before, const std::string& after, const std::string& variables) {
    expect_rewrite("insert-all-reduce", region(before, variables), region(after, variables),
                   {.same_meaning = false});
  }
  void expect_nothing(const std::string& nodes, const std::string& variables) {
    expect_unchanged("insert-all-reduce", region(nodes, variables));
  }
};

TEST_F(InsertAllReduce, SumsGradients) {
  expect_inserted(R"(
          %g = neg(%x) : f32[4]
          %u = sgd[variable=@w](%g, %lr) : f32[4])",
                  R"(
          %g = neg(%x) : f32[4]
          %g/all_reduce = all_reduce[reduce="sum"](%g) : f32[4]
          %u = sgd[variable=@w](%g/all_reduce, %lr) : f32[4])",
                  "var @w : f32[4]");
}

TEST_F(InsertAllReduce, GradientsAreSharesEvenWhereTheyAreEqual) {
  expect_inserted(R"(
          %g = neg(%s) : f32[4]
          %u = sgd[variable=@w](%g, %lr) : f32[4])",
                  R"(
          %g = neg(%s) : f32[4]
          %g/all_reduce = all_reduce[reduce="sum"](%g) : f32[4]
          %u = sgd[variable=@w](%g/all_reduce, %lr) : f32[4])",
                  "var @w : f32[4]");
}

TEST_F(InsertAllReduce, LeavesWhatTheUserReduced) {
  expect_nothing(R"(
          %t = all_reduce[reduce="mean"](%x) : f32[4]
          %g = mul(%t, %s) : f32[4]
          %u = sgd[variable=@w](%g, %lr) : f32[4])",
                 "var @w : f32[4]");
}

TEST_F(InsertAllReduce, SumsAndAveragesWhatIsAssigned) {
  expect_inserted(R"(
          %u = assign[variable=@a](%x) : f32[4]
          %v = assign_add[variable=@b](%x) : f32[4]
          %o = assign[variable=@c](%x) : f32[4])",
                  R"(
          %x/all_reduce = all_reduce[reduce="sum"](%x) : f32[4]
          %u = assign[variable=@a](%x/all_reduce) : f32[4]
          %x/all_reduce_1 = all_reduce[reduce="mean"](%x) : f32[4]
          %v = assign_add[variable=@b](%x/all_reduce_1) : f32[4]
          %x/broadcast_replica = broadcast_replica(%x) : f32[4]
          %o = assign[variable=@c](%x/broadcast_replica) : f32[4])",
                  "var @a : f32[4] [aggregation=sum]\nvar @b : f32[4] [aggregation=mean]\n"
                  "var @c : f32[4] [aggregation=only_first_replica]");
}

TEST_F(InsertAllReduce, LeavesEqualValuesAndOwnVariablesAlone) {
  expect_nothing(R"(
          %u = assign[variable=@a](%s) : f32[4]
          %v = assign_add[variable=@own](%x) : f32[4])",
                 "var @a : f32[4] [aggregation=sum]\nvar @own : f32[4] [synchronization=on_read]");
}

// Allowed to drift: own copies for whatever is written, gradients included, and their values differ
// elsewhere.
TEST_F(InsertAllReduce, LeavesWhatMayDriftAlone) {
  const std::string variables =
      "var @a : f32[4] [aggregation=sum]\nvar @b : f32[4]\nvar @c : f32[4] [aggregation=mean]";
  const std::string writes = R"(
          %u = assign[variable=@a](%x) : f32[4]
          %r = read[variable=@b]() : f32[4]
          %v = sgd[variable=@b](%x, %lr) : f32[4] after(%r))";
  expect_rewrite(
      "allow-drift(variables=[a,b]),insert-all-reduce",
      region(writes + "\n%w = assign[variable=@c](%r) : f32[4]", variables),
      region(writes + R"(
          %r/all_reduce = all_reduce[reduce="mean"](%r) : f32[4]
          %w = assign[variable=@c](%r/all_reduce) : f32[4])",
             "var @a : f32[4] [synchronization=on_read]\nvar @b : f32[4] [synchronization=on_read]\n"
             "var @c : f32[4] [aggregation=mean]"),
      {.same_meaning = false});
}

TEST_F(InsertAllReduce, OnlyVariablesThatAreThereMayDrift) {
  Graph graph = parse(region("%u = assign[variable=@w](%x) : f32[4]", "var @w : f32[4] [aggregation=sum]"));
  try {
    PassRegistry::global().parse_pipeline("allow-drift(variables=[nope])").run(graph);
    FAIL() << "accepted";
  } catch (const PassError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no variable 'nope'"));
  }
  PassRegistry::global().parse_pipeline("allow-drift(variables=[nope],strict=false)").run(graph);
}

TEST_F(InsertAllReduce, LeavesUpdatesAlone) {
  expect_unchanged("insert-all-reduce", R"(
      var @w : f32[4] [aggregation=sum]
      %step = replicated[replicas=2, shared=0, update=true]() {
        region {
          %lr = constant[value=f32[]{0.5}]() : f32[]
          %r = read[variable=@w]() : f32[4]
          %u = sgd[variable=@w](%r, %lr) : f32[4] after(%r)
        }
      })");
}

TEST_F(InsertAllReduce, AValueWrittenTwiceIsCombinedOnce) {
  expect_inserted(R"(
          %u = assign[variable=@a](%x) : f32[4]
          %v = assign_add[variable=@b](%x) : f32[4])",
                  R"(
          %x/all_reduce = all_reduce[reduce="sum"](%x) : f32[4]
          %u = assign[variable=@a](%x/all_reduce) : f32[4]
          %v = assign_add[variable=@b](%x/all_reduce) : f32[4])",
                  "var @a : f32[4] [aggregation=sum]\nvar @b : f32[4] [aggregation=sum]");
}

TEST_F(InsertAllReduce, WhatAnUpdateGivesIsEqual) {
  expect_inserted(R"(
          %u = assign_add[variable=@a](%x) : f32[4]
          %v = assign[variable=@b](%u) : f32[4])",
                  R"(
          %x/all_reduce = all_reduce[reduce="sum"](%x) : f32[4]
          %u = assign_add[variable=@a](%x/all_reduce) : f32[4]
          %v = assign[variable=@b](%u) : f32[4])",
                  "var @a : f32[4] [aggregation=sum]\nvar @b : f32[4] [aggregation=sum]");
}

TEST_F(InsertAllReduce, GathersRows) {
  expect_inserted(R"(
          %i = constant[value=i64[4]{0, 1, 2, 0}]() : i64[4]
          %u = sgd_sparse[variable=@w](%i, %x, %lr) : f32[9])",
                  R"(
          %i = constant[value=i64[4]{0, 1, 2, 0}]() : i64[4]
          %i/all_gather = all_gather[replicas=0](%i) : i64[?]
          %x/all_gather = all_gather[replicas=0](%x) : f32[?]
          %u = sgd_sparse[variable=@w](%i/all_gather, %x/all_gather, %lr) : f32[9])",
                  "var @w : f32[9]");
}

// assign_rows: rows that are written, not descended along.
const OpDef& assign_rows() {
  static const OpDef& op = [&]() -> const OpDef& {
    OpDef def;
    def.name = "test_assign_rows";
    def.inputs = Arity::exactly(2);
    def.attributes = {{"into", AttributeType::kVariable}};
    def.effects = Effect::kWritesVariable | Effect::kReadsVariable;
    def.traits.updates_variable = OpTraits::Update{"into", 1, true, {}, false, 0};
    def.infer = [](InferContext& c) { c.add_output(c.variable(c.get<VariableRef>("into").name)); };
    return OpRegistry::global().add(std::move(def));
  }();
  return op;
}

TEST_F(InsertAllReduce, TakesOpsOfOnesOwn) {
  assign_rows();
  const std::string before = R"(
          %i = constant[value=i64[4]{0, 1, 2, 0}]() : i64[4]
          %u = test_assign_rows[into=@w](%i, %x) : f32[9])";
  expect_inserted(before, R"(
          %i = constant[value=i64[4]{0, 1, 2, 0}]() : i64[4]
          %i/all_gather = all_gather[replicas=0](%i) : i64[?]
          %x/all_gather = all_gather[replicas=0](%x) : f32[?]
          %x/all_gather/replicas = constant[value=f32[]{2.0}]() : f32[]
          %x/all_gather/mean = div(%x/all_gather, %x/all_gather/replicas) : f32[?]
          %u = test_assign_rows[into=@w](%i/all_gather, %x/all_gather/mean) : f32[9])",
                  "var @w : f32[9] [aggregation=mean]");
  expect_inserted(before, R"(
          %i = constant[value=i64[4]{0, 1, 2, 0}]() : i64[4]
          %i/broadcast_replica = broadcast_replica(%i) : i64[4]
          %x/broadcast_replica = broadcast_replica(%x) : f32[4]
          %u = test_assign_rows[into=@w](%i/broadcast_replica, %x/broadcast_replica) : f32[9])",
                  "var @w : f32[9] [aggregation=only_first_replica]");
}

TEST_F(InsertAllReduce, WorksInsideBranches) {
  const auto nodes = [](const std::string& update) {
    return R"(
          %zero = constant[value=f32[]{0.0}]() : f32[]
          %of_s = sum[axes=[0], keepdims=false](%s) : f32[]
          %same = greater(%of_s, %zero) : bool[]
          %c = cond(%same, %x, %lr) {
            region {
              %g = placeholder() : f32[4]
              %rate = placeholder() : f32[]
)" + update +
           R"(
            }
            region {
              %g = placeholder() : f32[4]
              %rate = placeholder() : f32[]
            }
          })";
  };
  expect_inserted(nodes("%u = sgd[variable=@w](%g, %rate) : f32[4]"),
                  nodes("%g/all_reduce = all_reduce[reduce=\"sum\"](%g) : f32[4]\n"
                        "%u = sgd[variable=@w](%g/all_reduce, %rate) : f32[4]"),
                  "var @w : f32[4]");
}

TEST_F(InsertAllReduce, NothingForOneReplica) {
  expect_unchanged("insert-all-reduce", R"(
      var @w : f32[4]
      %x0 = placeholder() : f32[4]
      %step = replicated[replicas=1, shared=0](%x0) {
        region {
          %x = placeholder() : f32[4]
          %u = assign[variable=@w](%x) : f32[4]
        }
      })");
}

TEST_F(InsertAllReduce, AsksForAnAggregation) {
  Graph graph = parse(
      region("%g = neg(%x) : f32[4]\n%u = assign[variable=@w](%g) : f32[4]", "var @w : f32[4]"), "model");
  try {
    PassRegistry::global().parse_pipeline("insert-all-reduce").run(graph);
    FAIL() << "accepted";
  } catch (const PassError& error) {
    EXPECT_THAT(error.what(), HasSubstr("You must specify an aggregation method for 'w'"));
    EXPECT_THAT(error.what(), HasSubstr("u <- g (model:10) <- x (model:8, a per-replica input)"));
    EXPECT_THAT(error.what(), HasSubstr("made at model:11"));
    EXPECT_THAT(error.what(), HasSubstr("sum, mean or only_first_replica"));
  }
}

TEST_F(InsertAllReduce, IntegersHaveNoMean) {
  Graph graph = parse(R"(
      var @n : i64[] [aggregation=mean]
      %step = replicated[replicas=2, shared=0]() {
        region {
          %r = replica_id() : i32[]
          %c = cast[dtype=i64](%r) : i64[]
          %u = assign[variable=@n](%c) : i64[]
        }
      })");
  try {
    PassRegistry::global().parse_pipeline("insert-all-reduce").run(graph);
    FAIL() << "accepted";
  } catch (const PassError& error) {
    EXPECT_THAT(error.what(), HasSubstr("insert-all-reduce"));
    EXPECT_THAT(error.what(), HasSubstr("mean"));
  }
}

// --- by meaning: replicas together are one device with the whole batch

TEST_F(InsertAllReduce, ReplicasTrainAsOneDeviceWould) {
  for (const std::int64_t replicas : {2, 3}) {
    testing::expect_same_training("", "insert-all-reduce,replicate", replicas);
  }
}

}  // namespace
}  // namespace lockstep
