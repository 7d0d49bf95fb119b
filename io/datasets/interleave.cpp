// io/datasets/interleave.cpp - datasets that a function makes of elements, read one after another or in turn.
#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/hasher.h"
#include "lockstep/io/datasets/internal/ahead.h"
#include "lockstep/io/datasets/internal/node.h"

namespace lockstep {

namespace {

using internal::Ahead;
using internal::Cursor;
using internal::CursorContext;
using internal::DatasetNode;
using internal::StateReader;
using internal::StateWriter;

class InterleaveNode final : public DatasetNode {
 public:
  InterleaveNode(std::string_view name, const AnyDataset& input, DatasetFunction function,
                 ElementSpec elements, InterleaveOptions given, SourceSite where)
      : DatasetNode(name, {input}, std::move(elements), where),
        options(given),
        function_(std::move(function)) {
    if (name == "flat_map") return;
    attribute("cycle", options.cycle);
    attribute("block", options.block);
    attribute("ahead", options.ahead, DatasetAttribute::Kind::kTuning);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return internal::make_dataset<InterleaveNode>(op(), inputs[0], function_, spec(), options, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;

  AnyDataset make(const Element& element, std::uint64_t index) const {
    try {
      AnyDataset made = function_(element);
      const ElementSpec joined = join_specs(spec(), made.element_spec());
      if (joined.has_structure_of(spec())) return made;
      throw InvalidArgument(str("its dataset has elements of ", made.element_spec(), ", expected ", spec()));
    } catch (...) {
      internal::rethrow_at(*this, index);
    }
  }

  const InterleaveOptions options;

 private:
  const DatasetFunction function_;
};

// Its position: that of the input before the oldest element whose dataset is still read, and those of the datasets.
class InterleaveCursor final : public Cursor {
 public:
  InterleaveCursor(const InterleaveNode& node, const CursorContext& context)
      : node_(node),
        context_(context),
        input_(node.input_cursor(context)),
        lanes_(static_cast<std::size_t>(node.options.cycle)) {}

  void start(std::uint64_t epoch) override {
    epoch_ = epoch;
    input_->start(epoch);
    for (Lane& lane : lanes_) lane = {};
    opened_ = 0;
    at_ = 0;
    in_block_ = 0;
    ended_ = false;
  }

  bool next(Element& to) override {
    // Lanes without a dataset in a row; when all are, that was the end.
    for (std::size_t idle = 0; idle <= lanes_.size();) {
      Lane& lane = lanes_[at_];
      if (lane.cursor == nullptr && !open(lane)) {
        ++idle;
        turn();
        continue;
      }
      idle = 0;
      if (lane.cursor->next(to)) {
        if (!admits(node_.spec(), to)) internal::check_fits(node_, lane.number, to);
        if (++in_block_ == node_.options.block) turn();
        return true;
      }
      // A new dataset begins a new block in the same lane.
      lane = {};
      in_block_ = 0;
      internal::check_cancelled(context_.cancel);
    }
    return false;
  }

  void save(StateWriter& to) const override {
    to.number(epoch_);
    to.number(ended_ ? 1 : 0);
    to.number(opened_);
    to.number(at_);
    to.number(static_cast<std::uint64_t>(in_block_));
    const Lane* oldest = nullptr;
    for (const Lane& lane : lanes_) {
      if (lane.cursor != nullptr && (oldest == nullptr || lane.number < oldest->number)) oldest = &lane;
    }
    to.number(oldest == nullptr ? opened_ : oldest->number);
    to.bytes(oldest == nullptr ? input_->save_now() : oldest->before);
    for (const Lane& lane : lanes_) {
      to.number(lane.cursor == nullptr ? 0 : 1);
      if (lane.cursor == nullptr) continue;
      to.number(lane.number);
      to.number(lane.signature);
      to.bytes(lane.cursor->save_now());
    }
  }

  void restore(StateReader& from) override {
    start(0);
    epoch_ = from.number(std::numeric_limits<std::uint64_t>::max(), "the number of an epoch");
    ended_ = from.number(1, "the end of interleave()") == 1;
    opened_ = from.number(std::numeric_limits<std::uint64_t>::max(), "the datasets of interleave()");
    at_ = from.number(lanes_.size() - 1, "the lane of interleave()");
    in_block_ = static_cast<std::int64_t>(
        from.number(static_cast<std::uint64_t>(node_.options.block - 1), "the block of interleave()"));
    const std::uint64_t first = from.number(opened_, "the first dataset of interleave()");
    StateReader inner(from.bytes("the position of interleave()'s input"));
    input_->restore(inner);
    struct Open {
      std::size_t lane = 0;
      std::uint64_t number = 0, signature = 0;
      std::string_view state;
    };
    std::vector<Open> open_lanes;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (from.number(1, "whether a lane is open") == 0) continue;
      Open one;
      one.lane = i;
      one.number = from.number(opened_, "the dataset of a lane");
      one.signature = from.number(std::numeric_limits<std::uint64_t>::max(), "the hash of a lane's dataset");
      one.state = from.bytes("the position of a lane's dataset");
      if (one.number < first || one.number >= opened_)
        internal::damaged_state("a lane's dataset was not opened");
      open_lanes.push_back(one);
    }
    std::ranges::sort(open_lanes, {}, &Open::number);
    std::uint64_t number = first;
    for (const Open& one : open_lanes) {
      if (one.number < number || input_->skip(one.number - number) < one.number - number)
        internal::damaged_state("interleave()'s input has fewer elements than before");
      Lane& lane = lanes_[one.lane];
      lane.before = input_->save_now();
      Element element;
      if (!input_->next(element))
        internal::damaged_state("interleave()'s input has fewer elements than before");
      number = one.number + 1;
      make_cursor(lane, element, one.number);
      if (lane.signature != one.signature)
        throw FailedPrecondition(str(node_.op(), ": the function makes another dataset of element ",
                                     one.number, " than when the state was saved"),
                                 internal::place_of(node_));
      StateReader lane_reader(one.state);
      lane.cursor->restore(lane_reader);
    }
    if (input_->skip(opened_ - number) < opened_ - number)
      internal::damaged_state("interleave()'s input has fewer elements than before");
  }
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 private:
  struct Lane {
    std::optional<AnyDataset> dataset;  // which the cursor belongs to
    std::unique_ptr<Cursor> cursor;
    std::uint64_t number = 0;     // of the input's element
    std::uint64_t signature = 0;  // of its dataset
    std::string before;           // the input's position before that element

    Lane() = default;
    Lane(Lane&&) = default;
    Lane& operator=(Lane&& other) noexcept {
      cursor = std::move(other.cursor);  // first: it uses the dataset
      dataset = std::move(other.dataset);
      number = other.number;
      signature = other.signature;
      before = std::move(other.before);
      return *this;
    }
    ~Lane() { cursor.reset(); }
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;
  };

  void turn() {
    at_ = (at_ + 1) % lanes_.size();
    in_block_ = 0;
  }
  bool open(Lane& lane) {
    if (ended_) return false;
    lane.before = input_->save_now();
    Element element;
    ended_ = !input_->next(element);
    if (ended_) return false;
    make_cursor(lane, element, opened_);
    // Shuffles inside differ from element to element.
    lane.cursor->start(internal::Hasher(epoch_).add(opened_).result());
    ++opened_;
    return true;
  }
  void make_cursor(Lane& lane, const Element& element, std::uint64_t number) {
    lane.number = number;
    lane.dataset = node_.make(element, number);
    lane.signature = internal::Hasher().add(lane.dataset->signature()).result();
    lane.cursor = DatasetNode::node_of(*lane.dataset).cursor(context_);
    // Always in this form, so that positions do not depend on what is read ahead.
    Ahead::Plan plan;
    plan.room = static_cast<std::uint64_t>(std::max<std::int64_t>(node_.options.ahead, 1));
    plan.name = node_.op();
    CursorContext context = context_;
    if (node_.options.ahead == 0) context.arena = nullptr;
    lane.cursor = std::make_unique<Ahead>(std::move(lane.cursor), context, std::move(plan));
  }

  const InterleaveNode& node_;
  const CursorContext context_;
  std::unique_ptr<Cursor> input_;
  std::vector<Lane> lanes_;
  std::uint64_t epoch_ = 0;
  std::uint64_t opened_ = 0;   // elements of the input that were taken
  std::size_t at_ = 0;         // the lane whose turn it is
  std::int64_t in_block_ = 0;  // elements that it gave
  bool ended_ = false;         // the input
};

std::unique_ptr<Cursor> InterleaveNode::cursor(const CursorContext& context) const {
  return std::make_unique<InterleaveCursor>(*this, context);
}

}  // namespace

AnyDataset AnyDataset::flat_map(DatasetFunction function, ElementSpec spec, SourceSite site) const {
  if (!function) internal::refuse("flat_map", site, "there is no function");
  const InterleaveOptions one{.cycle = 1, .block = std::numeric_limits<std::int64_t>::max(), .ahead = 0};
  return internal::make_dataset<InterleaveNode>("flat_map", *this, std::move(function), std::move(spec), one,
                                                site);
}

AnyDataset AnyDataset::interleave(DatasetFunction function, ElementSpec spec, InterleaveOptions options,
                                  SourceSite site) const {
  if (!function) internal::refuse("interleave", site, "there is no function");
  if (options.cycle < 1 || options.cycle > 4096 || options.block < 1 || options.ahead < 0) {
    internal::refuse("interleave", site,
                     str("cycle ", options.cycle, ", block ", options.block, ", ahead ", options.ahead,
                         "; expected 1 <= cycle <= 4096, block >= 1, ahead >= 0"));
  }
  return internal::make_dataset<InterleaveNode>("interleave", *this, std::move(function), std::move(spec),
                                                options, site);
}

}  // namespace lockstep
