// Tests: core/cluster/tf_config.cpp
#include "lockstep/core/cluster/internal/tf_config.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

TEST(TfConfig, NamesATaskOfACluster) {
  const WorkerSpec worker = read_tf_config(R"({
    "cluster": {"worker": ["b:1", "c:2"], "chief": ["a:1"], "ps": ["p:1"], "evaluator": ["e:1"]},
    "task": {"type": "worker", "index": 1}})");
  EXPECT_EQ(worker, (WorkerSpec{"worker", 1, 2, 3, {"a:1", "b:1", "c:2"}, "a:1", ""}));
}

// As cloud services write it.
TEST(TfConfig, PassesOverWhatDoesNotConcernIt) {
  const WorkerSpec worker = read_tf_config(R"({
    "cluster": {"worker": {"0": "b:1", "1": "c:2"}}, "environment": "cloud", "job": {"scale_tier": "CUSTOM"},
    "rpc_layer": null, "session_master": "grpc://a:1",
    "task": {"type": "worker", "index": "1", "cloud": "some", "trial": ""}})");
  EXPECT_EQ(worker.rank, 1);
  EXPECT_EQ(worker.addresses, (std::vector<std::string>{"b:1", "c:2"}));
}

TEST(TfConfig, WithoutAClusterIsOneWorker) {
  for (const char* text : {"{}", R"({"cluster": {}})", R"({"cluster": {"worker": [], "ps": {}}})",
                           R"({"task": {}})", R"({"task": {"type": "worker", "index": 3}})",
                           R"({"cluster": {}, "task": {"type": "chief", "index": 0}})"}) {
    EXPECT_EQ(read_tf_config(text), WorkerSpec()) << text;
  }
}

TEST(TfConfig, LetsAnEvaluatorBeOutsideTheCluster) {
  const WorkerSpec spec =
      read_tf_config(R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}})");
  EXPECT_EQ(spec, (WorkerSpec{.job = "evaluator"}));
}

struct Wrong {
  const char* text;
  const char* says;
};

// What is wrong is named by its path.
TEST(TfConfig, RefusesByName) {
  const Wrong all[] = {
      {"", "it is not JSON, or not UTF-8, at byte 0"},
      {"worker", "it is not JSON"},
      {"[]", "expected an object with the fields cluster and task"},
      {"{\"cluster\": {}", "it is not JSON, or not UTF-8, at byte 14"},
      {"{} {}", "it is not JSON"},
      {"{\"cluster\": \"\xff\"}", "not UTF-8"},
      {R"({"clusters": {}})", "the field 'clusters' is not known; there can be cluster, task"},
      {R"({"task": {}, "task": {}})", "the field 'task' is given twice"},
      {R"({"rpc_layer": 3})", "rpc_layer: expected text"},
      {R"({"cluster": []})", "cluster: expected an object from job to addresses"},
      {R"({"cluster": {"worker": "a:1"}})", "cluster.worker: expected a list of addresses"},
      {R"({"cluster": {"workers": []}})", "cluster.workers: there is no job 'workers'"},
      {R"({"cluster": {"master": {}}})", "cluster.master: there is no job 'master'"},
      {R"({"cluster": {"worker": [1]}})", "cluster.worker[0]: expected an address as text"},
      {R"({"cluster": {"worker": ["a:1", "b"]}})", "cluster.worker[1]: the address of worker 1 is 'b'"},
      {R"({"cluster": {"worker": ["grpc://a:1"]}})",
       "cluster.worker[0]: the address of worker 0 is 'grpc://a:1'"},
      {R"({"cluster": {"worker": ["a:1", "a:1"]}})", "the address a:1 belongs to worker 0 and to worker 1"},
      {R"({"cluster": {"worker": {"first": "a:1"}}})", "expected an index"},
      {R"({"cluster": {"worker": {"-1": "a:1"}}})", "an index is not negative"},
      {R"({"cluster": {"worker": ["a:1"], "worker": ["b:1"]}})", "cluster.worker: the job is given twice"},
      {R"({"cluster": {"worker": {"0": "a:1", "00": "b:1"}}})", "worker 0 is given twice"},
      {R"({"cluster": {"chief": ["a:1", "b:1"]}})", "at most one chief"},
      {R"({"cluster": {"evaluator": ["a:1", "b:1"]}})", "at most one evaluator"},
      {R"({"cluster": {"master": ["a:1"]}})", "is 'chief'"},
      {R"({"cluster": {"worker": ["a:1"]}})", "task: which task of the cluster is this?"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": 1})", "task: expected an object"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}})", "task.index: it is missing"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"index": 0}})", "task.type: it is missing"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": 1, "index": 0}})",
       "task.type: expected the name of a job"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1.5}})",
       "task.index: expected an index"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": true}})",
       "task.index: expected an index"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}})",
       "task.index: an index is not negative"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 99999999999}})",
       "task.index: expected an index"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}})",
       "task: the cluster has no worker 1"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}})",
       "task: the cluster has no job 'chief'"},
      {R"({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}})",
       "parameter server"},
      {R"({"cluster": {"worker": {"0": "a:1", "2": "b:1"}}, "task": {"type": "worker", "index": 0}})",
       "the indices of job 'worker' are 0, 2"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0, "name": "x"}})",
       "task: the field 'name' is not known; there can be type, index"},
      {R"({"task": {"type": "boss", "index": 0}})", "there is no job 'boss'"},
  };
  for (const Wrong& wrong : all) {
    try {
      const WorkerSpec spec = read_tf_config(wrong.text);
      ADD_FAILURE() << wrong.text << " became " << spec.task();
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(error.message().starts_with("TF_CONFIG: ")) << error.message();
      EXPECT_NE(error.message().find(wrong.says), std::string::npos) << wrong.text << "\n" << error.message();
    }
  }
}

// Neither deep nesting nor a byte of zero gets past the parser.
TEST(TfConfig, RefusesWhatHarms) {
  EXPECT_THROW(read_tf_config(std::string(1 << 20, '[')), InvalidArgument);
  EXPECT_THROW(read_tf_config(std::string(1 << 18, '[') + std::string(1 << 18, ']')), InvalidArgument);
  EXPECT_THROW(read_tf_config(std::string("{}\0{}", 5)), InvalidArgument);
  EXPECT_THROW(read_tf_config("{\"cluster\": {\"worker\": [\"a\x1b[2J:1\"]}}"), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::internal
