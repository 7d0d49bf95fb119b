// Tests: strategies/passes/mirror_variables.cpp, strategies/passes/register.cpp
#include "lockstep/strategies/passes/mirror_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/passes/register.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MirrorVariables : public testing::PassTest {
 protected:
  void SetUp() override { register_strategy_passes(); }

  static std::string error_of(std::string_view passes, std::string_view text) {
    Graph graph = parse(text);
    try {
      PassRegistry::global().parse_pipeline(passes).run(graph);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

constexpr std::string_view kStep = R"(
      %y = replicated[replicas=3, shared=0]() : f32[2], f32[2], f32[2] {
        region {
          %w = read[variable=@w]() : f32[2]
          %s = read[variable=@seen]() : f32[2]
          %a = add(%w, %s) : f32[2]
          return %a
        }
      }
      %c = read[variable=@outside]() : f32[]
      return %y, %y:1, %y:2, %c
    )";

TEST_F(MirrorVariables, DeclaresACopyForEachReplicaButTheFirst) {
  const std::string input = str(R"(
      var @w : f32[2] = f32[2]{1, 2}
      var @seen : f32[2] [trainable=false, synchronization=on_read, aggregation=sum]
      var @outside : f32[]
    )",
                                kStep);
  // What no replica uses stays single. A copy has no initial value of its own: it starts with that of the
  // first.
  expect_rewrite("mirror-variables(devices=[cpu:0,/device:CPU:1,cpu:2])", input,
                 str(R"(
      var @w : f32[2] = f32[2]{1, 2}
      var @seen : f32[2] [trainable=false, synchronization=on_read, aggregation=sum]
      var @outside : f32[]
      var @"w/replica_1" : f32[2] [device="cpu:1", copy_of=@w, replica=1]
      var @"w/replica_2" : f32[2] [device="cpu:2", copy_of=@w, replica=2]
      var @"seen/replica_1" : f32[2] [trainable=false, synchronization=on_read, aggregation=sum, device="cpu:1", copy_of=@seen, replica=1]
      var @"seen/replica_2" : f32[2] [trainable=false, synchronization=on_read, aggregation=sum, device="cpu:2", copy_of=@seen, replica=2]
    )",
                     kStep));
  // Only what is missing is declared.
  const std::string half = str(R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [device="cpu:7", copy_of=@w, replica=1]
      var @seen : f32[2]
      var @outside : f32[]
    )",
                               kStep);
  expect_rewrite("mirror-variables", half,
                 str(R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [device="cpu:7", copy_of=@w, replica=1]
      var @seen : f32[2]
      var @outside : f32[]
      var @"w/replica_2" : f32[2] [copy_of=@w, replica=2]
      var @"seen/replica_1" : f32[2] [copy_of=@seen, replica=1]
      var @"seen/replica_2" : f32[2] [copy_of=@seen, replica=2]
    )",
                     kStep));
}

TEST_F(MirrorVariables, LeavesAPlainStepAlone) {
  expect_unchanged("mirror-variables", R"(
      var @w : f32[2]
      %w = read[variable=@w]() : f32[2]
      return %w
    )");
}

// Variables that only a branch inside the region or a region inside a branch uses are found as well.
TEST_F(MirrorVariables, LooksIntoRegions) {
  expect_rewrite("mirror-variables", R"(
      var @w : f32[]
      %p = placeholder() : bool[]
      %y = replicated[replicas=2, shared=1](%p) : f32[], f32[] {
        region {
          %p = placeholder() : bool[]
          %c = cond(%p) : f32[] {
            region {
              %w = read[variable=@w]() : f32[]
              return %w
            }
            region {
              %k = constant[value=f32[]{1}]() : f32[]
              return %k
            }
          }
          return %c
        }
      }
      return %y, %y:1
    )",
                 R"(
      var @w : f32[]
      var @"w/replica_1" : f32[] [copy_of=@w, replica=1]
      %p = placeholder() : bool[]
      %y = replicated[replicas=2, shared=1](%p) : f32[], f32[] {
        region {
          %p = placeholder() : bool[]
          %c = cond(%p) : f32[] {
            region {
              %w = read[variable=@w]() : f32[]
              return %w
            }
            region {
              %k = constant[value=f32[]{1}]() : f32[]
              return %k
            }
          }
          return %c
        }
      }
      return %y, %y:1
    )");
}

// Slots of optimizers follow their variable: one copy each, on its device.
TEST_F(MirrorVariables, SlotsFollow) {
  GraphBuilder b;
  const Value x0 = b.placeholder("x0", DType::kF32, {2}), x1 = b.placeholder("x1", DType::kF32, {2});
  const std::vector<Value> own[] = {{x0, x1}};
  replicated(b, 2, {}, own, [&](std::span<const Value> in) -> std::vector<Value> {
    const VariableRef w = internal::BuilderAccess(b).find_or_declare(
        {.name = "w", .spec = {DType::kF32, Shape{2}}, .initial = {}});
    Adam(0.1).minimize(global_sum(in[0] * b.read(w)), {w});
    return {};
  });
  Graph graph = b.finish();
  std::size_t originals = graph.variables().size();
  ASSERT_GE(originals, 3U);  // w and at least two moments
  PassRegistry::global().parse_pipeline("mirror-variables(devices=[cpu:3,cpu:4])").run(graph);
  ASSERT_EQ(graph.variables().size(), 2 * originals);
  for (const VariableDecl& decl : graph.variables()) {
    if (decl.copy_of.empty()) continue;
    EXPECT_EQ(decl.name, copy_name(decl.copy_of, 1));
    EXPECT_EQ(decl.device, "cpu:4") << decl.name;
    EXPECT_EQ(decl.replica, 1) << decl.name;
  }
}

TEST_F(MirrorVariables, RefusesWhatCannotBe) {
  const std::string step = str("var @w : f32[2]\nvar @seen : f32[2]\nvar @outside : f32[]\n", kStep);
  EXPECT_THAT(error_of("mirror-variables(devices=[cpu:0,cpu:1])", step),
              HasSubstr("there are 3 replicas and 2 devices"));
  EXPECT_THAT(error_of("mirror-variables(devices=[tpu:0])", step), HasSubstr("tpu:0"));
  // A variable of the user's own that has the name of a copy is neither taken for it nor overwritten.
  const std::string taken = str(
      "var @w : f32[2]\nvar @\"w/replica_2\" : f32[2]\nvar @seen : f32[2]\nvar @outside : f32[]\n", kStep);
  for (const char* passes : {"mirror-variables", "replicate"}) {
    EXPECT_THAT(error_of(passes, taken),
                ::testing::AllOf(HasSubstr("'w/replica_2'"), HasSubstr("copy of 'w' for replica 2")))
        << passes;
  }
}

}  // namespace
}  // namespace lockstep
