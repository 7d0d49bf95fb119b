// io/drawings/model_explorer.cpp - a graph in the JSON that Google's Model Explorer reads.
#include "lockstep/io/drawings/model_explorer.h"

#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/io/drawings/internal/communication.h"
#include "lockstep/io/drawings/internal/node_facts.h"
#include "lockstep/io/files/internal/json_writer.h"

namespace lockstep {

namespace {

using internal::Communication;
using internal::JsonWriter;

class Writer {
 public:
  explicit Writer(const Graph& graph) : facts_(graph) { levels_.emplace_back("main", &graph); }

  std::string take(std::string_view label) {
    json_.begin_object().key("label").text(label).key("graphs").begin_list();
    for (std::size_t i = 0; i < levels_.size(); ++i) {  // regions are added on the way
      if (i > 0) json_.new_line();
      const auto [id, level] = levels_[i];
      write_graph(id, *level);
    }
    json_.end_list().end_object();
    out_ += '\n';
    return std::move(out_);
  }

 private:
  template <class List, class One>
  void list(std::string_view name, const List& all, One one) {
    json_.key(name).begin_list();
    for (const auto& element : all) one(element);
    json_.end_list();
  }

  void write_graph(const std::string& id, const Graph& graph) {
    json_.begin_object().key("id").text(id);
    list("nodes", graph.nodes(), [&](const Node& node) {
      json_.new_line();
      write_node(id, node);
    });
    json_.end_object();
  }

  void write_node(const std::string& graph_id, const Node& node) {
    const std::string& name = node.name();
    const std::size_t slash = name.rfind('/');
    json_.begin_object().key("id").text(name).key("label").text(node.op().name);
    json_.key("namespace")
        .text(slash == std::string::npos ? std::string_view() : std::string_view(name).substr(0, slash));
    if (!node.regions().empty()) {
      std::vector<std::string> ids;
      for (std::size_t i = 0; i < node.regions().size(); ++i) {
        ids.push_back(str(graph_id, "/", name, "#", i));
        levels_.emplace_back(ids.back(), &node.regions()[i]);
      }
      list("subgraphIds", ids, [&](const std::string& id) { json_.text(id); });
    }
    list("attrs", attributes(node), [&](const auto& attribute) { pair(attribute.first, attribute.second); });
    write_edges(node);
    std::size_t output = 0;
    list("outputsMetadata", node.outputs(), [&](const TensorSpec& spec) {
      json_.begin_object().key("id").text(std::to_string(output++)).key("attrs").begin_list();
      pair("tensor_shape", to_string(spec));
      json_.end_list().end_object();
    });
    write_style(node);
    json_.end_object();
  }

  void write_edges(const Node& node) {
    struct Edge {
      NodeId from;
      std::uint32_t output;
      std::string input;
      bool control;
    };
    std::vector<Edge> edges;
    for (std::size_t i = 0; i < node.inputs().size(); ++i)
      edges.push_back({node.inputs()[i].node, node.inputs()[i].output, std::to_string(i), false});
    for (const NodeId control : node.controls()) edges.push_back({control, 0, "control", true});
    std::erase_if(edges, [&](const Edge& edge) { return !node.graph().contains(edge.from); });
    list("incomingEdges", edges, [&](const Edge& edge) {
      json_.begin_object().key("sourceNodeId").text(node.graph().node(edge.from).name());
      json_.key("sourceNodeOutputId").text(std::to_string(edge.output));
      json_.key("targetNodeInputId").text(edge.input);
      if (edge.control) json_.key("metadata").begin_object().key("kind").text("control").end_object();
      json_.end_object();
    });
    std::size_t input = 0;
    list("inputsMetadata", node.inputs(), [&](ValueId value) {
      json_.begin_object().key("id").text(std::to_string(input++)).key("attrs").begin_list();
      if (node.graph().has_output(value)) pair("tensor_shape", to_string(node.graph().spec(value)));
      json_.end_list().end_object();
    });
  }

  void write_style(const Node& node) {
    const Communication kind = internal::communication_of(node);
    if (kind == Communication::kNone) return;
    json_.key("style").begin_object().key("borderColor");
    json_.text(kind == Communication::kJoinsReplicas ? "#c2410c" : "#1d4ed8").end_object();
  }

  void pair(std::string_view key, std::string_view value) {
    json_.begin_object().key("key").text(key).key("value").text(value).end_object();
  }

  std::vector<std::pair<std::string, std::string>> attributes(const Node& node) const {
    std::vector<std::pair<std::string, std::string>> list;
    for (const Attribute& attribute : node.attributes())
      list.emplace_back(attribute.name, internal::short_text(attribute.value));
    const auto add = [&](const char* key, std::string value) {
      if (!value.empty()) list.emplace_back(key, std::move(value));
    };
    add("device", node.device());
    if (node.provenance().replica >= 0) add("replica", std::to_string(node.provenance().replica));
    add("replicas hold", std::string(facts_.replication(node)));
    add("made at", internal::site_text(node));
    add("made by", std::string(node.graph().text(node.provenance().made_by)));
    add("why", std::string(node.graph().text(node.provenance().why)));
    if (const auto work = facts_.work(node)) {
      if (work->cost.flops > 0) add("flops", str(work->cost.flops, work->unknown ? " per row" : ""));
      if (work->cost.bytes > 0) add("bytes", str(work->cost.bytes, work->unknown ? " per row" : ""));
    }
    return list;
  }

  const internal::NodeFacts facts_;
  std::string out_;
  JsonWriter json_{out_};
  std::vector<std::pair<std::string, const Graph*>> levels_;
};

}  // namespace

std::string to_model_explorer_json(const Graph& graph, std::string_view label) {
  return Writer(graph).take(label);
}

}  // namespace lockstep
