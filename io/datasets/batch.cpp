// io/datasets/batch.cpp - several elements in one, and the other way round. Rows of arrays are gathered without elements between.
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/internal/batch_builder.h"
#include "lockstep/io/datasets/internal/node.h"

namespace lockstep {

namespace internal {

void BatchBuilder::add_leaf(ElementLeaf& batch, const ElementLeaf& leaf) const {
  if (const std::string* const text = std::get_if<std::string>(&leaf)) {
    return std::get<Strings>(batch).push_back(*text);
  }
  const Tensor tensor = std::get<Tensor>(leaf).host();
  const std::size_t bytes = tensor.num_bytes();
  if (bytes == 0) return;
  std::memcpy(
      static_cast<std::byte*>(std::get<Tensor>(batch).raw()) + static_cast<std::size_t>(count_) * bytes,
      tensor.raw(), bytes);
}

void BatchBuilder::add_nest(Element& batch, const Element& element) const {
  if (element.is_leaf()) return add_leaf(batch.leaf(), element.leaf());
  for (std::size_t i = 0; i < element.size(); ++i) add_nest(batch.parts()[i], element.parts()[i]);
}

void BatchBuilder::add(const Element& element) {
  if (count_ == 0) {
    spec_ = spec_of(element);
    batch_ = element.with_leaves<ElementLeaf>([&](const ElementLeaf& leaf) -> ElementLeaf {
      if (const Tensor* const tensor = std::get_if<Tensor>(&leaf); tensor != nullptr && tensor->defined())
        return Tensor::empty(tensor->dtype(), tensor->shape().with_inserted(0, size_));
      if (std::holds_alternative<std::string>(leaf)) return Strings();
      throw InvalidArgument(str("expected tensors and strings, got ", spec_));
    });
  } else if (!admits(spec_, element)) {
    throw InvalidArgument(str("does not fit into the batch: expected ", spec_, " as the first of it, got ",
                              spec_of(element), "; use padded_batch() for tensors of different sizes"));
  }
  add_nest(batch_, element);
  ++count_;
}

Element BatchBuilder::finish() {
  LOCKSTEP_CHECK(count_ > 0);
  if (count_ < size_) {
    batch_.for_each_leaf([&](ElementLeaf& leaf) {
      if (Tensor* const tensor = std::get_if<Tensor>(&leaf)) *tensor = tensor->slice(0, count_);
    });
  }
  return std::move(batch_);
}

}  // namespace internal

namespace {

using internal::BatchBuilder;
using internal::Cursor;
using internal::CursorContext;
using internal::DatasetNode;
using internal::StateReader;
using internal::StateWriter;

constexpr std::uint64_t kAnyNumber = std::numeric_limits<std::uint64_t>::max();

// Counts elements beside the input's position, so that errors can name them.
class CountingCursor : public Cursor {
 public:
  CountingCursor(const DatasetNode& node, const CursorContext& context)
      : node_(node), cancel_(context.cancel), input_(node.input_cursor(context)) {}
  void start(std::uint64_t epoch) override {
    input_->start(epoch);
    index_ = 0;
  }
  void save(StateWriter& to) const override {
    to.number(index_);
    input_->save(to);
  }
  void restore(StateReader& from) override {
    index_ = from.number(kAnyNumber, "a count of elements");
    input_->restore(from);
  }
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 protected:
  bool pull(Element& to) {
    if (!input_->next(to)) return false;
    ++index_;
    return true;
  }
  const DatasetNode& node_;
  std::stop_token cancel_;
  std::unique_ptr<Cursor> input_;
  std::uint64_t index_ = 0;  // elements that the input gave
};

class BatchNode final : public DatasetNode {
 public:
  BatchNode(const AnyDataset& input, std::int64_t elements, BatchOptions given, SourceSite site)
      : DatasetNode("batch", {input},
                    internal::batch_spec(input.element_spec(), given.drop_remainder ? elements : kUnknown,
                                         "batch", site),
                    site),
        size(elements),
        options(given) {
    attribute("size", elements);
    attribute("drop_remainder", given.drop_remainder);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].batch(size, options, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;

  const std::int64_t size;
  const BatchOptions options;
};

class BatchCursor final : public CountingCursor {
 public:
  BatchCursor(const BatchNode& node, const CursorContext& context)
      : CountingCursor(node, context), size_(node.size), drop_(node.options.drop_remainder) {
    if (input_->rows() != nullptr)
      row_numbers_.resize(static_cast<std::size_t>(std::min<std::int64_t>(size_, kRowsAtOnce)));
  }

  bool next(Element& to) override {
    if (internal::RowSource* const rows = input_->rows()) return next_of_rows(*rows, to);
    BatchBuilder builder(size_);
    Element element;
    while (builder.count() < size_ && pull(element)) {
      try {
        builder.add(element);
      } catch (...) {
        internal::rethrow_at(node_, index_ - 1);
      }
      if (builder.count() % 1024 == 0) internal::check_cancelled(cancel_);
    }
    if (builder.count() == 0 || (drop_ && builder.count() < size_)) return false;
    to = builder.finish();
    return true;
  }

  std::uint64_t skip(std::uint64_t count) override {
    const auto size = static_cast<std::uint64_t>(size_);
    if (count > kAnyNumber / size) return Cursor::skip(count);
    const std::uint64_t passed = input_->skip(count * size);
    index_ += passed;
    return passed / size + (!drop_ && passed % size != 0 ? 1 : 0);
  }

 private:
  static constexpr std::int64_t kRowsAtOnce = std::int64_t{1} << 20U;

  bool next_of_rows(internal::RowSource& rows, Element& to) {
    std::size_t count = 0;
    // The size may be larger than what there is: memory only for rows that come.
    for (;;) {
      const std::size_t got = input_->next_rows(std::span(row_numbers_).subspan(count));
      count += got;
      if (count < row_numbers_.size() || static_cast<std::int64_t>(count) == size_) break;
      row_numbers_.resize(static_cast<std::size_t>(std::min(size_, static_cast<std::int64_t>(count) * 2)));
    }
    index_ += count;
    if (count == 0 || (drop_ && static_cast<std::int64_t>(count) < size_)) return false;
    to = rows.gather(std::span<const std::int64_t>(row_numbers_).first(count));
    return true;
  }

  const std::int64_t size_;
  const bool drop_;
  std::vector<std::int64_t> row_numbers_;
};

std::unique_ptr<Cursor> BatchNode::cursor(const CursorContext& context) const {
  return std::make_unique<BatchCursor>(*this, context);
}

// --- padded

// The spec of a batch whose leaf is padded to `wanted`.
LeafSpec padded_leaf(const LeafSpec& leaf, const Shape* wanted, std::int64_t extent, const SourceSite& site) {
  if (leaf.kind == LeafSpec::Kind::kString) return LeafSpec::strings();
  if (leaf.kind == LeafSpec::Kind::kStrings)
    internal::refuse("padded_batch", site, "lists of strings are not batched");
  if (leaf.kind == LeafSpec::Kind::kAnyTensor) return leaf;
  Shape shape = leaf.tensor.shape;
  if (wanted != nullptr && wanted->rank() != shape.rank())
    internal::refuse("padded_batch", site,
                     str("the shape ", *wanted, " is for another rank than ", leaf.tensor));
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t to = wanted == nullptr ? kUnknown : (*wanted)[axis];
    if (to != kUnknown && shape[axis] > to)
      internal::refuse("padded_batch", site, str(leaf.tensor, " is larger than the shape ", *wanted));
    if (to != kUnknown) shape = shape.with_dim(axis, to);
  }
  return TensorSpec{leaf.tensor.dtype, shape.with_inserted(0, extent)};
}

ElementSpec padded_spec(const ElementSpec& spec, const PaddedBatchOptions& options, std::int64_t size,
                        const SourceSite& site) {
  std::size_t leaves = 0;
  spec.for_each_leaf([&](const LeafSpec& /*leaf*/) { ++leaves; });
  if (!options.shapes.empty() && options.shapes.size() != leaves)
    internal::refuse("padded_batch", site,
                     str("the elements ", spec, " have ", counted(leaves, "leaf", "leaves"), ", got ",
                         counted(options.shapes.size(), "shape")));
  std::size_t i = 0;
  return spec.with_leaves<LeafSpec>([&](const LeafSpec& leaf) {
    const Shape* const wanted = options.shapes.empty() ? nullptr : &options.shapes[i++];
    return padded_leaf(leaf, wanted, options.drop_remainder ? size : kUnknown, site);
  });
}

// Copies `from` to the beginning of each axis of `to`, which is as large or larger.
void copy_into_corner(const std::byte* from, const Shape& small, std::byte* to, const Shape& large,
                      std::size_t axis, std::size_t size) {
  const auto elements = [](const Shape& shape, std::size_t first) {
    std::size_t product = 1;
    for (std::size_t i = first; i < shape.rank(); ++i) product *= static_cast<std::size_t>(shape[i]);
    return product;
  };
  const std::size_t small_step = axis >= small.rank() ? 0 : elements(small, axis + 1) * size;
  const std::size_t large_step = axis >= large.rank() ? 0 : elements(large, axis + 1) * size;
  if (axis >= small.rank() || (axis + 1 == small.rank())) {
    const std::size_t bytes = elements(small, axis) * size;
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  for (std::int64_t i = 0; i < small[axis]; ++i) {
    copy_into_corner(from, small, to, large, axis + 1, size);
    from += small_step;
    to += large_step;
  }
}

class PaddedBatchNode final : public DatasetNode {
 public:
  PaddedBatchNode(const AnyDataset& input, std::int64_t elements, PaddedBatchOptions given, SourceSite site)
      : DatasetNode("padded_batch", {input}, padded_spec(input.element_spec(), given, elements, site), site),
        size(elements),
        options(std::move(given)) {
    attribute("size", elements);
    attribute("drop_remainder", options.drop_remainder);
    attribute("value", options.value);
    Strings shapes;
    for (const Shape& shape : options.shapes) shapes.push_back(shape.to_string());
    if (!shapes.empty()) attribute("shapes", shapes);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return inputs[0].padded_batch(size, options, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;

  const std::int64_t size;
  const PaddedBatchOptions options;
};

class PaddedBatchCursor final : public CountingCursor {
 public:
  PaddedBatchCursor(const PaddedBatchNode& node, const CursorContext& context)
      : CountingCursor(node, context), size_(node.size), options_(node.options) {}

  bool next(Element& to) override {
    std::vector<Element> elements;
    Element element;
    while (static_cast<std::int64_t>(elements.size()) < size_ && pull(element))
      elements.push_back(std::move(element));
    if (elements.empty() || (options_.drop_remainder && static_cast<std::int64_t>(elements.size()) < size_))
      return false;
    to = padded(elements);
    return true;
  }

 private:
  Element padded(const std::vector<Element>& elements) {
    // The leaves of each element, side by side.
    std::vector<std::vector<const ElementLeaf*>> leaves(elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i) {
      try {
        if (!elements[i].has_structure_of(elements[0]))
          throw InvalidArgument(str("does not fit into the batch: expected ", spec_of(elements[0]), ", got ",
                                    spec_of(elements[i])));
        elements[i].for_each_leaf([&](const ElementLeaf& leaf) { leaves[i].push_back(&leaf); });
      } catch (...) {
        internal::rethrow_at(node_, index_ - elements.size() + i);
      }
    }
    std::size_t at = 0;
    return elements[0].with_leaves<ElementLeaf>([&](const ElementLeaf& first) -> ElementLeaf {
      const std::size_t leaf = at++;
      if (std::holds_alternative<std::string>(first)) {
        Strings list;
        for (const auto& of_element : leaves) list.push_back(std::get<std::string>(*of_element[leaf]));
        return list;
      }
      return padded_tensor(leaves, leaf);
    });
  }

  Tensor padded_tensor(const std::vector<std::vector<const ElementLeaf*>>& leaves, std::size_t leaf) {
    const TensorSpec first = std::get<Tensor>(*leaves[0][leaf]).spec();
    Shape shape = first.shape;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      const Tensor* const tensor = std::get_if<Tensor>(leaves[i][leaf]);
      if (tensor == nullptr || tensor->dtype() != first.dtype || tensor->shape().rank() != shape.rank()) {
        throw InvalidArgument(
            str("padded_batch: element ", index_ - leaves.size() + i,
                " does not fit into the batch: expected ", first.dtype, " of rank ", shape.rank(), ", got ",
                tensor == nullptr ? "a string" : to_string(tensor->spec())),
            internal::place_of(node_));
      }
      for (std::size_t axis = 0; axis < shape.rank(); ++axis)
        shape = shape.with_dim(axis, std::max(shape[axis], tensor->shape()[axis]));
    }
    if (!options_.shapes.empty()) shape = fixed_shape(options_.shapes[leaf], shape);
    Tensor batch = Tensor::full(first.dtype, shape.with_inserted(0, static_cast<std::int64_t>(leaves.size())),
                                options_.value);
    auto* to = static_cast<std::byte*>(batch.raw());
    for (const auto& of_element : leaves) {
      const Tensor tensor = std::get<Tensor>(*of_element[leaf]).host();
      copy_into_corner(static_cast<const std::byte*>(tensor.raw()), tensor.shape(), to, shape, 0,
                       size_of(first.dtype));
      to += batch.num_bytes() / leaves.size();
    }
    return batch;
  }

  Shape fixed_shape(const Shape& wanted, Shape largest) const {
    for (std::size_t axis = 0; axis < largest.rank(); ++axis) {
      if (wanted[axis] == kUnknown) continue;
      if (largest[axis] > wanted[axis])
        throw InvalidArgument(str("padded_batch: an element of the batch before element ", index_, " has ",
                                  largest[axis], " at axis ", axis, ", more than the shape ", wanted),
                              internal::place_of(node_));
      largest = largest.with_dim(axis, wanted[axis]);
    }
    return largest;
  }

  const std::int64_t size_;
  const PaddedBatchOptions& options_;
};

std::unique_ptr<Cursor> PaddedBatchNode::cursor(const CursorContext& context) const {
  return std::make_unique<PaddedBatchCursor>(*this, context);
}

// --- and back

class UnbatchNode final : public DatasetNode {
 public:
  UnbatchNode(const AnyDataset& input, ElementSpec spec, SourceSite site)
      : DatasetNode("unbatch", {input}, std::move(spec), site) {}
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override { return inputs[0].unbatch(site()); }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;
};

// Its position: that of the input before the batch, and how many rows of the batch were given.
class UnbatchCursor final : public Cursor {
 public:
  UnbatchCursor(const DatasetNode& node, const CursorContext& context)
      : node_(node), input_(node.input_cursor(context)) {}

  void start(std::uint64_t epoch) override {
    input_->start(epoch);
    forget();
  }
  bool next(Element& to) override {
    while (at_ == rows_) {
      before_ = input_->save_now();
      at_ = rows_ = 0;
      if (!input_->next(batch_)) return false;
      rows_ = rows_of_batch();
      ++batches_;
    }
    to = batch_.with_leaves<ElementLeaf>([&](const ElementLeaf& leaf) -> ElementLeaf {
      if (const Tensor* const tensor = std::get_if<Tensor>(&leaf))
        return tensor->slice(at_, at_ + 1).reshape(tensor->shape().without_dim(0));
      return std::get<Strings>(leaf)[static_cast<std::size_t>(at_)];
    });
    ++at_;
    return true;
  }
  void save(StateWriter& to) const override {
    to.number(batches_);
    to.number(static_cast<std::uint64_t>(at_));
    to.bytes(before_.empty() ? input_->save_now() : before_);
  }
  void restore(StateReader& from) override {
    forget();
    batches_ = from.number(kAnyNumber, "a count of batches");
    const std::uint64_t at =
        from.number(static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()), "a row of a batch");
    before_ = from.bytes("the position before a batch");
    StateReader inner(before_);
    input_->restore(inner);
    if (at == 0) return;
    if (!input_->next(batch_)) internal::damaged_state("a batch that it names is not there");
    rows_ = rows_of_batch();
    if (static_cast<std::int64_t>(at) > rows_)
      internal::damaged_state(str("it names row ", at, " of a batch of ", rows_));
    at_ = static_cast<std::int64_t>(at);
  }
  void add_stats(std::vector<DatasetStage>& to) const override { input_->add_stats(to); }

 private:
  void forget() {
    before_.clear();
    batch_ = Element();
    at_ = rows_ = 0;
    batches_ = 0;
  }
  std::int64_t rows_of_batch() const {
    std::optional<std::int64_t> rows;
    bool fits = true;
    batch_.for_each_leaf([&](const ElementLeaf& leaf) {
      std::int64_t count = -1;
      if (const Tensor* const tensor = std::get_if<Tensor>(&leaf);
          tensor != nullptr && tensor->shape().rank() > 0)
        count = tensor->shape()[0];
      if (const Strings* const list = std::get_if<Strings>(&leaf))
        count = static_cast<std::int64_t>(list->size());
      fits = fits && count >= 0 && rows.value_or(count) == count;
      rows = count;
    });
    if (!fits || !rows)
      throw InvalidArgument(str("unbatch: element ", batches_,
                                ": its leaves have no rows, or not equally many: ", spec_of(batch_)),
                            internal::place_of(node_));
    return *rows;
  }

  const DatasetNode& node_;
  std::unique_ptr<Cursor> input_;
  std::string before_;
  Element batch_;
  std::int64_t at_ = 0, rows_ = 0;
  std::uint64_t batches_ = 0;
};

std::unique_ptr<Cursor> UnbatchNode::cursor(const CursorContext& context) const {
  return std::make_unique<UnbatchCursor>(*this, context);
}

}  // namespace

AnyDataset AnyDataset::batch(std::int64_t size, BatchOptions options, SourceSite site) const {
  if (size < 1) internal::refuse("batch", site, str("the size is ", size, "; expected 1 or more"));
  return internal::make_dataset<BatchNode>(*this, size, options, site);
}

AnyDataset AnyDataset::padded_batch(std::int64_t size, PaddedBatchOptions options, SourceSite site) const {
  if (size < 1) internal::refuse("padded_batch", site, str("the size is ", size, "; expected 1 or more"));
  return internal::make_dataset<PaddedBatchNode>(*this, size, std::move(options), site);
}

AnyDataset AnyDataset::unbatch(SourceSite site) const {
  element_spec().for_each_leaf([&](const LeafSpec& leaf) {
    if (leaf.kind == LeafSpec::Kind::kString ||
        (leaf.kind == LeafSpec::Kind::kTensor && leaf.tensor.shape.rank() == 0))
      internal::refuse("unbatch", site, str("elements of ", element_spec(), " have no rows"));
  });
  return internal::make_dataset<UnbatchNode>(*this, internal::row_spec(element_spec()), site);
}

}  // namespace lockstep
