// io/datasets/joins.cpp - several datasets in one: side by side, one after another.
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

std::vector<std::unique_ptr<Cursor>> cursors_of_inputs(const DatasetNode& node,
                                                       const CursorContext& context) {
  std::vector<std::unique_ptr<Cursor>> cursors;
  for (std::size_t i = 0; i < node.inputs().size(); ++i) cursors.push_back(node.input_cursor(context, i));
  return cursors;
}

class ZipCursor final : public Cursor {
 public:
  explicit ZipCursor(std::vector<std::unique_ptr<Cursor>> inputs) : inputs_(std::move(inputs)) {}
  void start(std::uint64_t epoch) override {
    for (const auto& input : inputs_) input->start(epoch);
    ended_ = false;
  }
  bool next(Element& to) override {
    if (ended_) return false;
    std::vector<Element> parts(inputs_.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      ended_ = !inputs_[i]->next(parts[i]);
      if (ended_) return false;
    }
    to = Element::tuple(std::move(parts));
    return true;
  }
  std::uint64_t skip(std::uint64_t count) override {
    if (ended_) return 0;
    std::uint64_t least = count;
    for (const auto& input : inputs_) least = std::min(least, input->skip(count));
    ended_ = least < count;
    return least;
  }
  void save(StateWriter& to) const override {
    to.number(ended_ ? 1 : 0);
    if (ended_) return;
    for (const auto& input : inputs_) input->save(to);
  }
  void restore(StateReader& from) override {
    ended_ = from.number(1, "the end of zip()") == 1;
    if (ended_) return;
    for (const auto& input : inputs_) input->restore(from);
  }
  void add_stats(std::vector<DatasetStage>& to) const override {
    for (const auto& input : inputs_) input->add_stats(to);
  }

 private:
  std::vector<std::unique_ptr<Cursor>> inputs_;
  bool ended_ = false;
};

class ZipNode final : public DatasetNode {
 public:
  ZipNode(std::vector<AnyDataset> inputs, ElementSpec spec, SourceSite site)
      : DatasetNode("zip", std::move(inputs), std::move(spec), site) {}
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return zip(std::move(inputs), site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override {
    return std::make_unique<ZipCursor>(cursors_of_inputs(*this, context));
  }
};

class ConcatenateCursor final : public Cursor {
 public:
  explicit ConcatenateCursor(std::vector<std::unique_ptr<Cursor>> inputs) : inputs_(std::move(inputs)) {}
  void start(std::uint64_t epoch) override {
    epoch_ = epoch;
    at_ = 0;
    inputs_[0]->start(epoch);
  }
  bool next(Element& to) override {
    while (!inputs_[at_]->next(to)) {
      if (!begin_next()) return false;
    }
    return true;
  }
  std::uint64_t skip(std::uint64_t count) override {
    std::uint64_t done = 0;
    while (done < count) {
      done += inputs_[at_]->skip(count - done);
      if (done < count && !begin_next()) break;
    }
    return done;
  }
  void save(StateWriter& to) const override {
    to.number(epoch_);
    to.number(at_);
    inputs_[at_]->save(to);
  }
  void restore(StateReader& from) override {
    epoch_ = from.number(~std::uint64_t{0}, "the number of an epoch");
    at_ = from.number(inputs_.size() - 1, "the part of concatenate()");
    inputs_[at_]->restore(from);
  }
  void add_stats(std::vector<DatasetStage>& to) const override {
    for (const auto& input : inputs_) input->add_stats(to);
  }

 private:
  bool begin_next() {
    if (at_ + 1 == inputs_.size()) return false;
    inputs_[++at_]->start(epoch_);
    return true;
  }

  std::vector<std::unique_ptr<Cursor>> inputs_;
  std::uint64_t epoch_ = 0;
  std::size_t at_ = 0;
};

class ConcatenateNode final : public DatasetNode {
 public:
  ConcatenateNode(const AnyDataset& first, const AnyDataset& second, ElementSpec spec, SourceSite site)
      : DatasetNode("concatenate", {first, second}, std::move(spec), site) {}
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].concatenate(inputs[1], site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override {
    return std::make_unique<ConcatenateCursor>(cursors_of_inputs(*this, context));
  }
};

}  // namespace

AnyDataset zip(std::vector<AnyDataset> inputs, SourceSite site) {
  if (inputs.empty()) internal::refuse("zip", site, "there are no datasets; give one at least");
  std::vector<ElementSpec> specs;
  specs.reserve(inputs.size());
  for (const AnyDataset& input : inputs) specs.push_back(input.element_spec());
  return internal::make_dataset<ZipNode>(std::move(inputs), ElementSpec::tuple(std::move(specs)), site);
}

AnyDataset AnyDataset::concatenate(const AnyDataset& next, SourceSite site) const {
  ElementSpec spec;
  try {
    spec = join_specs(element_spec(), next.element_spec());
  } catch (const InvalidArgument& error) {
    internal::refuse("concatenate", site, error.message());
  }
  return internal::make_dataset<ConcatenateNode>(*this, next, std::move(spec), site);
}

}  // namespace lockstep
