// io/datasets/cuts.cpp - parts of a dataset, and passes over it: take, skip, shard, repeat.
#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/internal/node.h"

namespace lockstep {

namespace {

using internal::Cursor;
using internal::CursorContext;
using internal::DatasetNode;
using internal::RowSource;
using internal::StateReader;
using internal::StateWriter;

constexpr auto kMostElements = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// --- take

class TakeCursor final : public Cursor {
 public:
  TakeCursor(std::unique_ptr<Cursor> input, std::int64_t count)
      : input_(std::move(input)), count_(static_cast<std::uint64_t>(count)) {}
  void start(std::uint64_t epoch) override {
    input_->start(epoch);
    left_ = count_;
  }
  bool next(Element& to) override {
    if (left_ == 0 || !input_->next(to)) return false;
    --left_;
    return true;
  }
  std::uint64_t skip(std::uint64_t count) override {
    const std::uint64_t done = input_->skip(std::min(count, left_));
    left_ -= done;
    return done;
  }
  void save(StateWriter& to) const override {
    to.number(left_);
    input_->save(to);
  }
  void restore(StateReader& from) override {
    left_ = from.number(count_, "what take() has left");
    input_->restore(from);
  }
  RowSource* rows() override { return input_->rows(); }
  std::size_t next_rows(std::span<std::int64_t> to) override {
    const std::size_t done = input_->next_rows(to.first(std::min<std::uint64_t>(to.size(), left_)));
    left_ -= done;
    return done;
  }
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 private:
  std::unique_ptr<Cursor> input_;
  const std::uint64_t count_;
  std::uint64_t left_ = 0;
};

class TakeNode final : public DatasetNode {
 public:
  TakeNode(const AnyDataset& input, std::int64_t count, SourceSite site)
      : DatasetNode("take", {input}, input.element_spec(), site), count_(count) {
    attribute("count", count);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].take(count_, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override {
    return std::make_unique<TakeCursor>(input_cursor(context), count_);
  }

 private:
  const std::int64_t count_;
};

// --- skip and shard: elements are passed over before each one that is given

class StridedCursor final : public Cursor {
 public:
  // Passes over `first` elements, and over `between` after each one.
  StridedCursor(std::unique_ptr<Cursor> input, std::int64_t first, std::int64_t between)
      : input_(std::move(input)),
        first_(static_cast<std::uint64_t>(first)),
        between_(static_cast<std::uint64_t>(between)) {}
  void start(std::uint64_t epoch) override {
    input_->start(epoch);
    pending_ = first_;
  }
  bool next(Element& to) override {
    if (!pass_pending() || !input_->next(to)) return false;
    pending_ = between_;
    return true;
  }
  std::uint64_t skip(std::uint64_t count) override {
    if (between_ != 0) return Cursor::skip(count);
    return pass_pending() ? input_->skip(count) : 0;
  }
  void save(StateWriter& to) const override {
    to.number(pending_);
    input_->save(to);
  }
  void restore(StateReader& from) override {
    pending_ = from.number(std::max(first_, between_), "what skip() has left");
    input_->restore(from);
  }
  RowSource* rows() override { return input_->rows(); }
  std::size_t next_rows(std::span<std::int64_t> to) override {
    if (between_ == 0) return pass_pending() ? input_->next_rows(to) : 0;
    std::size_t done = 0;
    for (; done < to.size(); ++done) {
      if (!pass_pending() || input_->next_rows(to.subspan(done, 1)) == 0) break;
      pending_ = between_;
    }
    return done;
  }
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 private:
  bool pass_pending() {
    if (pending_ == 0) return true;
    const std::uint64_t done = input_->skip(pending_);
    const bool all = done == pending_;
    pending_ -= done;
    return all;
  }

  std::unique_ptr<Cursor> input_;
  const std::uint64_t first_, between_;
  std::uint64_t pending_ = 0;
};

class SkipNode final : public DatasetNode {
 public:
  SkipNode(const AnyDataset& input, std::int64_t count, SourceSite site)
      : DatasetNode("skip", {input}, input.element_spec(), site), count_(count) {
    attribute("count", count);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].skip(count_, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override {
    return std::make_unique<StridedCursor>(input_cursor(context), count_, 0);
  }

 private:
  const std::int64_t count_;
};

class ShardNode final : public DatasetNode {
 public:
  ShardNode(const AnyDataset& input, std::int64_t count, std::int64_t index, SourceSite site)
      : DatasetNode("shard", {input}, input.element_spec(), site), count_(count), index_(index) {
    attribute("count", count);
    attribute("index", index);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].shard(count_, index_, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override {
    return std::make_unique<StridedCursor>(input_cursor(context), index_, count_ - 1);
  }

 private:
  const std::int64_t count_, index_;
};

// --- repeat

class RepeatCursor final : public Cursor {
 public:
  RepeatCursor(std::unique_ptr<Cursor> input, std::int64_t count, std::stop_token cancel)
      : input_(std::move(input)), count_(count), cancel_(std::move(cancel)) {}
  void start(std::uint64_t epoch) override {
    epoch_ = epoch;
    pass_ = 0;
    gave_ = false;
    ended_ = count_ == 0;
    if (!ended_) begin_pass();
  }
  bool next(Element& to) override {
    while (!ended_) {
      if (input_->next(to)) {
        gave_ = true;
        return true;
      }
      end_pass();
    }
    return false;
  }
  std::uint64_t skip(std::uint64_t count) override {
    std::uint64_t done = 0;
    while (!ended_ && done < count) {
      const std::uint64_t now = input_->skip(count - done);
      done += now;
      gave_ = gave_ || now > 0;
      if (done < count) end_pass();
    }
    return done;
  }
  void save(StateWriter& to) const override {
    to.number(epoch_);
    to.number(pass_);
    to.number(ended_ ? 2 : gave_ ? 1 : 0);
    if (!ended_) input_->save(to);
  }
  void restore(StateReader& from) override {
    epoch_ = from.number(std::numeric_limits<std::uint64_t>::max(), "the number of an epoch");
    pass_ =
        from.number(count_ < 0 ? kMostElements : static_cast<std::uint64_t>(count_), "the pass of repeat()");
    const std::uint64_t state = from.number(2, "the state of repeat()");
    gave_ = state == 1;
    ended_ = state == 2;
    if (!ended_) input_->restore(from);
  }
  RowSource* rows() override { return input_->rows(); }
  std::size_t next_rows(std::span<std::int64_t> to) override {
    std::size_t done = 0;
    while (!ended_ && done < to.size()) {
      const std::size_t now = input_->next_rows(to.subspan(done));
      done += now;
      gave_ = gave_ || now > 0;
      if (done < to.size()) end_pass();
    }
    return done;
  }
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 private:
  // Passes of an outer repeat() go on counting where the one before stopped.
  void begin_pass() {
    const std::uint64_t before = count_ > 0 ? epoch_ * static_cast<std::uint64_t>(count_) : 0;
    input_->start(count_ > 0 ? before + pass_ : internal::inner_epoch(epoch_, pass_));
  }
  void end_pass() {
    internal::check_cancelled(cancel_);
    ++pass_;
    // A pass without elements: all others would be as empty.
    ended_ = !gave_ || (count_ >= 0 && pass_ >= static_cast<std::uint64_t>(count_));
    gave_ = false;
    if (!ended_) begin_pass();
  }

  std::unique_ptr<Cursor> input_;
  const std::int64_t count_;
  std::stop_token cancel_;
  std::uint64_t epoch_ = 0;
  std::uint64_t pass_ = 0;
  bool gave_ = false;  // this pass had an element
  bool ended_ = false;
};

class RepeatNode final : public DatasetNode {
 public:
  RepeatNode(const AnyDataset& input, std::int64_t count, SourceSite site)
      : DatasetNode("repeat", {input}, input.element_spec(), site), count_(count) {
    attribute("count", count);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].repeat(count_, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override {
    return std::make_unique<RepeatCursor>(input_cursor(context), count_, context.cancel);
  }

 private:
  const std::int64_t count_;
};

}  // namespace

AnyDataset AnyDataset::take(std::int64_t count, SourceSite site) const {
  if (count < 0) internal::refuse("take", site, str("the count is ", count, "; expected 0 or more"));
  return internal::make_dataset<TakeNode>(*this, count, site);
}

AnyDataset AnyDataset::skip(std::int64_t count, SourceSite site) const {
  if (count < 0) internal::refuse("skip", site, str("the count is ", count, "; expected 0 or more"));
  return internal::make_dataset<SkipNode>(*this, count, site);
}

AnyDataset AnyDataset::shard(std::int64_t count, std::int64_t index, SourceSite site) const {
  if (count < 1 || index < 0 || index >= count) {
    internal::refuse("shard", site,
                     str("index ", index, " of ", counted(count, "shard"), "; expected 0 <= index < count"));
  }
  return internal::make_dataset<ShardNode>(*this, count, index, site);
}

AnyDataset AnyDataset::repeat(std::int64_t count, SourceSite site) const {
  return internal::make_dataset<RepeatNode>(*this, count < 0 ? -1 : count, site);
}

}  // namespace lockstep
