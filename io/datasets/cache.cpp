// io/datasets/cache.cpp - what the first pass reads, kept in memory.
#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/internal/node.h"

namespace lockstep {

namespace {

using internal::Cursor;
using internal::CursorContext;
using internal::DatasetNode;
using internal::StateReader;
using internal::StateWriter;

using CachedElements = std::shared_ptr<const std::vector<Element>>;

class CacheNode final : public DatasetNode {
 public:
  CacheNode(const AnyDataset& input, SourceSite site)
      : DatasetNode("cache", {input}, input.element_spec(), site) {}
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override { return inputs[0].cache(site()); }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;

  // The elements of a pass that began with this epoch, if one is over.
  CachedElements find(std::uint64_t epoch) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return elements_ != nullptr && epoch_ == epoch ? elements_ : nullptr;
  }
  void keep(std::uint64_t epoch, CachedElements elements) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (elements_ != nullptr) return;
    elements_ = std::move(elements);
    epoch_ = epoch;
  }

 private:
  mutable std::mutex mutex_;
  mutable CachedElements elements_;
  mutable std::uint64_t epoch_ = 0;
};

// Its position: the epoch of the first pass, whose elements all passes give, and a count of elements; in the first pass the
// input's position besides. In another process what was cached is read again.
class CacheCursor final : public Cursor {
 public:
  CacheCursor(const CacheNode& node, const CursorContext& context)
      : node_(node), input_(node.input_cursor(context)) {}

  void start(std::uint64_t epoch) override {
    if (!first_) first_ = epoch;
    at_ = 0;
    begin_pass();
    if (mode_ == Mode::kFill) input_->start(*first_);
  }
  bool next(Element& to) override {
    if (mode_ == Mode::kRead) {
      if (at_ == cached_->size()) return false;
      to = (*cached_)[at_++];
      return true;
    }
    if (!input_->next(to)) {
      if (mode_ == Mode::kFill) {
        cached_ = std::make_shared<const std::vector<Element>>(std::move(filling_));
        filling_.clear();
        node_.keep(*first_, cached_);
        mode_ = Mode::kRead;
      }
      return false;
    }
    ++at_;
    if (mode_ == Mode::kFill) filling_.push_back(to);
    return true;
  }
  std::uint64_t skip(std::uint64_t count) override {
    if (mode_ == Mode::kFill) return Cursor::skip(count);
    const std::uint64_t done =
        mode_ == Mode::kRead ? std::min<std::uint64_t>(count, cached_->size() - at_) : input_->skip(count);
    at_ += done;
    return done;
  }
  void save(StateWriter& to) const override {
    to.number(*first_);
    to.number(at_);
    to.number(mode_ == Mode::kRead ? 0 : 1);
    if (mode_ != Mode::kRead) input_->save(to);
  }
  void restore(StateReader& from) override {
    first_ = from.number(std::numeric_limits<std::uint64_t>::max(), "the number of an epoch");
    const std::uint64_t at = from.number(std::numeric_limits<std::uint64_t>::max(), "the element of cache()");
    const bool has_position = from.number(1, "whether cache() is being filled") == 1;
    at_ = at;
    filling_.clear();
    if (has_position) {
      mode_ = Mode::kPass;
      input_->restore(from);
      return;
    }
    at_ = 0;
    begin_pass();
    if (mode_ == Mode::kFill) input_->start(*first_);
    if (skip(at) < at) internal::damaged_state("cache() has fewer elements than before");
  }
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 private:
  enum class Mode : std::uint8_t {
    kFill,  // from the input into memory
    kRead,  // from memory
    kPass,  // from the input: the pass began in another process
  };
  void begin_pass() {
    if (cached_ == nullptr) cached_ = node_.find(*first_);
    filling_.clear();
    mode_ = cached_ != nullptr ? Mode::kRead : Mode::kFill;
  }

  const CacheNode& node_;
  std::unique_ptr<Cursor> input_;
  std::optional<std::uint64_t> first_;
  Mode mode_ = Mode::kFill;
  CachedElements cached_;
  std::vector<Element> filling_;
  std::uint64_t at_ = 0;
};

std::unique_ptr<Cursor> CacheNode::cursor(const CursorContext& context) const {
  return std::make_unique<CacheCursor>(*this, context);
}

}  // namespace

AnyDataset AnyDataset::cache(SourceSite site) const { return internal::make_dataset<CacheNode>(*this, site); }

}  // namespace lockstep
