// io/datasets/window.cpp - batches that may overlap.
#include <deque>
#include <limits>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/internal/batch_builder.h"
#include "lockstep/io/datasets/internal/node.h"

namespace lockstep {

namespace {

using internal::BatchBuilder;
using internal::Cursor;
using internal::CursorContext;
using internal::DatasetNode;
using internal::StateReader;
using internal::StateWriter;

class WindowNode final : public DatasetNode {
 public:
  WindowNode(const AnyDataset& input, std::int64_t elements, WindowOptions given, SourceSite site)
      : DatasetNode("window", {input},
                    internal::batch_spec(input.element_spec(), given.drop_remainder ? elements : kUnknown,
                                         "window", site),
                    site),
        size(elements),
        options(given) {
    attribute("size", elements);
    attribute("shift", given.shift);
    attribute("stride", given.stride);
    attribute("drop_remainder", given.drop_remainder);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].window(size, options, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;

  const std::int64_t size;
  const WindowOptions options;
};

// Its position: that of the input where the next window begins, if that element is there already, or how many elements come
// before it.
class WindowCursor final : public Cursor {
 public:
  WindowCursor(const WindowNode& node, const CursorContext& context)
      : node_(node),
        cancel_(context.cancel),
        input_(node.input_cursor(context)),
        shift_(static_cast<std::uint64_t>(node.options.shift)),
        span_(static_cast<std::uint64_t>((node.size - 1) * node.options.stride + 1)) {}

  void start(std::uint64_t epoch) override {
    input_->start(epoch);
    held_.clear();
    begin_ = pulled_ = 0;
  }
  bool next(Element& to) override {
    if (!reach_begin()) return false;
    while (pulled_ < begin_ + span_) {
      if (pulled_ % 1024 == 0) internal::check_cancelled(cancel_);
      Held one;
      if ((pulled_ - begin_) % shift_ == 0) one.before = input_->save_now();
      if (!input_->next(one.element)) break;
      ++pulled_;
      held_.push_back(std::move(one));
    }
    if (held_.empty() || (node_.options.drop_remainder && held_.size() < span_)) return false;
    BatchBuilder builder(node_.size);
    const auto stride = static_cast<std::size_t>(node_.options.stride);
    for (std::size_t i = 0; i < held_.size() && builder.count() < node_.size; i += stride) {
      try {
        builder.add(held_[i].element);
      } catch (...) {
        internal::rethrow_at(node_, begin_ + i);
      }
    }
    to = builder.finish();
    for (std::uint64_t passed = 0; passed < shift_ && !held_.empty(); ++passed) held_.pop_front();
    begin_ += shift_;
    return true;
  }
  void save(StateWriter& to) const override {
    to.number(begin_);
    to.number(held_.empty() ? begin_ - pulled_ : 0);
    to.bytes(held_.empty() ? input_->save_now() : held_.front().before);
  }
  void restore(StateReader& from) override {
    begin_ = from.number(std::numeric_limits<std::uint64_t>::max() / 2, "where a window begins");
    const std::uint64_t before = from.number(begin_, "the elements before a window");
    StateReader inner(from.bytes("the position before a window"));
    input_->restore(inner);
    held_.clear();
    pulled_ = begin_ - before;
  }
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 private:
  struct Held {
    Element element;
    std::string before;  // the input's position, where a window may begin
  };
  // Passes over what lies between two windows.
  bool reach_begin() {
    if (pulled_ >= begin_) return true;
    pulled_ += input_->skip(begin_ - pulled_);
    return pulled_ == begin_;
  }

  const WindowNode& node_;
  std::stop_token cancel_;
  std::unique_ptr<Cursor> input_;
  const std::uint64_t shift_, span_;
  std::deque<Held> held_;  // from element begin_ on
  std::uint64_t begin_ = 0, pulled_ = 0;
};

std::unique_ptr<Cursor> WindowNode::cursor(const CursorContext& context) const {
  return std::make_unique<WindowCursor>(*this, context);
}

}  // namespace

AnyDataset AnyDataset::window(std::int64_t size, WindowOptions options, SourceSite site) const {
  constexpr std::int64_t most = std::int64_t{1} << 31U;
  if (options.shift == 0) options.shift = size;
  if (size < 1 || size > most || options.shift < 1 || options.shift > most || options.stride < 1 ||
      options.stride > most) {
    internal::refuse("window", site,
                     str("size ", size, ", shift ", options.shift, ", stride ", options.stride,
                         "; expected 1 to ", most, " each"));
  }
  return internal::make_dataset<WindowNode>(*this, size, options, site);
}

}  // namespace lockstep
