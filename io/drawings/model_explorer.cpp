#include "lockstep/io/drawings/model_explorer.h"

#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/io/drawings/internal/communication.h"
#include "lockstep/io/drawings/internal/node_facts.h"
#include "lockstep/io/files/internal/json_text.h"

namespace lockstep {

namespace {

using internal::append_json;
using internal::Communication;

class Writer {
 public:
  explicit Writer(const Graph& graph) : facts_(graph) { levels_.emplace_back("main", &graph); }

  std::string take(std::string_view label) {
    out_ = "{\"label\":";
    append_json(out_, label);
    out_ += ",\"graphs\":[";
    for (std::size_t i = 0; i < levels_.size(); ++i) {  // regions are added on the way
      if (i > 0) out_ += ",\n";
      const auto [id, level] = levels_[i];
      write_graph(id, *level);
    }
    out_ += "]}\n";
    return std::move(out_);
  }

 private:
  void field(std::string_view name) { out_ += str(",\"", name, "\":"); }

  template <class List, class One>
  void list(std::string_view name, const List& all, One one) {
    field(name);
    out_ += '[';
    bool first = true;
    for (const auto& element : all) {
      if (!std::exchange(first, false)) out_ += ',';
      one(element);
    }
    out_ += ']';
  }

  void write_graph(const std::string& id, const Graph& graph) {
    out_ += "{\"id\":";
    append_json(out_, id);
    list("nodes", graph.nodes(), [&](const Node& node) {
      out_ += '\n';
      write_node(id, node);
    });
    out_ += '}';
  }

  void write_node(const std::string& graph_id, const Node& node) {
    const std::string& name = node.name();
    const std::size_t slash = name.rfind('/');
    out_ += "{\"id\":";
    append_json(out_, name);
    field("label");
    append_json(out_, node.op().name);
    field("namespace");
    append_json(out_,
                slash == std::string::npos ? std::string_view() : std::string_view(name).substr(0, slash));
    if (!node.regions().empty()) {
      std::vector<std::string> ids;
      for (std::size_t i = 0; i < node.regions().size(); ++i) {
        ids.push_back(str(graph_id, "/", name, "#", i));
        levels_.emplace_back(ids.back(), &node.regions()[i]);
      }
      list("subgraphIds", ids, [&](const std::string& id) { append_json(out_, id); });
    }
    list("attrs", attributes(node), [&](const auto& attribute) { pair(attribute.first, attribute.second); });
    write_edges(node);
    std::size_t output = 0;
    list("outputsMetadata", node.outputs(), [&](const TensorSpec& spec) {
      out_ += str("{\"id\":\"", output++, "\",\"attrs\":[");
      pair("tensor_shape", to_string(spec));
      out_ += "]}";
    });
    write_style(node);
    out_ += '}';
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
      out_ += "{\"sourceNodeId\":";
      append_json(out_, node.graph().node(edge.from).name());
      out_ += str(",\"sourceNodeOutputId\":\"", edge.output, "\",\"targetNodeInputId\":\"", edge.input, "\"");
      if (edge.control) out_ += ",\"metadata\":{\"kind\":\"control\"}";
      out_ += '}';
    });
    std::size_t input = 0;
    list("inputsMetadata", node.inputs(), [&](ValueId value) {
      out_ += str("{\"id\":\"", input++, "\",\"attrs\":[");
      if (node.graph().has_output(value)) pair("tensor_shape", to_string(node.graph().spec(value)));
      out_ += "]}";
    });
  }

  void write_style(const Node& node) {
    const Communication kind = internal::communication_of(node);
    if (kind == Communication::kNone) return;
    field("style");
    out_ += kind == Communication::kJoinsReplicas ? "{\"borderColor\":\"#c2410c\"}"
                                                  : "{\"borderColor\":\"#1d4ed8\"}";
  }

  void pair(std::string_view key, std::string_view value) {
    out_ += "{\"key\":";
    append_json(out_, key);
    out_ += ",\"value\":";
    append_json(out_, value);
    out_ += '}';
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
  std::vector<std::pair<std::string, const Graph*>> levels_;
};

}  // namespace

std::string to_model_explorer_json(const Graph& graph, std::string_view label) {
  return Writer(graph).take(label);
}

}  // namespace lockstep
