// Tests: strategies/passes/bucket_all_reduce.cpp, strategies/passes/register.cpp
#include "lockstep/strategies/passes/bucket_all_reduce.h"

#include <gtest/gtest.h>

#include "lockstep/strategies/passes/register.h"
#include "support/pass_test.h"
#include "support/training.h"

namespace lockstep {
namespace {

class BucketAllReduce : public testing::PassTest {
 protected:
  void SetUp() override { register_strategy_passes(); }

  static std::string region(const std::string& nodes) {
    return R"(
      %x0 = placeholder() : f32[4]
      %x1 = placeholder() : f32[4]
      %step = replicated[replicas=2, shared=0](%x0, %x1) : f32[4], f32[4], f32[4], f32[4], f32[4], f32[4] {
        region {
          %x = placeholder() : f32[4]
)" + nodes +
           R"(
        }
      }
      return %step, %step:1, %step:2, %step:3, %step:4, %step:5)";
  }
};

const char* const kThree = R"(
          %a = neg(%x) : f32[4]
          %b = square(%x) : f32[4]
          %c = exp(%x) : f32[4]
          %c2 = all_reduce[reduce="sum"](%c) : f32[4]
          %a2 = all_reduce[reduce="sum"](%a) : f32[4]
          %b2 = all_reduce[reduce="sum"](%b) : f32[4]
          return %a2, %b2, %c2)";

TEST_F(BucketAllReduce, JoinsInTheOrderInWhichValuesAreReady) {
  expect_rewrite("bucket-all-reduce", region(kThree), region(R"(
          %a = neg(%x) : f32[4]
          %b = square(%x) : f32[4]
          %c = exp(%x) : f32[4]
          %a2/pack = all_reduce[reduce="sum"](%a, %b, %c) : f32[4], f32[4], f32[4]
          return %a2/pack, %a2/pack:1, %a2/pack:2)"));
}

// 16 bytes each: a pack of exactly the limit is not yet larger than it.
TEST_F(BucketAllReduce, APackIsClosedWhenItIsLargerThanTheLimit) {
  const std::string two = region(R"(
          %a = neg(%x) : f32[4]
          %b = square(%x) : f32[4]
          %c = exp(%x) : f32[4]
          %c2 = all_reduce[reduce="sum"](%c) : f32[4]
          %a2/pack = all_reduce[reduce="sum"](%a, %b) : f32[4], f32[4]
          return %a2/pack, %a2/pack:1, %c2)");
  expect_rewrite("bucket-all-reduce(bytes_per_pack=16)", region(kThree), two);
  expect_rewrite("bucket-all-reduce(bytes_per_pack=31)", region(kThree), two);
  expect_unchanged("bucket-all-reduce(bytes_per_pack=15)", region(kThree));
}

TEST_F(BucketAllReduce, ZeroBytesIsOnePack) {
  expect_rewrite("bucket-all-reduce(bytes_per_pack=0)", region(kThree), region(R"(
          %a = neg(%x) : f32[4]
          %b = square(%x) : f32[4]
          %c = exp(%x) : f32[4]
          %a2/pack = all_reduce[reduce="sum"](%a, %b, %c) : f32[4], f32[4], f32[4]
          return %a2/pack, %a2/pack:1, %a2/pack:2)"));
}

TEST_F(BucketAllReduce, MakesAsManyPacksAsAskedFor) {
  expect_rewrite("bucket-all-reduce(num_packs=2)", region(kThree), region(R"(
          %a = neg(%x) : f32[4]
          %b = square(%x) : f32[4]
          %c = exp(%x) : f32[4]
          %c2 = all_reduce[reduce="sum"](%c) : f32[4]
          %a2/pack = all_reduce[reduce="sum"](%a, %b) : f32[4], f32[4]
          return %a2/pack, %a2/pack:1, %c2)"));
  expect_unchanged("bucket-all-reduce(num_packs=3)", region(kThree));
  expect_unchanged("bucket-all-reduce(num_packs=8)", region(kThree));
}

TEST_F(BucketAllReduce, LeavesDifferentKindsApart) {
  expect_unchanged("bucket-all-reduce", region(R"(
          %a = neg(%x) : f32[4]
          %b = cast[dtype=f64](%x) : f64[4]
          %a2 = all_reduce[reduce="sum"](%a) : f32[4]
          %a3 = all_reduce[reduce="mean"](%a) : f32[4]
          %b2 = all_reduce[reduce="sum"](%b) : f64[4]
          %b3 = cast[dtype=f32](%b2) : f32[4]
          return %a2, %a3, %b3)"));
}

TEST_F(BucketAllReduce, LeavesDifferentDevicesApart) {
  expect_unchanged("bucket-all-reduce", region(R"(
          %a2 = all_reduce[reduce="sum"](%x) : f32[4] on "cpu:0"
          %b2 = all_reduce[reduce="sum"](%x) : f32[4] on "cpu:1"
          return %a2, %b2, %b2)"));
}

// c depends on a; b could go with either, and stays with what is ready as early.
TEST_F(BucketAllReduce, NeverJoinsWhatDependsOnOneAnother) {
  expect_rewrite("bucket-all-reduce", region(R"(
          %a = all_reduce[reduce="sum"](%x) : f32[4]
          %d = mul(%a, %x) : f32[4]
          %c = all_reduce[reduce="sum"](%d) : f32[4]
          %n = neg(%x) : f32[4]
          %b = all_reduce[reduce="sum"](%n) : f32[4]
          return %a, %b, %c)"),
                 region(R"(
          %n = neg(%x) : f32[4]
          %a/pack = all_reduce[reduce="sum"](%x, %n) : f32[4], f32[4]
          %d = mul(%a/pack, %x) : f32[4]
          %c = all_reduce[reduce="sum"](%d) : f32[4]
          return %a/pack, %a/pack:1, %c)"));
}

TEST_F(BucketAllReduce, OrderWithoutDataCountsToo) {
  expect_unchanged("bucket-all-reduce", region(R"(
          %a = all_reduce[reduce="sum"](%x) : f32[4]
          %n = neg(%x) : f32[4] after(%a)
          %b = all_reduce[reduce="sum"](%n) : f32[4]
          return %a, %b, %n)"));
}

TEST_F(BucketAllReduce, KeepsWhatRunsBeforeAndAfter) {
  expect_rewrite("bucket-all-reduce", region(R"(
          %p = exp(%x) : f32[4]
          %a = all_reduce[reduce="sum"](%x) : f32[4] after(%p)
          %n = neg(%x) : f32[4]
          %b = all_reduce[reduce="sum"](%n) : f32[4]
          %q = abs(%x) : f32[4] after(%b)
          return %a, %b, %q)"),
                 region(R"(
          %p = exp(%x) : f32[4]
          %n = neg(%x) : f32[4]
          %a/pack = all_reduce[reduce="sum"](%x, %n) : f32[4], f32[4] after(%p)
          %q = abs(%x) : f32[4] after(%a/pack)
          return %a/pack, %a/pack:1, %q)"));
}

TEST_F(BucketAllReduce, PacksMayGrow) {
  expect_rewrite("bucket-all-reduce", region(R"(
          %a = all_reduce[reduce="sum"](%x, %x) : f32[4], f32[4]
          %n = neg(%x) : f32[4]
          %b = all_reduce[reduce="sum"](%n) : f32[4]
          return %a, %a:1, %b)"),
                 region(R"(
          %n = neg(%x) : f32[4]
          %a/pack = all_reduce[reduce="sum"](%x, %x, %n) : f32[4], f32[4], f32[4]
          return %a/pack, %a/pack:1, %a/pack:2)"));
}

TEST_F(BucketAllReduce, UnknownShapesCountAsNothing) {
  const auto step = [](const std::string& nodes) {
    return R"(
      %x0 = placeholder() : f32[?]
      %x1 = placeholder() : f32[?]
      %step = replicated[replicas=2, shared=0](%x0, %x1) {
        region {
          %x = placeholder() : f32[?]
          %a = neg(%x) : f32[?]
)" + nodes +
           "}\n}\n";
  };
  expect_rewrite("bucket-all-reduce(bytes_per_pack=1)", step(R"(
          %x2 = all_reduce[reduce="sum"](%x) : f32[?]
          %a2 = all_reduce[reduce="sum"](%a) : f32[?])"),
                 step(R"(
          %x2/pack = all_reduce[reduce="sum"](%x, %a) : f32[?], f32[?])"));
}

TEST_F(BucketAllReduce, RefusesOptionsThatSayNothing) {
  const PassRegistry& passes = PassRegistry::global();
  EXPECT_THROW(passes.make("bucket-all-reduce(bytes_per_pack=-1)"), BadOptionValue);
  EXPECT_THROW(passes.make("bucket-all-reduce(num_packs=-1)"), BadOptionValue);
  EXPECT_THROW(passes.make("bucket-all-reduce(bytes_per_pack=1MiB,num_packs=2)"), BadOptionValue);
  EXPECT_EQ(passes.make("bucket-all-reduce(num_packs=2)")->to_string(), "bucket-all-reduce(num_packs=2)");
  EXPECT_EQ(make_bucket_all_reduce()->to_string(), "bucket-all-reduce(bytes_per_pack=4194304)");
}

// --- by meaning

TEST_F(BucketAllReduce, ChangesNoBits) {
  Graph apart = testing::replicated_step(3);
  PassRegistry::global().parse_pipeline("insert-all-reduce,replicate").run(apart);
  for (const char* pack : {"", "(bytes_per_pack=0)", "(bytes_per_pack=20)", "(num_packs=2)"}) {
    Graph packed = testing::replicated_step(3);
    PassRegistry::global()
        .parse_pipeline(str("insert-all-reduce,bucket-all-reduce", pack, ",replicate"))
        .run(packed);
    Interpreter first(apart), second(packed);
    for (std::uint64_t step = 0; step < 2; ++step) {
      Interpreter::Feeds feeds;
      for (std::uint64_t r = 0; r < 3; ++r) {
        const testing::Batch batch = testing::make_batch(3, step * 10 + r);
        feeds[str("x", r)] = batch.x;
        feeds[str("rows", r)] = batch.rows;
      }
      first.run(feeds);
      second.run(feeds);
    }
    for (const auto& [name, value] : first.variables())
      EXPECT_TRUE(value.bit_equal(second.variables().at(name))) << name << " " << pack;
  }
}

}  // namespace
}  // namespace lockstep
