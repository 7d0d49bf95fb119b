// io/drawings/html.cpp - a graph as a page to explore in a browser: one file, no network.
#include "lockstep/io/drawings/html.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/error.h"
#include "lockstep/io/drawings/internal/drawing.h"
#include "lockstep/io/drawings/internal/html_page.h"
#include "lockstep/io/drawings/internal/node_facts.h"
#include "lockstep/io/drawings/internal/scope_drawings.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/files/internal/json_writer.h"

namespace lockstep {

namespace {

using internal::JsonWriter;

// The page's notes about a stage, besides its graph.
struct StageNote {
  std::string pass = {};  // or several, if stages are joined
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

  // Script elements: first the data for finding things, then for each scope its drawing and the facts about
  // its nodes, which the page reads when the scope is looked at.
  std::string take(const HtmlOptions& options, const std::vector<std::string>& left_out) {
    out_ = "<script type=\"application/json\" id=\"data\">";
    json_.begin_object().key("title").text(options.title);
    write_stages();
    texts("left_out", left_out);
    texts("devices", devices_.names());
    texts("all_devices", devices_.whole_names());
    texts("replicas", replicas_.names());
    write_scopes();
    write_nodes();
    json_.end_object();
    out_ += "</script>\n";
    write_drawings(internal::draw_scopes(view_, options.graphviz));
    return std::move(out_);
  }

 private:
  // Names of nodes by identity, in the first stage that has them.
  void remember_names(const Graph& graph) {
    for (const Node& node : graph.nodes()) {
      names_.try_emplace(node.provenance().identity, node.name());
      for (const Graph& region : node.regions()) remember_names(region);
    }
  }
  // The name of the user's node that it stems from; empty if that is the node itself, or unknown.
  std::string origin(const Node& node) const {
    const Provenance& provenance = node.provenance();
    const auto found = names_.find(provenance.origin);
    const bool other = provenance.origin != provenance.identity && found != names_.end();
    return other ? std::string(found->second) : std::string();
  }

  void texts(std::string_view name, const std::vector<std::string>& list) {
    json_.key(name).begin_list();
    for (const std::string& text : list) json_.text(text);
    json_.end_list();
  }

  void write_stages() {
    json_.key("stages").begin_list();
    for (std::size_t s = 0; s < view_.stages().size(); ++s) {
      json_.begin_object().key("n").text(view_.stages()[s].name);
      json_.key("p").text(notes_[s].pass).key("e").text(notes_[s].error);
      if (view_.compared_by(s) == DiffBy::kName) json_.key("b").number(1);
      json_.key("t").number(notes_[s].seconds).key("z").number(count_nodes(*view_.stages()[s].graph));
      json_.end_object();
    }
    json_.end_list();
  }

  void write_scopes() {
    json_.key("scopes").begin_list();
    for (const ViewScope& scope : view_.scopes()) {
      json_.begin_object().key("n").text(scope.name).key("l").text(scope.label);
      json_.key("p").number(scope.parent).key("m").number(scope.stages).key("z").begin_list();
      for (const std::size_t size : scope.sizes) json_.number(size);
      json_.end_list();
      if (!scope.copies.empty()) texts("c", scope.copies);
      if (scope.holder != ViewScope::kNoHolder) json_.key("b").number(scope.holder);
      if (scope.chained) json_.key("h").number(1);
      json_.end_object();
    }
    json_.end_list();
  }

  void write_nodes() {
    std::unordered_map<const OpDef*, std::size_t> places;
    std::vector<std::string> ops;
    for (const ViewNode& node : view_.nodes()) {
      if (places.try_emplace(node.op, ops.size()).second) ops.push_back(node.op->name);
    }
    texts("ops", ops);
    json_.key("nodes").begin_list();
    for (std::uint32_t i = 0; i < view_.nodes().size(); ++i) {
      const ViewNode& node = view_.nodes()[i];
      if (node.drawn_as != i) continue;
      json_.begin_object().key("i").number(i).key("n").text(node.name);
      json_.key("o").number(places.at(node.op)).key("s").number(node.scope).key("m").number(node.stages);
      if (node.kind != ViewKind::kCompute) json_.key("k").text(to_string(node.kind));
      if (node.result) json_.key("r").number(1);
      json_.key("a").begin_list();
      for (const ViewAppearance& one : node.appearances) {
        json_.begin_list().number(one.stage).number(static_cast<int>(one.change)).number(one.copies);
        json_.number(devices_.of(one)).number(replicas_.of(one)).number(fact(node, one));
        if (!one.name.empty()) json_.text(one.name);
        json_.end_list();
      }
      json_.end_list().end_object();
    }
    json_.end_list();
  }

  // The index of its facts among those of its scope; equal facts are there once.
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
    std::string out;
    JsonWriter json(out);
    const auto text = [&](std::string_view name, std::string_view value) {
      if (!value.empty()) json.key(name).text(value);
    };
    json.begin_object().key("out").begin_list();
    for (const TensorSpec& spec : node.outputs()) json.text(to_string(spec));
    json.end_list().key("in").begin_list();
    for (const ValueId input : node.inputs()) {
      json.text(graph.has_output(input)
                    ? str(graph.node(input.node).name(), input.output != 0 ? str(":", input.output) : "",
                          "  ", to_string(graph.spec(input)))
                    : "(gone)");
    }
    json.end_list().key("at").begin_list();
    for (const Attribute& attribute : node.attributes()) {
      json.begin_list().text(attribute.name).text(internal::short_text(attribute.value)).end_list();
    }
    json.end_list().key("dev").begin_list();
    for (const Node* each : one.nodes) {
      if (!each->device().empty()) json.text(each->device());
    }
    json.end_list();
    if (one.nodes.size() > 1 || node.provenance().replica >= 0) {
      json.key("rep").begin_list();
      for (const Node* each : one.nodes)
        json.begin_list().number(each->provenance().replica).text(each->name()).end_list();
      json.end_list();
    }
    const std::string_view replication = facts.replication(node);
    // A feed belongs to no replica by itself, but if it has a node for each replica, each has its own.
    const bool own = replication.empty() && box.kind == ViewKind::kParameter && one.nodes.size() > 1;
    text("lat", own ? "per replica" : replication);
    text("site", internal::site_text(node));
    if (node.site().known()) text("fn", node.site().function);
    text("from", origin(node));
    text("by", graph.text(node.provenance().made_by));
    text("why", graph.text(node.provenance().why));
    if (const auto work = facts.work(node)) {
      json.key("fl").number(work->cost.flops).key("mem").number(work->cost.bytes);
      if (work->unknown) json.key("u").number(1);
    }
    json.end_object();
    return out;
  }

  // A text or, if it is not the same in all stages, a list of pairs: a stage, and the text from that stage
  // on.
  void labels(const internal::StageLabels& list) {
    if (list.size() < 2) {
      json_.text(list.empty() ? std::string_view() : list[0].second);
      return;
    }
    json_.begin_list();
    for (const auto& [stage, text] : list) json_.begin_list().number(stage).text(text).end_list();
    json_.end_list();
  }

  void write_drawings(const std::vector<internal::ScopeDrawing>& drawings) {
    for (std::size_t s = 0; s < drawings.size(); ++s) {
      const internal::ScopeDrawing& drawing = drawings[s];
      out_ += str("<script type=\"application/json\" id=\"drawing", s, "\">");
      json_.begin_object().key("svg").text(drawing.svg);
      json_.key("e").begin_list();  // edge i has the id e<i>
      for (const internal::ScopeDrawing::Edge& edge : drawing.edges) {
        json_.begin_list().text(edge.from).text(edge.to).number(edge.control ? 1 : 0).number(edge.stages);
        labels(edge.labels);
        json_.end_list();
      }
      json_.end_list().key("t").begin_list();
      for (const auto& [id, list] : drawing.labels) {
        json_.begin_list().text(id);
        labels(list);
        json_.end_list();
      }
      json_.end_list();
      texts("mb", drawing.more_before);
      texts("ma", drawing.more_behind);
      json_.key("f").begin_list();
      for (const std::string* text : facts_of_[s].list) json_.raw(*text);
      json_.end_list().end_object();
      out_ += "</script>\n";
    }
  }

  const GraphView& view_;
  const std::vector<StageNote> notes_;
  const internal::Colours devices_, replicas_;
  std::vector<std::unique_ptr<internal::NodeFacts>> facts_;    // by stage
  std::unordered_map<std::uint64_t, std::string_view> names_;  // of nodes, by identity
  struct ScopeFacts {
    NameMap<std::size_t> places;
    std::vector<const std::string*> list;
  };
  std::vector<ScopeFacts> facts_of_;  // by scope
  std::string out_;
  JsonWriter json_{out_};
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
  // If there are more stages than a view can have, neighbours are joined, about equally many into each; the
  // first and the last stage are always shown.
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
