// Tests: io/drawings/model_explorer.cpp, io/files/json_text.cpp
#include "lockstep/io/drawings/model_explorer.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "support/drawn_graphs.h"
#include "support/json.h"

namespace lockstep {
namespace {

using testing::Json;

// The interfaces that Model Explorer publishes for its input, as they stand in google-ai-edge/model-explorer:
//   src/ui/src/components/visualizer/common/input_graph.ts    GraphCollection, Graph, GraphNode
//   src/ui/src/components/visualizer/common/types.ts          IncomingEdge, MetadataItem, NodeAttribute, KeyValue,
//                                                             GraphNodeStyle, KeyValuePairs
// A type is a JSON type, an interface below, or either in brackets for an array of it. "?" marks what may be
// absent.
const std::map<std::string, std::map<std::string, std::string>> kInterfaces = {
    {"GraphCollection", {{"label", "string"}, {"graphs", "[Graph]"}}},
    {"Graph", {{"id", "string"}, {"collectionLabel", "string?"}, {"nodes", "[GraphNode]"}}},
    {"GraphNode",
     {{"id", "string"},
      {"label", "string"},
      {"namespace", "string"},
      {"subgraphIds", "[string]?"},
      {"attrs", "[NodeAttribute]?"},
      {"incomingEdges", "[IncomingEdge]?"},
      {"inputsMetadata", "[MetadataItem]?"},
      {"outputsMetadata", "[MetadataItem]?"},
      {"style", "GraphNodeStyle?"}}},
    {"NodeAttribute", {{"key", "string"}, {"value", "string"}}},
    {"MetadataItem", {{"id", "string"}, {"attrs", "[KeyValue]"}}},
    {"KeyValue", {{"key", "string"}, {"value", "string"}}},
    {"IncomingEdge",
     {{"sourceNodeId", "string"},
      {"sourceNodeOutputId", "string"},
      {"targetNodeInputId", "string"},
      {"metadata", "KeyValuePairs?"}}},
    {"KeyValuePairs", {{"kind", "string?"}}},
    {"GraphNodeStyle",
     {{"backgroundColor", "string?"}, {"borderColor", "string?"}, {"hoveredBorderColor", "string?"}}},
};

void check(const Json& json, std::string type, const std::string& where, std::set<std::string>& seen) {
  if (type.back() == '?') type.pop_back();
  if (type.front() == '[') {
    ASSERT_EQ(json.type(), "array") << where;
    for (std::size_t i = 0; i < json.list().size(); ++i)
      check(json[i], type.substr(1, type.size() - 2), str(where, "[", i, "]"), seen);
    return;
  }
  const auto found = kInterfaces.find(type);
  if (found == kInterfaces.end()) {
    ASSERT_EQ(json.type(), type) << where;
    return;
  }
  ASSERT_EQ(json.type(), "object") << where;
  for (const auto& [name, value] : json.object()) {
    ASSERT_TRUE(found->second.contains(name))
        << where << " has the field '" << name << "', which " << type << " has not";
    seen.insert(type + "." + name);
    check(value, found->second.at(name), where + "." + name, seen);
  }
  for (const auto& [name, expected] : found->second) {
    if (expected.back() != '?') {
      EXPECT_TRUE(json.contains(name)) << where << " lacks the field '" << name << "'";
    }
  }
}

const Json& node_of(const Json& graph, const std::string& id) {
  for (const Json& node : graph["nodes"].list()) {
    if (node["id"].text() == id) return node;
  }
  throw NotFound("no node " + id);
}

std::string attribute(const Json& node, const std::string& key) {
  for (const Json& one : node["attrs"].list()) {
    if (one["key"].text() == key) return one["value"].text();
  }
  return "";
}

TEST(ModelExplorer, WritesTheFieldsThatItsInterfaceHas) {
  const Graph graph = parse(R"(
      var @w : f32[4]
      %p = placeholder() : bool[]
      %x = placeholder() : f32[4]
      %enc/w = read[variable=@w]() : f32[4] on "cpu:0" replica 1
      %"enc/a\"b\\" = add(%x, %enc/w) : f32[4] after(%p)
      %c = cond(%p, %"enc/a\"b\\") : f32[4] {
        region {
          %v = placeholder() : f32[4]
          %n = neg(%v) : f32[4]
          return %n
        }
        region {
          %v = placeholder() : f32[4]
          return %v
        }
      }
      %s = reduce_replicas[reduce="sum", replicas=2](%c, %x) : f32[4]
      return %s
  )");
  const Json json = Json::parse(to_model_explorer_json(graph, "step"));
  std::set<std::string> seen;
  check(json, "GraphCollection", "collection", seen);
  // Every field that we mean to write was written somewhere.
  for (const char* field :
       {"GraphCollection.label", "GraphNode.subgraphIds", "GraphNode.inputsMetadata",
        "GraphNode.outputsMetadata", "GraphNode.style", "IncomingEdge.metadata", "NodeAttribute.value"})
    EXPECT_TRUE(seen.contains(field)) << field;

  EXPECT_EQ(json["label"].text(), "step");
  ASSERT_EQ(json["graphs"].list().size(), 3U);
  const Json& main = json["graphs"][0];
  const Json& add = node_of(main, "enc/a\"b\\");
  EXPECT_EQ(add["namespace"].text(), "enc");
  EXPECT_EQ(add["label"].text(), "add");
  ASSERT_EQ(add["incomingEdges"].list().size(), 3U);
  EXPECT_EQ(add["incomingEdges"][1]["sourceNodeId"].text(), "enc/w");
  EXPECT_EQ(add["incomingEdges"][1]["targetNodeInputId"].text(), "1");
  EXPECT_EQ(add["incomingEdges"][2]["metadata"]["kind"].text(), "control");
  EXPECT_EQ(add["outputsMetadata"][0]["attrs"][0]["value"].text(), "f32[4]");
  EXPECT_EQ(attribute(node_of(main, "enc/w"), "variable"), "@w");
  EXPECT_EQ(attribute(node_of(main, "enc/w"), "device"), "cpu:0");
  EXPECT_EQ(attribute(node_of(main, "enc/w"), "replica"), "1");
  EXPECT_EQ(attribute(add, "made at"), "<text>:6");

  // Regions are graphs of their own, which the node names.
  const Json& cond = node_of(main, "c");
  ASSERT_EQ(cond["subgraphIds"].list().size(), 2U);
  EXPECT_EQ(cond["subgraphIds"][0].text(), json["graphs"][1]["id"].text());
  EXPECT_EQ(node_of(json["graphs"][1], "n")["label"].text(), "neg");
}

TEST(ModelExplorer, NamesOnlyNodesThatAreThere) {
  const Json json = Json::parse(to_model_explorer_json(testing::layered_graph(7, 3)));
  std::set<std::string> ids;
  for (const Json& node : json["graphs"][0]["nodes"].list())
    EXPECT_TRUE(ids.insert(node["id"].text()).second);
  EXPECT_EQ(ids.size(), 3U * (1 + 7 * 3 + 1));
  for (const Json& node : json["graphs"][0]["nodes"].list()) {
    for (const Json& edge : node["incomingEdges"].list())
      EXPECT_TRUE(ids.contains(edge["sourceNodeId"].text()));
  }
}

}  // namespace
}  // namespace lockstep
