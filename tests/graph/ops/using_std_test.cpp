// Tests: graph/ops/reductions.cpp, graph/ops/scans.cpp, graph/ops/moving.cpp
// A program that opens both namespaces, and has a class of its own with a likely name, calls ops without
// qualifying them.
#include <algorithm>
#include <any>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/lockstep.h"

// The point of this file, which is why it has no namespace around it.
using namespace std;       // NOLINT(google-build-using-namespace)
using namespace lockstep;  // NOLINT(google-build-using-namespace)

class TopK {
 public:
  int k = 2;
};

TEST(UsingStd, OpsAreCalledWithoutQualification) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 2});
  const Value flags = x > 1.5F;
  b.result(any_of(flags));
  b.result(all(flags));
  b.result(max(x));
  b.result(min(x));
  for (const Value& part : split(x, {1, 1}, 0)) b.result(sum(abs(exp(part))));
  b.result(top_k(x, TopK().k).values);
  const vector<Tensor> results =
      Interpreter(b.finish()).run(vector{Tensor::from({2, 2}, {1.0F, 2.0F, 3.0F, 0.0F})});
  EXPECT_EQ(results[0].item(), 1);
  EXPECT_EQ(results[1].item(), 0);
  EXPECT_EQ(results[2].item(), 3);
  EXPECT_EQ(results[3].item(), 0);
  EXPECT_EQ(results[6].data<float>()[0], 2);
}
