#include "lockstep/io/html.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/files.h"
#include "lockstep/io/internal/drawing.h"
#include "lockstep/io/internal/html_page.h"
#include "lockstep/io/internal/node_facts.h"
#include "lockstep/io/internal/scope_drawings.h"

namespace lockstep {

namespace {

using internal::append_json;

// What the page says of a stage besides its graph.
struct StageNote {
  std::string pass = {};
  std::string error = {};
  double seconds = 0;
};

// The page's data: JSON with short names, since there is much of it. page.js says what they mean.
class PageData {
 public:
  PageData(const GraphView& view, std::vector<StageNote> notes)
      : view_(view),
        notes_(std::move(notes)),
        devices_(view, ColourBy::kDevice),
        replicas_(view, ColourBy::kReplica) {
    for (const ViewStage& stage : view.stages())
      facts_.push_back(std::make_unique<internal::NodeFacts>(*stage.graph));
  }

  // Script elements: everything but the drawings, then each drawing, which the page reads when it is looked at.
  std::string take(const HtmlOptions& options, const std::vector<std::string>& left_out) {
    out_ = "<script type=\"application/json\" id=\"data\">{\"title\":";
    append_json(out_, options.title);
    write_stages();
    texts("left_out", left_out);
    texts("devices", devices_.names());
    texts("replicas", replicas_.names());
    write_scopes();
    write_nodes();
    write_facts();
    out_ += "}</script>\n";
    write_drawings(internal::draw_scopes(view_, options.graphviz));
    return std::move(out_);
  }

 private:
  void begin(std::string_view name) { out_ += str(",\"", name, "\":["); }
  void comma() {
    if (out_.back() != '[' && out_.back() != '{') out_ += ',';
  }
  template <class Number>
  void numbers(std::string_view name, const Number& list) {
    begin(name);
    for (const auto number : list) {
      comma();
      out_ += std::to_string(number);
    }
    out_ += ']';
  }
  void texts(std::string_view name, const std::vector<std::string>& list) {
    begin(name);
    for (const std::string& text : list) {
      comma();
      append_json(out_, text);
    }
    out_ += ']';
  }

  void write_stages() {
    begin("stages");
    for (std::size_t s = 0; s < view_.stages().size(); ++s) {
      comma();
      out_ += "{\"n\":";
      append_json(out_, view_.stages()[s].name);
      out_ += ",\"p\":";
      append_json(out_, notes_[s].pass);
      out_ += ",\"e\":";
      append_json(out_, notes_[s].error);
      out_ += str(",\"t\":", notes_[s].seconds, ",\"z\":", count_nodes(*view_.stages()[s].graph), "}");
    }
    out_ += ']';
  }

  void write_scopes() {
    begin("scopes");
    for (const ViewScope& scope : view_.scopes()) {
      comma();
      out_ += "{\"n\":";
      append_json(out_, scope.name);
      out_ += ",\"l\":";
      append_json(out_, scope.label);
      out_ += str(",\"p\":", scope.parent, ",\"z\":", scope.size, ",\"m\":", scope.stages);
      if (!scope.copies.empty()) texts("c", scope.copies);
      if (scope.holder != ViewScope::kNoHolder) out_ += str(",\"b\":", scope.holder);
      if (scope.chained) out_ += ",\"h\":1";
      out_ += '}';
    }
    out_ += ']';
  }

  void write_nodes() {
    begin("nodes");
    for (std::uint32_t i = 0; i < view_.nodes().size(); ++i) {
      const ViewNode& node = view_.nodes()[i];
      if (node.drawn_as != i) continue;
      comma();
      out_ += str("{\"i\":", i, ",\"n\":");
      append_json(out_, node.name);
      out_ += ",\"o\":";
      append_json(out_, node.op->name);
      out_ += str(",\"k\":\"", to_string(node.kind), "\",\"s\":", node.scope, ",\"m\":", node.stages);
      if (node.result) out_ += ",\"r\":1";
      begin("a");
      for (const ViewAppearance& one : node.appearances) {
        comma();
        out_ += str("[", one.stage, ",", static_cast<int>(one.change), ",", one.copies, ",", devices_.of(one),
                    ",", replicas_.of(one), ",", fact(one), "]");
      }
      out_ += "]}";
    }
    out_ += ']';
  }

  // Its place among the facts; equal ones are there once.
  std::size_t fact(const ViewAppearance& one) {
    std::string text = facts_text(one);
    const auto [found, made] = fact_index_.try_emplace(std::move(text), fact_list_.size());
    if (made) fact_list_.push_back(&found->first);
    return found->second;
  }

  std::string facts_text(const ViewAppearance& one) {
    const internal::NodeFacts& facts = *facts_[one.stage];
    const Node& node = *one.nodes[0];
    const Graph& graph = node.graph();
    std::string out = "{";
    const auto text = [&](std::string_view name, std::string_view value) {
      if (value.empty()) return;
      out += str(out.size() > 1 ? "," : "", "\"", name, "\":");
      append_json(out, value);
    };
    const auto open = [&](std::string_view name) {
      out += str(out.size() > 1 ? "," : "", "\"", name, "\":[");
    };
    const auto next = [&] { out += out.back() == '[' ? "" : ","; };
    open("out");
    for (const TensorSpec& spec : node.outputs()) {
      next();
      append_json(out, to_string(spec));
    }
    out += ']';
    open("in");
    for (const ValueId input : node.inputs()) {
      next();
      append_json(out, graph.has_output(input) ? str(graph.node(input.node).name(),
                                                     input.output != 0 ? str(":", input.output) : "", "  ",
                                                     to_string(graph.spec(input)))
                                               : "(gone)");
    }
    out += ']';
    open("at");
    for (const Attribute& attribute : node.attributes()) {
      next();
      out += '[';
      append_json(out, attribute.name);
      out += ',';
      append_json(out, internal::short_text(attribute.value));
      out += ']';
    }
    out += ']';
    open("dev");
    for (const Node* each : one.nodes) {
      if (each->device().empty()) continue;
      next();
      append_json(out, each->device());
    }
    out += ']';
    if (one.nodes.size() > 1 || node.provenance().replica >= 0) {
      open("rep");
      for (const Node* each : one.nodes) {
        next();
        out += '[';
        out += std::to_string(each->provenance().replica);
        out += ',';
        append_json(out, each->name());
        out += ']';
      }
      out += ']';
    }
    text("lat", facts.replication(node));
    text("site", internal::site_text(node));
    if (node.site().known()) text("fn", node.site().function);
    text("from", facts.origin(node));
    text("by", graph.text(node.provenance().made_by));
    text("why", graph.text(node.provenance().why));
    if (const auto work = facts.work(node)) {
      out += str(",\"fl\":", work->cost.flops, ",\"mem\":", work->cost.bytes);
      if (work->unknown) out += ",\"u\":1";
    }
    return out + "}";
  }

  void write_facts() {
    begin("facts");
    for (const std::string* text : fact_list_) {
      comma();
      out_ += *text;
    }
    out_ += ']';
  }

  void write_drawings(const std::vector<internal::ScopeDrawing>& drawings) {
    for (std::size_t s = 0; s < drawings.size(); ++s) {
      out_ += str("<script type=\"application/json\" id=\"drawing", s, "\">{\"svg\":");
      append_json(out_, drawings[s].svg);
      begin("e");  // edge i has the id e<i>
      for (const internal::ScopeDrawing::Edge& edge : drawings[s].edges) {
        comma();
        out_ += str("[\"", edge.from, "\",\"", edge.to, "\",", edge.control ? 1 : 0, ",", edge.stages, "]");
      }
      out_ += "]}</script>\n";
    }
  }

  const GraphView& view_;
  const std::vector<StageNote> notes_;
  const internal::Colours devices_, replicas_;
  std::vector<std::unique_ptr<internal::NodeFacts>> facts_;  // by stage
  std::unordered_map<std::string, std::size_t> fact_index_;
  std::vector<const std::string*> fact_list_;
  std::string out_;
};

std::string make_page(std::vector<ViewStage> stages, std::vector<StageNote> notes,
                      const std::vector<std::string>& left_out, const HtmlOptions& options) {
  const GraphView view(std::move(stages), options.view);
  const std::string data = PageData(view, std::move(notes)).take(options, left_out);
  return str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
             internal::markup_escaped(options.title), "</title>\n<style>\n", internal::kPageCss,
             "</style>\n</head>\n<body>\n<noscript>This page needs JavaScript.</noscript>\n", data,
             "<script>\n", internal::kPageJs, "</script>\n</body>\n</html>\n");
}

}  // namespace

std::string to_html(const Graph& graph, const HtmlOptions& options) {
  return make_page({{"graph", &graph}}, {{}}, {}, options);
}

std::string to_html(const Graph& before, const Graph& after, const HtmlOptions& options) {
  return make_page({{"before", &before}, {"after", &after}}, {{}, {}}, {}, options);
}

std::string to_html(const PipelineRecording& recording, const HtmlOptions& options) {
  std::vector<StageNote> notes;
  for (const PipelineRecording::Stage& stage : recording.stages)
    notes.push_back({stage.pass, stage.error, stage.report.seconds});
  return make_page(recording.views(), std::move(notes), recording.left_out, options);
}

void write_html(const Graph& graph, const std::filesystem::path& file, const HtmlOptions& options) {
  write_file_whole(file, to_html(graph, options));
}

void write_html(const Graph& before, const Graph& after, const std::filesystem::path& file,
                const HtmlOptions& options) {
  write_file_whole(file, to_html(before, after, options));
}

void write_html(const PipelineRecording& recording, const std::filesystem::path& file,
                const HtmlOptions& options) {
  write_file_whole(file, to_html(recording, options));
}

}  // namespace lockstep
