// Tests: graph/passes/identity_removal.cpp
#include "lockstep/graph/passes/identity_removal.h"

#include "support/pass_test.h"

namespace lockstep {
namespace {

using IdentityRemoval = testing::PassTest;
constexpr const char* kPass = "identity-removal";

// In the code of a replica the node says that its value has yet to be summed.
TEST_F(IdentityRemoval, KeepsTheBeginningOfAGradientInReplicas) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %r = replicated[replicas=2, shared=1](%x) : f32[4], f32[4] {
        region {
          %p = placeholder() : f32[4]
          %g = identity(%p) : f32[4] gradient
          return %g
        }
      }
      return %r, %r:1
    )");
}

TEST_F(IdentityRemoval, ReadersAndResultsTakeTheInput) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4]
      %i = identity(%x) : f32[4]
      %y = add(%i, %i) : f32[4]
      return %y, %i
    )",
                 R"(
      %x = placeholder() : f32[4]
      %y = add(%x, %x) : f32[4]
      return %y, %x
    )");
}

TEST_F(IdentityRemoval, AWholeChainGoesAtOnce) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4]
      %a = identity(%x) : f32[4]
      %b = identity(%a) : f32[4]
      %c = identity(%b) : f32[4]
      %y = relu(%c) : f32[4]
      return %y, %b
    )",
                 R"(
      %x = placeholder() : f32[4]
      %y = relu(%x) : f32[4]
      return %y, %x
    )");
}

TEST_F(IdentityRemoval, KeepsOneThatWaitsForAnotherNode) {
  expect_unchanged(kPass, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %u = assign[variable=@w](%x) : f32[4]
      %i = identity(%x) : f32[4] after(%u)
      return %i
    )");
}

TEST_F(IdentityRemoval, KeepsOneThatMovesItsInputToADevice) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4] on "cpu:0"
      %i = identity(%x) : f32[4] on "cpu:1"
      return %i
    )");
}

TEST_F(IdentityRemoval, RemovesOneOnTheDeviceOfItsInput) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4] on "cpu:0"
      %i = identity(%x) : f32[4] on "cpu:0"
      %j = identity(%x) : f32[4]
      return %i, %j
    )",
                 R"(
      %x = placeholder() : f32[4] on "cpu:0"
      return %x, %x
    )");
}

TEST_F(IdentityRemoval, WhoRanAfterItRunsAfterItsInput) {
  expect_rewrite(kPass, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %r = relu(%x) : f32[4]
      %i = identity(%r) : f32[4]
      %u = assign[variable=@w](%x) : f32[4] after(%i)
    )",
                 R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %r = relu(%x) : f32[4]
      %u = assign[variable=@w](%x) : f32[4] after(%r)
    )");
}

TEST_F(IdentityRemoval, AReshapeThatChangesTheShapeStays) {
  // A user's op with the trait `alias` is treated by its trait.
  static const bool registered = [] {
    OpDef def;
    def.name = "test_flatten";
    def.inputs = Arity::exactly(1);
    def.traits.alias = true;
    def.infer = [](InferContext& c) {
      c.add_output(c.input(0).dtype, Shape{c.input(0).shape.num_elements()});
    };
    OpRegistry::global().add(std::move(def));
    return true;
  }();
  ASSERT_TRUE(registered);
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[2,2]
      %f = test_flatten(%x) : f32[4]
      return %f
    )");
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4]
      %f = test_flatten(%x) : f32[4]
      %y = relu(%f) : f32[4]
      return %y
    )",
                 R"(
      %x = placeholder() : f32[4]
      %y = relu(%x) : f32[4]
      return %y
    )");
}

TEST_F(IdentityRemoval, WorksInsideRegions) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[]
      %l = while_loop[carried=1](%x) : f32[] {
        region {
          %v = placeholder() : f32[]
          %n = constant[value=f32[]{10.0}]() : f32[]
          %t = less(%v, %n) : bool[]
          %i = identity(%t) : bool[]
          return %i
        }
        region {
          %v = placeholder() : f32[]
          %n = constant[value=f32[]{1.0}]() : f32[]
          %s = add(%v, %n) : f32[]
          return %s
        }
      }
      return %l
    )",
                 R"(
      %x = placeholder() : f32[]
      %l = while_loop[carried=1](%x) : f32[] {
        region {
          %v = placeholder() : f32[]
          %n = constant[value=f32[]{10.0}]() : f32[]
          %t = less(%v, %n) : bool[]
          return %t
        }
        region {
          %v = placeholder() : f32[]
          %n = constant[value=f32[]{1.0}]() : f32[]
          %s = add(%v, %n) : f32[]
          return %s
        }
      }
      return %l
    )");
}

}  // namespace
}  // namespace lockstep
