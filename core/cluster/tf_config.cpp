// core/cluster/tf_config.cpp - parses TF_CONFIG with RapidJSON, without recursion.
#include "lockstep/core/cluster/internal/tf_config.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/base/rapidjson.h"
#include "lockstep/core/cluster/cluster_spec.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

using Json = json::Value;

[[noreturn]] void fail(std::string_view path, std::string_view message) {
  throw InvalidArgument(str("TF_CONFIG: ", path, path.empty() ? "" : ": ", message));
}

std::string_view text_of(const Json& value) { return {value.GetString(), value.GetStringLength()}; }

std::string shown(std::string_view text) { return str("'", printable(text.substr(0, 80)), "'"); }

// Looks at the fields of an object: each known, none twice.
void check_fields(const Json& object, std::string_view path, std::initializer_list<std::string_view> known) {
  std::set<std::string_view> seen;
  for (const auto& field : object.GetObject()) {
    const std::string_view name = text_of(field.name);
    if (std::ranges::find(known, name) == known.end()) {
      std::string names;
      for (const std::string_view each : known) names += str(names.empty() ? "" : ", ", each);
      fail(path, str("the field ", shown(name), " is not known; there can be ", names));
    }
    if (!seen.insert(name).second) fail(path, str("the field ", shown(name), " is given twice"));
  }
}

const Json* find(const Json& object, const char* name) {
  const auto found = object.FindMember(name);
  return found == object.MemberEnd() ? nullptr : &found->value;
}

int index_from(std::string_view digits, std::string_view path) {
  int index = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (digits.starts_with('-')) fail(path, str("an index is not negative, and this is ", shown(digits)));
  if (error != std::errc() || end != digits.data() + digits.size())
    fail(path, str("expected an index, such as 0 or \"0\", and this is ", shown(digits)));
  return index;
}

int index_from(const Json& value, std::string_view path) {
  if (value.IsString()) return index_from(text_of(value), path);
  if (value.IsInt64() && value.GetInt64() < 0) fail(path, "an index is not negative");
  if (!value.IsInt()) fail(path, "expected an index, such as 0 or \"0\"");
  return value.GetInt();
}

// What is refused is refused for that field.
template <class F>
void at(std::string_view path, const F& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    fail(path, error.message());
  }
}

void add_task(ClusterSpec& cluster, std::string_view job, int index, const Json& address,
              const std::string& path) {
  if (!address.IsString()) fail(path, "expected an address as text, such as \"10.0.0.1:2222\"");
  at(path, [&] { cluster.add(job, index, text_of(address)); });
}

ClusterSpec cluster_from(const Json& jobs) {
  if (!jobs.IsObject())
    fail("cluster", "expected an object from job to addresses, such as {\"worker\": [\"10.0.0.1:2222\"]}");
  ClusterSpec cluster;
  std::set<std::string_view> seen;
  for (const auto& field : jobs.GetObject()) {
    const std::string_view job = text_of(field.name);
    const std::string path = str("cluster.", printable(job.substr(0, 80)));
    if (!seen.insert(job).second) fail(path, "the job is given twice");
    const Json& tasks = field.value;
    if (tasks.IsArray()) {
      for (json::SizeType i = 0; i < tasks.Size(); ++i)
        add_task(cluster, job, static_cast<int>(i), tasks[i], str(path, "[", i, "]"));
    } else if (tasks.IsObject()) {
      for (const auto& task : tasks.GetObject()) {
        const std::string_view index = text_of(task.name);
        const std::string of_task = str(path, "[", shown(index), "]");
        add_task(cluster, job, index_from(index, of_task), task.value, of_task);
      }
    } else {
      fail(path, "expected a list of addresses, or an object from index to address");
    }
    // Of a job without tasks nothing else has looked at the name.
    if (tasks.IsArray() ? tasks.Empty() : tasks.ObjectEmpty())
      at(path, [&] { ClusterSpec(std::map<std::string, std::vector<std::string>>{{std::string(job), {}}}); });
  }
  return cluster;
}

}  // namespace

WorkerSpec read_tf_config(std::string_view text) {
  json::Document document;
  json::MemoryStream stream(text.data(), text.size());
  document.ParseStream<json::kParseIterativeFlag | json::kParseValidateEncodingFlag, json::UTF8<>>(stream);
  if (document.HasParseError() || stream.Tell() != text.size()) {
    const std::size_t at = document.HasParseError() ? document.GetErrorOffset() : stream.Tell();
    fail("", str("it is not JSON, or not UTF-8, at byte ", at, ": ",
                 shown(text.substr(std::min(at, text.size()), 40)),
                 ". Without a cluster, leave the variable away"));
  }
  if (!document.IsObject()) fail("", "expected an object with the fields cluster and task");
  check_fields(document, "", {"cluster", "task", "rpc_layer", "session_master", "environment", "job"});
  for (const char* name : {"rpc_layer", "session_master", "environment"}) {
    const Json* const value = find(document, name);
    if (value != nullptr && !value->IsString() && !value->IsNull()) fail(name, "expected text");
  }
  const Json* const jobs = find(document, "cluster");
  const ClusterSpec cluster = jobs == nullptr ? ClusterSpec() : cluster_from(*jobs);
  const Json* const task = find(document, "task");
  if (task == nullptr) {
    if (!cluster.empty())
      fail(
          "task",
          str("which task of the cluster is this? Say {\"type\": \"worker\", \"index\": 0}; the cluster has ",
              cluster.to_string()));
    return {};
  }
  if (!task->IsObject()) fail("task", "expected an object with the fields type and index");
  check_fields(*task, "task", {"type", "index", "cloud", "trial"});
  const Json* const type = find(*task, "type");
  const Json* const index = find(*task, "index");
  if (cluster.empty() && type == nullptr && index == nullptr) return {};
  if (type == nullptr) fail("task.type", "it is missing: the job that this task belongs to");
  if (!type->IsString()) fail("task.type", "expected the name of a job as text");
  if (index == nullptr) fail("task.index", "it is missing: the number of this task in its job");
  const int number = index_from(*index, "task.index");
  try {
    // Without a cluster the task is the only one, whatever its number.
    return cluster.empty() ? cluster.worker(text_of(*type) == "chief" ? "worker" : text_of(*type), 0)
                           : cluster.worker(text_of(*type), number);
  } catch (const InvalidArgument& error) {
    fail("task", error.message());
  }
}

}  // namespace lockstep::internal
