// io/datasets/shuffle.cpp - drawing each element from the next few.
//
// Draw k of an epoch takes a slot by the k-th random number of (seed, epoch), and the last slot moves into its place; then
// the next element of the input becomes the last. So the numbers of the elements that lie in the buffer follow from the
// count of draws alone, and a position is that count and a position of the input from which the elements can be read
// again. Over rows of arrays the buffer holds row numbers.
#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/random.h"
#include "lockstep/io/datasets/internal/node.h"

namespace lockstep {

namespace {

using internal::Cursor;
using internal::CursorContext;
using internal::DatasetNode;
using internal::RowSource;
using internal::StateReader;
using internal::StateWriter;

constexpr std::uint64_t kMostDraws = std::uint64_t{1} << 48U;
constexpr std::size_t kDrawsBetweenLooks = std::size_t{1} << 16U;  // at whether the iterator was cancelled

// The random slots of an epoch, one draw after another.
class Draws {
 public:
  void start(std::uint64_t seed, std::uint64_t epoch) {
    stream_ = {.seed = seed, .key = 0x73687566666C65U, .replica = 0, .step = epoch};
    made_ = 0;
  }
  std::uint64_t made() const { return made_; }
  // Below `size`, which is not 0 and has 32 bits.
  std::size_t next(std::size_t size) {
    if (made_ % 2 == 0) block_ = stream_.block(made_ / 2);
    const std::size_t half = made_ % 2 * 2;
    ++made_;
    return static_cast<std::size_t>(
        (block_[half] * std::uint64_t{size} + ((block_[half + 1] * std::uint64_t{size}) >> 32U)) >> 32U);
  }

 private:
  RandomStream stream_;
  Philox::Block block_{};
  std::uint64_t made_ = 0;
};

template <class Slot>
Slot take_slot(std::vector<Slot>& slots, std::size_t at) {
  Slot taken = std::move(slots[at]);
  if (at + 1 != slots.size()) slots[at] = std::move(slots.back());
  slots.pop_back();
  return taken;
}

class ShuffleNode final : public DatasetNode {
 public:
  ShuffleNode(const AnyDataset& input, std::int64_t slots, ShuffleOptions given, SourceSite site)
      : DatasetNode("shuffle", {input}, input.element_spec(), site),
        buffer(static_cast<std::size_t>(
            std::min<std::int64_t>(slots, std::numeric_limits<std::uint32_t>::max()))),
        options(given) {
    attribute("buffer", slots);
    attribute("seed", static_cast<std::int64_t>(given.seed));
    attribute("reshuffle", given.reshuffle);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].shuffle(static_cast<std::int64_t>(buffer), options, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;

  const std::size_t buffer;
  const ShuffleOptions options;
};

// What both kinds of shuffle have in common.
class ShuffleCursor : public Cursor {
 public:
  ShuffleCursor(const ShuffleNode& node, const CursorContext& context, std::unique_ptr<Cursor> input)
      : node_(node), cancel_(context.cancel), input_(std::move(input)) {}
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 protected:
  void start_draws(std::uint64_t epoch) {
    epoch_ = epoch;
    draws_.start(node_.options.seed, node_.options.reshuffle ? epoch : 0);
  }
  void save_draws(StateWriter& to) const {
    to.number(epoch_);
    to.number(draws_.made());
  }
  const ShuffleNode& node_;
  std::stop_token cancel_;
  std::unique_ptr<Cursor> input_;
  std::uint64_t epoch_ = 0;
  Draws draws_;
};

// Over rows: its position is the count of draws alone, since making them again costs some tens of nanoseconds each.
class RowShuffle final : public ShuffleCursor {
 public:
  using ShuffleCursor::ShuffleCursor;

  void start(std::uint64_t epoch) override {
    start_draws(epoch);
    input_->start(epoch);
    slots_.clear();
    ended_ = false;
  }
  bool next(Element& to) override {
    std::int64_t row = 0;
    if (next_rows({&row, 1}) == 0) return false;
    to = input_->rows()->row(row);
    return true;
  }
  std::uint64_t skip(std::uint64_t count) override {
    std::vector<std::int64_t> passed(
        static_cast<std::size_t>(std::min<std::uint64_t>(count, kDrawsBetweenLooks)));
    std::uint64_t done = 0;
    while (done < count) {
      internal::check_cancelled(cancel_);
      const std::size_t wanted = std::min<std::uint64_t>(count - done, passed.size());
      const std::size_t got = next_rows(std::span(passed).first(wanted));
      done += got;
      if (got < wanted) break;
    }
    return done;
  }
  RowSource* rows() override { return input_->rows(); }
  std::size_t next_rows(std::span<std::int64_t> to) override {
    for (std::size_t done = 0; done < to.size(); ++done) {
      if (slots_.size() < node_.buffer && !ended_) fill();
      if (slots_.empty()) return done;
      to[done] = take_slot(slots_, draws_.next(slots_.size()));
    }
    return to.size();
  }
  void save(StateWriter& to) const override { save_draws(to); }
  void restore(StateReader& from) override {
    const std::uint64_t epoch =
        from.number(std::numeric_limits<std::uint64_t>::max(), "the number of an epoch");
    const std::uint64_t draws = from.number(kMostDraws, "the draws of shuffle()");
    start(epoch);
    if (skip(draws) < draws) internal::damaged_state("shuffle() has fewer elements than it drew");
  }

 private:
  void fill() {
    while (slots_.size() < node_.buffer) {
      const std::size_t before = slots_.size();
      const std::size_t wanted = std::min<std::size_t>(node_.buffer - before, kDrawsBetweenLooks);
      slots_.resize(before + wanted);
      const std::size_t got = input_->next_rows(std::span(slots_).subspan(before));
      slots_.resize(before + got);
      ended_ = got < wanted;
      if (ended_) return;
    }
  }

  std::vector<std::int64_t> slots_;
  bool ended_ = false;  // the input gave all
};

// Over elements: beside the count of draws it keeps positions of the input, the last one before the oldest element of the buffer.
class ElementShuffle final : public ShuffleCursor {
 public:
  ElementShuffle(const ShuffleNode& node, const CursorContext& context, std::unique_ptr<Cursor> input)
      : ShuffleCursor(node, context, std::move(input)),
        between_(std::clamp<std::size_t>(node.buffer / 4, 16, 4096)) {}

  void start(std::uint64_t epoch) override {
    start_draws(epoch);
    input_->start(epoch);
    slots_.clear();
    positions_.clear();
    pulled_ = 0;
    ended_ = false;
  }
  bool next(Element& to) override {
    fill();
    if (slots_.empty()) return false;
    to = take_slot(slots_, draws_.next(slots_.size())).element;
    return true;
  }
  void save(StateWriter& to) const override {
    save_draws(to);
    to.number(pulled_);
    if (positions_.empty()) {  // nothing was pulled
      to.number(0);
      to.bytes(input_->save_now());
    } else {
      to.number(positions_.front().pulled);
      to.bytes(positions_.front().state);
    }
  }
  void restore(StateReader& from) override {
    start_draws(from.number(std::numeric_limits<std::uint64_t>::max(), "the number of an epoch"));
    const std::uint64_t draws = from.number(kMostDraws, "the draws of shuffle()");
    const std::uint64_t pulled = from.number(kMostDraws, "the elements of shuffle()");
    const std::uint64_t first = from.number(pulled, "the first element of shuffle()'s buffer");
    const std::string state(from.bytes("the position before shuffle()'s buffer"));
    if (draws > pulled || pulled - draws > node_.buffer)
      internal::damaged_state("shuffle() drew what was not there");
    const std::vector<std::uint64_t> numbers = buffered(draws, pulled);
    StateReader inner(state);
    input_->restore(inner);
    positions_.clear();
    positions_.push_back({first, state});
    pulled_ = first;
    ended_ = false;
    // Each element into its slot, in the order in which they come.
    std::vector<std::size_t> order(numbers.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {}, [&](std::size_t i) { return numbers[i]; });
    slots_.clear();
    slots_.resize(numbers.size());
    for (const std::size_t slot : order) {
      if (numbers[slot] < first) internal::damaged_state("shuffle()'s buffer begins before its position");
      skip_to(numbers[slot]);
      remember_position();
      if (!input_->next(slots_[slot].element))
        internal::damaged_state("an element of shuffle()'s buffer is not there");
      slots_[slot].number = pulled_++;
    }
    skip_to(pulled);
  }

 private:
  struct Numbered {
    Element element;
    std::uint64_t number = 0;
  };
  struct Position {
    std::uint64_t pulled = 0;
    std::string state;
  };

  void skip_to(std::uint64_t number) {
    if (number > pulled_ && input_->skip(number - pulled_) < number - pulled_)
      internal::damaged_state("shuffle()'s input has fewer elements than before");
    pulled_ = std::max(number, pulled_);
  }
  void fill() {
    while (slots_.size() < node_.buffer && !ended_) {
      if (pulled_ % between_ == 0) {
        internal::check_cancelled(cancel_);
        forget_positions();
        remember_position();
      }
      Numbered slot;
      slot.number = pulled_;
      if (!input_->next(slot.element)) {
        ended_ = true;
        return;
      }
      ++pulled_;
      slots_.push_back(std::move(slot));
    }
  }
  void remember_position() {
    if (pulled_ % between_ == 0 && (positions_.empty() || positions_.back().pulled < pulled_))
      positions_.push_back({pulled_, input_->save_now()});
  }
  // Those that no element of the buffer needs.
  void forget_positions() {
    std::uint64_t oldest = pulled_;
    for (const Numbered& slot : slots_) oldest = std::min(oldest, slot.number);
    std::size_t needless = 0;
    while (needless + 1 < positions_.size() && positions_[needless + 1].pulled <= oldest) ++needless;
    positions_.erase(positions_.begin(), positions_.begin() + static_cast<std::ptrdiff_t>(needless));
  }
  // The numbers of the elements in the buffer after so many draws.
  std::vector<std::uint64_t> buffered(std::uint64_t draws, std::uint64_t pulled) {
    std::vector<std::uint64_t> numbers;
    std::uint64_t number = 0;
    for (std::uint64_t k = 0;; ++k) {
      if (k % kDrawsBetweenLooks == 0) internal::check_cancelled(cancel_);
      // The last draw was made before more was pulled.
      while (numbers.size() < node_.buffer && number < pulled && (k < draws || draws == 0))
        numbers.push_back(number++);
      if (k == draws) break;
      if (numbers.empty()) internal::damaged_state("shuffle() drew what was not there");
      static_cast<void>(take_slot(numbers, draws_.next(numbers.size())));
    }
    if (number != pulled) internal::damaged_state("shuffle() pulled what it did not draw from");
    return numbers;
  }

  const std::size_t between_;  // elements between two positions that are kept
  std::vector<Numbered> slots_;
  std::vector<Position> positions_;
  std::uint64_t pulled_ = 0;
  bool ended_ = false;
};

std::unique_ptr<Cursor> ShuffleNode::cursor(const CursorContext& context) const {
  std::unique_ptr<Cursor> input = input_cursor(context);
  if (input->rows() != nullptr) return std::make_unique<RowShuffle>(*this, context, std::move(input));
  return std::make_unique<ElementShuffle>(*this, context, std::move(input));
}

}  // namespace

AnyDataset AnyDataset::shuffle(std::int64_t buffer, ShuffleOptions options, SourceSite site) const {
  if (buffer < 1) internal::refuse("shuffle", site, str("the buffer is ", buffer, "; expected 1 or more"));
  return internal::make_dataset<ShuffleNode>(*this, buffer, options, site);
}

}  // namespace lockstep
