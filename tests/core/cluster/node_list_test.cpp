// Tests: core/cluster/node_list.cpp
#include "lockstep/core/cluster/internal/node_list.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

using Hosts = std::vector<std::string>;

Hosts expanded(std::string_view list) { return expand_node_list(list, "NODES"); }

TEST(NodeList, ExpandsBrackets) {
  EXPECT_EQ(expanded("host"), (Hosts{"host"}));
  EXPECT_EQ(expanded("a,b.example,c"), (Hosts{"a", "b.example", "c"}));
  EXPECT_EQ(expanded("node[001,007-009],login2"),
            (Hosts{"node001", "node007", "node008", "node009", "login2"}));
  EXPECT_EQ(expanded("n[9-11]"), (Hosts{"n9", "n10", "n11"}));
  EXPECT_EQ(expanded("n[08-10]x"), (Hosts{"n08x", "n09x", "n10x"}));
  EXPECT_EQ(expanded("r[1-2]n[0,3]"), (Hosts{"r1n0", "r1n3", "r2n0", "r2n3"}));
  EXPECT_EQ(expanded("[1-3]"), (Hosts{"1", "2", "3"}));
  EXPECT_EQ(expanded("n[0-65535]").size(), 65536U);
}

TEST(NodeList, RefusesWhatIsNone) {
  for (const std::string& list : {std::string(),
                                  std::string(","),
                                  std::string("a,"),
                                  std::string(",a"),
                                  std::string("a[1"),
                                  std::string("a[]"),
                                  std::string("a[1-]"),
                                  std::string("a[-1]"),
                                  std::string("a[2-1]"),
                                  std::string("a]"),
                                  std::string("a[1]]"),
                                  std::string("a[x]"),
                                  std::string("a[1;2]"),
                                  std::string("n[0-65536]"),
                                  std::string("n[0-999999999]"),
                                  std::string("n[0-4294967296]"),
                                  std::string("a[0-999]b[0-999]c[0-999]"),
                                  std::string(300, 'x'),
                                  "n[0-9999]" + std::string(300, 'y'),
                                  "n[" + std::string(100'000, '0') + "-65535]",
                                  std::string(250, 'x') + "[0-9999]",
                                  [] {
                                    std::string brackets = "n[0-999]";
                                    for (int i = 0; i < 500; ++i) brackets += "[0]";
                                    return brackets;
                                  }(),
                                  std::string("a[1-2")}) {
    try {
      const Hosts hosts = expanded(list);
      ADD_FAILURE() << list.substr(0, 40) << " has become " << hosts.size() << " hosts";
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(error.message().starts_with("NODES is '")) << error.message();
    }
  }
}

}  // namespace
}  // namespace lockstep::internal
