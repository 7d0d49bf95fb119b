// Tests: core/cluster/cluster_spec.cpp, core/cluster/worker_spec.cpp, core/cluster/address.cpp
#include "lockstep/core/cluster/cluster_spec.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using Jobs = std::map<std::string, std::vector<std::string>>;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.message();
  }
  return "nothing was refused";
}

TEST(ClusterSpec, RanksTheChiefFirst) {
  const ClusterSpec cluster(Jobs{{"worker", {"b:1", "c:1"}}, {"chief", {"a:1"}}, {"ps", {"d:1"}}});
  EXPECT_EQ(cluster.num_workers(), 3);
  const std::vector<std::string> addresses = {"a:1", "b:1", "c:1"};
  const WorkerSpec chief = cluster.worker("chief", 0);
  EXPECT_EQ(chief, (WorkerSpec{"chief", 0, 0, 3, addresses, "a:1", ""}));
  EXPECT_TRUE(chief.is_chief());
  const WorkerSpec last = cluster.worker("worker", 1);
  EXPECT_EQ(last, (WorkerSpec{"worker", 1, 2, 3, addresses, "a:1", ""}));
  EXPECT_FALSE(last.is_chief());
  EXPECT_EQ(last.task(), "worker:1");
}

TEST(ClusterSpec, HasTheFirstWorkerLeadWithoutAChief) {
  const ClusterSpec cluster(Jobs{{"worker", {"a:1", "b:1"}}});
  EXPECT_TRUE(cluster.worker("worker", 0).is_chief());
  EXPECT_EQ(cluster.worker("worker", 1).coordinator, "a:1");
}

// By number, not by the letters of the number.
TEST(ClusterSpec, OrdersByIndex) {
  ClusterSpec cluster;
  for (int i = 11; i >= 0; --i) cluster.add("worker", i, "host:" + std::to_string(100 + i));
  const WorkerSpec tenth = cluster.worker("worker", 10);
  EXPECT_EQ(tenth.rank, 10);
  EXPECT_EQ(tenth.addresses[2], "host:102");
  EXPECT_EQ(tenth.addresses[10], "host:110");
}

TEST(ClusterSpec, LeavesAnEvaluatorAlone) {
  const ClusterSpec cluster(Jobs{{"worker", {"a:1", "b:1"}}});
  const WorkerSpec evaluator = cluster.worker("evaluator", 0);
  EXPECT_EQ(evaluator, (WorkerSpec{.job = "evaluator"}));
  EXPECT_TRUE(evaluator.is_chief());
}

TEST(ClusterSpec, WithoutTasksHasOneWorker) { EXPECT_EQ(ClusterSpec().worker("worker", 0), WorkerSpec()); }

TEST(ClusterSpec, TakesAddresses) {
  ClusterSpec cluster;
  int index = 0;
  for (const char* address : {"10.0.0.1:1", "node-1.a_b.example:65535", "[::1]:2222", "[fe80::1%0]:7"}) {
    cluster.add("worker", index++, address);
  }
  EXPECT_EQ(cluster.to_string(), "worker 10.0.0.1:1, node-1.a_b.example:65535, [::1]:2222, [fe80::1%0]:7");
  EXPECT_EQ(ClusterSpec().to_string(), "no tasks");
}

TEST(ClusterSpec, RefusesWhatIsNoAddress) {
  for (const char* address :
       {"", "host", "host:", ":22", "host:0", "host:65536", "host:2x", "host:-1", "host: 2", "a b:1",
        "http://host:22", "::1:22", "[]:22", "[::1:22", "[x]:22", "a/b:1", "h\n:1", "host:+1"}) {
    const std::string said = refusal([&] { ClusterSpec().add("worker", 3, address); });
    EXPECT_NE(said.find("the address of worker 3 is '"), std::string::npos) << address << ": " << said;
    EXPECT_NE(said.find("must be host:port"), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
}

TEST(ClusterSpec, RefusesWhatCannotBe) {
  ClusterSpec cluster(Jobs{{"worker", {"a:1", "b:1"}}});
  EXPECT_EQ(refusal([&] { cluster.add("master", 0, "c:1"); }),
            "there is no job 'master' in a cluster; the jobs are chief, worker, evaluator and ps. What older "
            "programs call "
            "'master' is 'chief'");
  EXPECT_EQ(refusal([&] { cluster.add("chief", 1, "c:1"); }),
            "chief 1: a cluster has at most one chief, whose index is 0");
  EXPECT_EQ(refusal([&] { cluster.add("worker", -1, "c:1"); }),
            "worker -1: the index of a task is not negative");
  EXPECT_EQ(refusal([&] { cluster.add("worker", 1, "c:1"); }), "worker 1 is given twice");
  EXPECT_EQ(refusal([&] { cluster.add("ps", 0, "b:1"); }),
            "the address b:1 belongs to worker 1 and to ps 0; each task has its own");
  EXPECT_EQ(cluster.to_string(), "worker a:1, b:1") << "what was refused has left something";
  EXPECT_EQ(refusal([&] { cluster.worker("worker", 2); }), "the cluster has no worker 2: worker a:1, b:1");
  EXPECT_EQ(refusal([&] { cluster.worker("worker", -1); }), "worker -1: the index of a task is not negative");
  EXPECT_EQ(refusal([&] { cluster.worker("chief", 0); }), "the cluster has no job 'chief': worker a:1, b:1");
  EXPECT_NE(refusal([&] { cluster.worker("ps", 0); }).find("takes no part in a synchronous strategy"),
            std::string::npos);
  EXPECT_NE(refusal([&] { cluster.worker("evaluator", 1); }).find("at most one evaluator"),
            std::string::npos);
  EXPECT_NE(refusal([] { ClusterSpec().worker("worker", 1); }).find("has no tasks"), std::string::npos);
  cluster.add("worker", 4, "e:1");
  EXPECT_EQ(
      refusal([&] { cluster.worker("worker", 0); }),
      "the indices of job 'worker' are 0, 1, 4, and all workers of a synchronous strategy take part: they "
      "begin at 0 and have no gaps");
  EXPECT_LT(refusal([] {
              ClusterSpec many;
              for (int i = 0; i < 4000; ++i) many.add("worker", i, str("host-", i, ":1"));
              many.worker("worker", 4000);
            }).size(),
            300U);
}

}  // namespace
}  // namespace lockstep
