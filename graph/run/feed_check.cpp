// graph/run/feed_check.cpp - what a graph expects of its feeds.
#include "lockstep/graph/run/internal/feed_check.h"

#include <algorithm>

namespace lockstep::internal {

namespace {

// The line to look at is that of the call, which whoever names the call adds.
ErrorPlace place_of_feed(const Node& node) {
  ErrorPlace place = place_of(node);
  place.file.clear();
  place.line = 0;
  return place;
}

std::string made_at(const Node& node) {
  const ErrorPlace place = place_of(node);
  return place.file.empty() ? "" : str("; it was made at ", place.file, ":", place.line);
}

}  // namespace

void FeedCheck::feed(std::size_t i, const Tensor& feed) const {
  if (feed.defined()) {
    spec(i, feed.spec());
    return;
  }
  const Node& node = graph_.node(graph_.parameters()[i]);
  throw InvalidArgument(
      str("placeholder '", node.name(), "' expects ", node.outputs()[0], " and was not fed", made_at(node)),
      place_of_feed(node));
}

void FeedCheck::spec(std::size_t i, const TensorSpec& spec) const {
  const Node& node = graph_.node(graph_.parameters()[i]);
  const TensorSpec& expected = node.outputs()[0];
  if (spec.dtype == expected.dtype && spec.shape.is_known() && expected.shape.admits(spec.shape)) return;
  throw InvalidArgument(
      str("placeholder '", node.name(), "' expects ", expected, ", got ", spec, made_at(node)),
      place_of_feed(node));
}

void FeedCheck::all(std::span<const Tensor> feeds) const {
  count(feeds.size());
  for (std::size_t i = 0; i < feeds.size(); ++i) feed(i, feeds[i]);
}

std::vector<Tensor> FeedCheck::in_order(std::span<const Feed> feeds) const {
  std::vector<Tensor> ordered(graph_.parameters().size());
  for (const Feed& feed : feeds) {
    const auto place = std::ranges::find_if(graph_.parameters(),
                                            [&](NodeId id) { return graph_.node(id).name() == feed.name; });
    if (place == graph_.parameters().end()) {
      throw InvalidArgument(
          str("there is no placeholder named '", feed.name, "'; the graph has ", placeholders()));
    }
    Tensor& slot = ordered[static_cast<std::size_t>(place - graph_.parameters().begin())];
    if (slot.defined()) throw InvalidArgument(str("placeholder '", feed.name, "' is fed twice"));
    slot = feed.value;
  }
  return ordered;
}

void FeedCheck::wrong_count(std::size_t got) const {
  throw InvalidArgument(str("got ", counted(got, "feed"), ", but the graph has ", placeholders()));
}

std::string FeedCheck::placeholders() const {
  if (graph_.parameters().empty()) return "no placeholders";
  std::string text;
  for (const NodeId id : graph_.parameters()) {
    const Node& node = graph_.node(id);
    text += str(text.empty() ? "'" : ", '", node.name(), "' ", node.outputs()[0]);
  }
  const std::size_t count = graph_.parameters().size();
  return str(count, count == 1 ? " placeholder: " : " placeholders: ", text);
}

}  // namespace lockstep::internal
