// io/datasets/generator.cpp - elements that a C++ function gives.
#include <limits>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/internal/node.h"
#include "lockstep/io/datasets/sources.h"

namespace lockstep {

ElementStream::ElementStream() = default;
ElementStream::~ElementStream() = default;
std::optional<std::string> ElementStream::save() const { return std::nullopt; }
void ElementStream::restore(const std::string& /*state*/) {
  throw FailedPrecondition(
      "this stream of elements gives states, and does not take them: override restore() too");
}

namespace {

using internal::Cursor;
using internal::CursorContext;
using internal::DatasetNode;
using internal::StateReader;
using internal::StateWriter;

using MakeStream = std::function<std::unique_ptr<ElementStream>()>;

class GeneratorNode final : public DatasetNode {
 public:
  GeneratorNode(ElementSpec spec, MakeStream make, SourceSite site)
      : DatasetNode("generator", {}, std::move(spec), site), make_(std::move(make)) {}
  AnyDataset with_inputs(std::vector<AnyDataset> /*inputs*/) const override {
    throw InvalidArgument("generator has no inputs");
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;
  std::unique_ptr<ElementStream> make() const {
    std::unique_ptr<ElementStream> stream = make_();
    if (stream == nullptr)
      throw InvalidArgument("generator: the function gave no stream", internal::place_of(*this));
    return stream;
  }

 private:
  const MakeStream make_;
};

// Its position: how many elements came, and the stream's own state if it has one.
class GeneratorCursor final : public Cursor {
 public:
  GeneratorCursor(const GeneratorNode& node, std::stop_token cancel)
      : node_(node), cancel_(std::move(cancel)) {}
  void start(std::uint64_t /*epoch*/) override {
    stream_ = node_.make();
    index_ = 0;
    ended_ = false;
  }
  bool next(Element& to) override {
    if (ended_) return false;
    std::optional<Element> element;
    try {
      element = stream_->next();
    } catch (...) {
      internal::rethrow_at(node_, index_);
    }
    ended_ = !element;
    if (ended_) return false;
    internal::check_fits(node_, index_, *element);
    to = *std::move(element);
    ++index_;
    return true;
  }
  void save(StateWriter& to) const override {
    to.number(index_);
    to.number(ended_ ? 1 : 0);
    const std::optional<std::string> own = ended_ ? std::nullopt : stream_->save();
    to.number(own ? 1 : 0);
    if (own) to.bytes(*own);
  }
  void restore(StateReader& from) override {
    const std::uint64_t index =
        from.number(std::numeric_limits<std::uint64_t>::max(), "the element of a generator");
    const bool ended = from.number(1, "the end of a generator") == 1;
    const bool has_own = from.number(1, "whether a generator has a state") == 1;
    start(0);
    if (has_own) {
      stream_->restore(std::string(from.bytes("the state of a generator")));
    } else if (!ended) {
      for (std::uint64_t passed = 0; passed < index; ++passed) {
        if (passed % 1024 == 0) internal::check_cancelled(cancel_);
        if (!stream_->next()) internal::damaged_state("a generator gives fewer elements than before");
      }
    }
    index_ = index;
    ended_ = ended;
  }

 private:
  const GeneratorNode& node_;
  std::stop_token cancel_;
  std::unique_ptr<ElementStream> stream_;
  std::uint64_t index_ = 0;
  bool ended_ = false;
};

std::unique_ptr<Cursor> GeneratorNode::cursor(const CursorContext& context) const {
  return std::make_unique<GeneratorCursor>(*this, context.cancel);
}

class FunctionStream final : public ElementStream {
 public:
  explicit FunctionStream(std::function<std::optional<Element>()> function)
      : function_(std::move(function)) {}
  std::optional<Element> next() override { return function_(); }

 private:
  std::function<std::optional<Element>()> function_;
};

}  // namespace

AnyDataset datasets::generator(ElementSpec spec, std::function<std::unique_ptr<ElementStream>()> make,
                               SourceSite site) {
  if (!make) internal::refuse("generator", site, "there is no function");
  return internal::make_dataset<GeneratorNode>(std::move(spec), std::move(make), site);
}

AnyDataset datasets::generator_of(ElementSpec spec,
                                  std::function<std::function<std::optional<Element>()>()> make,
                                  SourceSite site) {
  if (!make) internal::refuse("generator_of", site, "there is no function");
  MakeStream make_stream = [make = std::move(make)]() -> std::unique_ptr<ElementStream> {
    return std::make_unique<FunctionStream>(make());
  };
  return internal::make_dataset<GeneratorNode>(std::move(spec), std::move(make_stream), site);
}

}  // namespace lockstep
