// Tests: graph/ops/register.cpp
// Every built-in op has its row in docs/ops.md.
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/ops/ops.h"
#include "support/data_dir.h"

namespace lockstep {
namespace {

TEST(OpDocs, HaveARowForEveryBuiltInOp) {
  std::ifstream file(testing::data_dir() / "../docs/ops.md");
  ASSERT_TRUE(file.is_open());
  std::stringstream text;
  text << file.rdbuf();
  OpRegistry fresh;
  register_builtin_ops(fresh);
  ASSERT_FALSE(fresh.names().empty());
  for (const std::string& name : fresh.names()) {
    EXPECT_NE(text.str().find("`" + name + "`"), std::string::npos) << "docs/ops.md has no row for " << name;
    EXPECT_FALSE(fresh.get(name).summary.empty()) << name;
  }
}

}  // namespace
}  // namespace lockstep
