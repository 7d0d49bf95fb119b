#include "lockstep/io/drawings/html.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/drawings/internal/drawing.h"
#include "lockstep/io/drawings/internal/html_page.h"
#include "lockstep/io/drawings/internal/node_facts.h"
#include "lockstep/io/drawings/internal/scope_drawings.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/files/internal/json_text.h"

namespace lockstep {

namespace {

using internal::append_json;

// What the page says of a stage besides its graph.
struct StageNote {
  std::string pass = {};  // or several
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
        replicas_(view, ColourBy::kReplica),
        facts_of_(view.scopes().size()) {
    for (const ViewStage& stage : view.stages()) {
      facts_.push_back(std::make_unique<internal::NodeFacts>(*stage.graph));
      remember_names(*stage.graph);
    }
  }

  // Script elements: what is needed to find things, then for each scope its drawing and what is said of its nodes, which the
  // page reads when it is looked at.
  std::string take(const HtmlOptions& options, const std::vector<std::string>& left_out) {
    out_ = "<script type=\"application/json\" id=\"data\">{\"title\":";
    append_json(out_, options.title);
    write_stages();
    texts("left_out", left_out);
    texts("devices", devices_.names());
    texts("all_devices", devices_.whole_names());
    texts("replicas", replicas_.names());
    write_scopes();
    write_nodes();
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
  // Names of nodes by identity, in the first stage that has them.
  void remember_names(const Graph& graph) {
    for (const Node& node : graph.nodes()) {
      names_.try_emplace(node.provenance().identity, node.name());
      for (const Graph& region : node.regions()) remember_names(region);
    }
  }
  // Of the user's node that it stems from, where that is another one.
  std::string origin(const Node& node) const {
    const Provenance& provenance = node.provenance();
    const auto found = names_.find(provenance.origin);
    const bool other = provenance.origin != provenance.identity && found != names_.end();
    return other ? std::string(found->second) : std::string();
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
      if (view_.compared_by(s) == DiffBy::kName) out_ += ",\"b\":1";
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
      out_ += str(",\"p\":", scope.parent, ",\"m\":", scope.stages);
      numbers("z", scope.sizes);
      if (!scope.copies.empty()) texts("c", scope.copies);
      if (scope.holder != ViewScope::kNoHolder) out_ += str(",\"b\":", scope.holder);
      if (scope.chained) out_ += ",\"h\":1";
      out_ += '}';
    }
    out_ += ']';
  }

  void write_nodes() {
    std::unordered_map<const OpDef*, std::size_t> places;
    std::vector<std::string> ops;
    for (const ViewNode& node : view_.nodes()) {
      if (places.try_emplace(node.op, ops.size()).second) ops.push_back(node.op->name);
    }
    texts("ops", ops);
    begin("nodes");
    for (std::uint32_t i = 0; i < view_.nodes().size(); ++i) {
      const ViewNode& node = view_.nodes()[i];
      if (node.drawn_as != i) continue;
      comma();
      out_ += str("{\"i\":", i, ",\"n\":");
      append_json(out_, node.name);
      out_ += str(",\"o\":", places.at(node.op), ",\"s\":", node.scope, ",\"m\":", node.stages);
      if (node.kind != ViewKind::kCompute) out_ += str(",\"k\":\"", to_string(node.kind), "\"");
      if (node.result) out_ += ",\"r\":1";
      begin("a");
      for (const ViewAppearance& one : node.appearances) {
        comma();
        out_ += str("[", one.stage, ",", static_cast<int>(one.change), ",", one.copies, ",", devices_.of(one),
                    ",", replicas_.of(one), ",", fact(node, one));
        if (!one.name.empty()) {
          out_ += ',';
          append_json(out_, one.name);
        }
        out_ += ']';
      }
      out_ += "]}";
    }
    out_ += ']';
  }

  // Its place among the facts of its scope; equal ones are there once.
  std::size_t fact(const ViewNode& node, const ViewAppearance& one) {
    ScopeFacts& scope = facts_of_[node.scope];
    const auto [found, made] = scope.places.try_emplace(facts_text(node, one), scope.list.size());
    if (made) scope.list.push_back(&found->first);
    return found->second;
  }

  std::string facts_text(const ViewNode& box, const ViewAppearance& one) {
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
    const std::string_view replication = facts.replication(node);
    // Feeds belong to no replica by themselves, but one of several is each replica's own.
    const bool own = replication.empty() && box.kind == ViewKind::kParameter && one.nodes.size() > 1;
    text("lat", own ? "per replica" : replication);
    text("site", internal::site_text(node));
    if (node.site().known()) text("fn", node.site().function);
    text("from", origin(node));
    text("by", graph.text(node.provenance().made_by));
    text("why", graph.text(node.provenance().why));
    if (const auto work = facts.work(node)) {
      out += str(",\"fl\":", work->cost.flops, ",\"mem\":", work->cost.bytes);
      if (work->unknown) out += ",\"u\":1";
    }
    return out + "}";
  }

  // A text, or where it is not the same in all stages a list of from which stage on it is which.
  void labels(const internal::StageLabels& list) {
    if (list.size() < 2) return append_json(out_, list.empty() ? std::string_view() : list[0].second);
    out_ += '[';
    for (const auto& [stage, text] : list) {
      comma();
      out_ += str("[", stage, ",");
      append_json(out_, text);
      out_ += ']';
    }
    out_ += ']';
  }

  void write_drawings(const std::vector<internal::ScopeDrawing>& drawings) {
    for (std::size_t s = 0; s < drawings.size(); ++s) {
      const internal::ScopeDrawing& drawing = drawings[s];
      out_ += str("<script type=\"application/json\" id=\"drawing", s, "\">{\"svg\":");
      append_json(out_, drawing.svg);
      begin("e");  // edge i has the id e<i>
      for (const internal::ScopeDrawing::Edge& edge : drawing.edges) {
        comma();
        out_ += str("[\"", edge.from, "\",\"", edge.to, "\",", edge.control ? 1 : 0, ",", edge.stages, ",");
        labels(edge.labels);
        out_ += ']';
      }
      out_ += ']';
      begin("t");
      for (const auto& [id, list] : drawing.labels) {
        comma();
        out_ += str("[\"", id, "\",");
        labels(list);
        out_ += ']';
      }
      out_ += ']';
      texts("mb", drawing.more_before);
      texts("ma", drawing.more_behind);
      begin("f");
      for (const std::string* text : facts_of_[s].list) {
        comma();
        out_ += *text;
      }
      out_ += "]}</script>\n";
    }
  }

  const GraphView& view_;
  const std::vector<StageNote> notes_;
  const internal::Colours devices_, replicas_;
  std::vector<std::unique_ptr<internal::NodeFacts>> facts_;    // by stage
  std::unordered_map<std::uint64_t, std::string_view> names_;  // of nodes, by identity
  struct ScopeFacts {
    std::unordered_map<std::string, std::size_t> places;
    std::vector<const std::string*> list;
  };
  std::vector<ScopeFacts> facts_of_;  // by scope
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
             "<script>\n", internal::kPageJs, internal::kPageDrawingJs, internal::kPageDetailsJs,
             internal::kPageSearchJs, internal::kPageInputJs, "</script>\n</body>\n</html>\n");
}

}  // namespace

std::string to_html(const Graph& graph, const HtmlOptions& options) {
  return make_page({{"graph", &graph}}, {{}}, {}, options);
}

std::string to_html(const Graph& before, const Graph& after, const HtmlOptions& options) {
  return make_page({{"before", &before}, {"after", &after}}, {{}, {}}, {}, options);
}

std::string to_html(const PipelineRecording& recording, const HtmlOptions& options) {
  // More stages than a view has are joined, about as many into each, but for the first and the last.
  const std::size_t count = recording.stages.size(), shown = std::min(count, GraphView::kMaxStages);
  std::vector<ViewStage> views;
  std::vector<StageNote> notes;
  for (std::size_t s = 0, next = 0; s < shown; ++s) {
    const std::size_t last = shown < 2 ? 0 : s * (count - 1) / (shown - 1), joined = last - next;
    StageNote note;
    for (; next <= last; ++next) {
      const PipelineRecording::Stage& stage = recording.stages[next];
      note.pass += str(note.pass.empty() ? "" : ", ", stage.pass);
      note.seconds += stage.report.seconds;
      note.error = stage.error;
    }
    const PipelineRecording::Stage& stage = recording.stages[last];
    views.push_back({joined == 0 ? stage.name : str(stage.name, " and ", joined, " before"), &stage.graph});
    notes.push_back(std::move(note));
  }
  return make_page(std::move(views), std::move(notes), recording.left_out, options);
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
