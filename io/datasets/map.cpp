// io/datasets/map.cpp - functions of one element: map on one thread or several, filter, the declared spec, prefetch.
#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/graph/run/program.h"
#include "lockstep/io/datasets/internal/ahead.h"
#include "lockstep/io/datasets/internal/input_arena.h"
#include "lockstep/io/datasets/internal/node.h"

namespace lockstep {

namespace {

using internal::Ahead;
using internal::Cursor;
using internal::CursorContext;
using internal::DatasetNode;
using internal::StateReader;
using internal::StateWriter;

std::string stage_name(const DatasetNode& node) {
  return node.site().known() ? str(node.op(), " at ", node.site().file, ":", node.site().line) : node.op();
}

// --- map

class MapNode final : public DatasetNode {
 public:
  MapNode(const AnyDataset& input, ElementFunction function, ElementSpec spec, unsigned threads,
          std::string program, SourceSite site)
      : DatasetNode("map", {input}, std::move(spec), site),
        function_(std::move(function)),
        threads_(threads),
        program_(std::move(program)) {
    if (!program_.empty()) attribute("program", program_);
    attribute("threads", static_cast<std::int64_t>(threads), DatasetAttribute::Kind::kTuning);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return internal::make_dataset<MapNode>(inputs[0], function_, spec(), threads_, program_, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;

  void apply(Element& element, std::uint64_t index) const {
    try {
      element = function_(std::move(element));
    } catch (...) {
      internal::rethrow_at(*this, index);
    }
    internal::check_fits(*this, index, element);
  }

 private:
  const ElementFunction function_;
  const unsigned threads_;
  const std::string program_;
};

// On the thread that asks. Its positions are those of Ahead, so that the number of threads may change.
class MapCursor final : public Cursor {
 public:
  MapCursor(const MapNode& node, std::unique_ptr<Cursor> input) : node_(node), input_(std::move(input)) {}
  void start(std::uint64_t epoch) override {
    input_->start(epoch);
    index_ = 0;
  }
  bool next(Element& to) override {
    if (!input_->next(to)) return false;
    node_.apply(to, index_);
    ++index_;
    return true;
  }
  std::uint64_t skip(std::uint64_t count) override {
    const std::uint64_t done = input_->skip(count);
    index_ += done;
    return done;
  }
  void save(StateWriter& to) const override {
    to.number(index_);
    to.number(0);
    to.bytes(input_->save_now());
  }
  void restore(StateReader& from) override {
    index_ = from.number(std::numeric_limits<std::uint64_t>::max() / 2, "a count of elements");
    const std::uint64_t passed = from.number(std::uint64_t{1} << 20U, "the elements since a position");
    StateReader inner(from.bytes("the position of an input"));
    input_->restore(inner);
    if (input_->skip(passed) < passed) internal::damaged_state("the input has fewer elements than before");
    index_ += passed;
  }
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 private:
  const MapNode& node_;
  std::unique_ptr<Cursor> input_;
  std::uint64_t index_ = 0;
};

std::unique_ptr<Cursor> MapNode::cursor(const CursorContext& context) const {
  const unsigned threads = threads_ == 0 ? context.threads : std::min(threads_, context.threads);
  if (threads_ == 1 || context.arena == nullptr)
    return std::make_unique<MapCursor>(*this, input_cursor(context));
  Ahead::Plan plan;
  // Enough that threads find work while the taker is busy, and that cheap elements come in chunks.
  plan.room = std::uint64_t{128} * (threads + 1);
  plan.threads = threads;
  plan.compute = [this](Element& element, std::uint64_t index) { apply(element, index); };
  plan.name = stage_name(*this);
  return std::make_unique<Ahead>(input_cursor(context), context, std::move(plan));
}

// --- filter

class FilterNode final : public DatasetNode {
 public:
  FilterNode(const AnyDataset& input, ElementPredicate keep, SourceSite site)
      : DatasetNode("filter", {input}, input.element_spec(), site), keep_(std::move(keep)) {}
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].filter(keep_, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;
  bool keeps(const Element& element, std::uint64_t index) const {
    try {
      return keep_(element);
    } catch (...) {
      internal::rethrow_at(*this, index);
    }
  }

 private:
  const ElementPredicate keep_;
};

class FilterCursor final : public Cursor {
 public:
  FilterCursor(const FilterNode& node, const CursorContext& context)
      : node_(node), cancel_(context.cancel), input_(node.input_cursor(context)) {}
  void start(std::uint64_t epoch) override {
    input_->start(epoch);
    index_ = 0;
  }
  bool next(Element& to) override {
    while (input_->next(to)) {
      const bool kept = node_.keeps(to, index_);
      ++index_;
      if (kept) return true;
      if (index_ % 256 == 0) internal::check_cancelled(cancel_);
    }
    return false;
  }
  void save(StateWriter& to) const override {
    to.number(index_);
    input_->save(to);
  }
  void restore(StateReader& from) override {
    index_ = from.number(std::numeric_limits<std::uint64_t>::max(), "a count of elements");
    input_->restore(from);
  }
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 private:
  const FilterNode& node_;
  std::stop_token cancel_;
  std::unique_ptr<Cursor> input_;
  std::uint64_t index_ = 0;
};

std::unique_ptr<Cursor> FilterNode::cursor(const CursorContext& context) const {
  return std::make_unique<FilterCursor>(*this, context);
}

// --- prefetch and options

class PrefetchNode final : public DatasetNode {
 public:
  PrefetchNode(const AnyDataset& input, std::int64_t count, SourceSite site)
      : DatasetNode("prefetch", {input}, input.element_spec(), site), count_(count) {
    attribute("count", count, DatasetAttribute::Kind::kTuning);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].prefetch(count_, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override {
    Ahead::Plan plan;
    plan.room = static_cast<std::uint64_t>(count_);
    plan.name = stage_name(*this);
    return std::make_unique<Ahead>(input_cursor(context), context, std::move(plan));
  }

 private:
  const std::int64_t count_;
};

class OptionsNode final : public DatasetNode {
 public:
  OptionsNode(const AnyDataset& input, DatasetOptions options, SourceSite site)
      : DatasetNode("with_options", {input}, input.element_spec(), site), options_(options) {
    attribute("threads", static_cast<std::int64_t>(options.threads), DatasetAttribute::Kind::kTuning);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].with_options(options_, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override {
    return input_cursor(context);
  }
  std::optional<unsigned> threads() const override {
    return options_.threads == 0 ? std::nullopt : std::optional<unsigned>(options_.threads);
  }

 private:
  const DatasetOptions options_;
};

ElementSpec spec_of_results(const Program& program) {
  std::vector<ElementSpec> results;
  results.reserve(program.graph().results().size());
  for (const ValueId result : program.graph().results()) results.emplace_back(program.graph().spec(result));
  if (results.size() == 1) return results[0];
  return ElementSpec::tuple(std::move(results));
}

Element run_program(const Program& program, const Element& element) {
  std::vector<Tensor> feeds;
  element.for_each_leaf([&](const ElementLeaf& leaf) {
    const Tensor* const tensor = std::get_if<Tensor>(&leaf);
    if (tensor == nullptr) throw InvalidArgument("a program takes tensors, and this element holds strings");
    feeds.push_back(*tensor);
  });
  std::vector<Tensor> results = program.run(feeds);
  if (results.size() == 1) return Element(std::move(results[0]));
  std::vector<Element> parts;
  parts.reserve(results.size());
  for (Tensor& result : results) parts.emplace_back(std::move(result));
  return Element::tuple(std::move(parts));
}

}  // namespace

AnyDataset AnyDataset::map(ElementFunction function, ElementSpec spec, unsigned threads,
                           SourceSite site) const {
  if (!function) internal::refuse("map", site, "there is no function");
  return internal::make_dataset<MapNode>(*this, std::move(function), std::move(spec), threads, std::string(),
                                         site);
}

AnyDataset AnyDataset::map(const Program& program, unsigned threads, SourceSite site) const {
  std::vector<TensorSpec> wanted;
  for (const NodeId parameter : program.graph().parameters())
    wanted.push_back(program.graph().node(parameter).outputs()[0]);
  std::size_t i = 0;
  element_spec().for_each_leaf([&](const LeafSpec& leaf) {
    const bool fits = i < wanted.size() && leaf.is_tensor() &&
                      (leaf.kind == LeafSpec::Kind::kAnyTensor || wanted[i].may_equal(leaf.tensor));
    if (!fits) {
      internal::refuse("map", site,
                       str("the program's feed ", i, " is ", i < wanted.size() ? str(wanted[i]) : "missing",
                           ", and the elements are ", element_spec()));
    }
    ++i;
  });
  if (i != wanted.size())
    internal::refuse("map", site,
                     str("the program takes ", counted(wanted.size(), "feed"), ", and the elements ",
                         element_spec(), " have ", i));
  ElementFunction function = [program](const Element& element) { return run_program(program, element); };
  return internal::make_dataset<MapNode>(*this, std::move(function), spec_of_results(program), threads,
                                         std::string("compiled"), site);
}

AnyDataset AnyDataset::with_spec(ElementSpec spec, SourceSite site) const {
  if (!spec.has_structure_of(element_spec()))
    internal::refuse("with_spec", site, str("elements of ", element_spec(), " are never ", spec));
  return map([](Element element) { return element; }, std::move(spec), 1, site);
}

AnyDataset AnyDataset::filter(ElementPredicate keep, SourceSite site) const {
  if (!keep) internal::refuse("filter", site, "there is no function");
  return internal::make_dataset<FilterNode>(*this, std::move(keep), site);
}

AnyDataset AnyDataset::prefetch(std::int64_t count, SourceSite site) const {
  if (count < 1) internal::refuse("prefetch", site, str("the count is ", count, "; expected 1 or more"));
  return internal::make_dataset<PrefetchNode>(*this, count, site);
}

AnyDataset AnyDataset::with_options(DatasetOptions options, SourceSite site) const {
  return internal::make_dataset<OptionsNode>(*this, options, site);
}

}  // namespace lockstep
