// Tests: io/graphs/identities.cpp
#include "lockstep/io/graphs/internal/identities.h"

#include <gtest/gtest.h>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {
namespace {

TEST(Identities, OfThisProcessStayWhatTheyAre) {
  const std::uint64_t own = Graph::new_identity();
  const LastingIdentity lasting = lasting_identity(own);
  EXPECT_EQ(lasting.number, own);
  EXPECT_EQ(local_identity(lasting), own);
  EXPECT_EQ(local_identity({}), 0U);
}

TEST(Identities, OfFilesGetNumbersThatNobodyHasAndKeepThem) {
  const OriginId origin{0x1234, 0x5678};
  for (const std::uint64_t number :
       {std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{64}, ~std::uint64_t{0}}) {
    const LastingIdentity identity{origin, number};
    const std::uint64_t local = local_identity(identity);
    EXPECT_EQ(local_identity(identity), local);
    EXPECT_EQ(lasting_identity(local), identity);
    EXPECT_NE(local_identity({{origin[0], origin[1] + 1}, number}), local) << "another origin";
    EXPECT_LT(local, Graph::new_identity());
  }
}

TEST(Identities, AreForgottenWhenTooManyCame) {
  const LastingIdentity first{{7, 7}, 1};
  const std::uint64_t local = local_identity(first);
  constexpr std::uint64_t kBlocks = (std::uint64_t{1} << 18U) + 1, kBlock = 64;
  for (std::uint64_t i = 0; i < kBlocks; ++i) local_identity({{8, 8}, i * kBlock + 1});
  EXPECT_NE(local_identity(first), local);
  EXPECT_NE(lasting_identity(local), first) << "it is this process's own now";
}

}  // namespace
}  // namespace lockstep::internal
