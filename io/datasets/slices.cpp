// io/datasets/slices.cpp - sources in memory: numbers, elements, rows of tensors.
#include <cstring>
#include <optional>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/hasher.h"
#include "lockstep/io/datasets/internal/node.h"
#include "lockstep/io/datasets/internal/row_cursor.h"
#include "lockstep/io/datasets/sources.h"

namespace lockstep {

namespace {

using internal::CursorContext;
using internal::DatasetNode;
using internal::make_dataset;
using internal::RowSource;

// Copies the rows of one array next to each other. Rows of a few bytes are copied as numbers.
template <std::size_t kSize>
void gather_small(const std::byte* from, std::span<const std::int64_t> rows, std::byte* to) {
  for (const std::int64_t row : rows) {
    std::memcpy(to, from + static_cast<std::size_t>(row) * kSize, kSize);
    to += kSize;
  }
}

void gather_rows(const std::byte* from, std::size_t size, std::span<const std::int64_t> rows, std::byte* to) {
  switch (size) {
    case 0: return;
    case 1: return gather_small<1>(from, rows, to);
    case 2: return gather_small<2>(from, rows, to);
    case 4: return gather_small<4>(from, rows, to);
    case 8: return gather_small<8>(from, rows, to);
    default: break;
  }
  constexpr std::size_t kAhead = 4;  // rows whose first bytes are fetched while others are copied
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) {
      const std::byte* const soon = from + static_cast<std::size_t>(rows[i + kAhead]) * size;
      for (std::size_t line = 0; line < size && line < 1024; line += 64) __builtin_prefetch(soon + line);
    }
    std::memcpy(to, from + static_cast<std::size_t>(rows[i]) * size, size);
    to += size;
  }
}

class MemoryRows final : public RowSource {
 public:
  explicit MemoryRows(Element arrays, std::int64_t rows) : arrays_(std::move(arrays)), rows_(rows) {}

  std::int64_t rows() const override { return rows_; }
  Element row(std::int64_t index) override {
    return arrays_.with_leaves<ElementLeaf>([&](const ElementLeaf& leaf) -> ElementLeaf {
      if (const Tensor* const tensor = std::get_if<Tensor>(&leaf))
        return tensor->slice(index, index + 1).reshape(tensor->shape().without_dim(0));
      return std::get<Strings>(leaf)[static_cast<std::size_t>(index)];
    });
  }
  Element gather(std::span<const std::int64_t> rows) override {
    return arrays_.with_leaves<ElementLeaf>([&](const ElementLeaf& leaf) -> ElementLeaf {
      if (const Tensor* const tensor = std::get_if<Tensor>(&leaf)) {
        Tensor batch = Tensor::empty(tensor->dtype(),
                                     tensor->shape().with_dim(0, static_cast<std::int64_t>(rows.size())));
        if (!rows.empty()) {
          gather_rows(static_cast<const std::byte*>(tensor->raw()), batch.num_bytes() / rows.size(), rows,
                      static_cast<std::byte*>(batch.raw()));
        }
        return batch;
      }
      Strings batch;
      batch.reserve(rows.size());
      for (const std::int64_t row : rows)
        batch.push_back(std::get<Strings>(leaf)[static_cast<std::size_t>(row)]);
      return batch;
    });
  }

 private:
  const Element arrays_;
  const std::int64_t rows_;
};

class RangeRows final : public RowSource {
 public:
  RangeRows(std::int64_t begin, std::int64_t step, std::int64_t rows)
      : begin_(begin), step_(step), rows_(rows) {}
  std::int64_t rows() const override { return rows_; }
  Element row(std::int64_t index) override { return Tensor::scalar(begin_ + index * step_); }
  Element gather(std::span<const std::int64_t> rows) override {
    Tensor batch = Tensor::empty(DType::kI64, {static_cast<std::int64_t>(rows.size())});
    auto* to = static_cast<std::int64_t*>(batch.raw());
    for (const std::int64_t row : rows) *to++ = begin_ + row * step_;
    return batch;
  }

 private:
  const std::int64_t begin_, step_, rows_;
};

// A source whose elements are rows.
class RowsNode final : public DatasetNode {
 public:
  RowsNode(std::string_view op, std::shared_ptr<RowSource> source, ElementSpec spec,
           std::vector<DatasetAttribute> attributes, SourceSite site)
      : DatasetNode(op, {}, std::move(spec), site), source_(std::move(source)) {
    for (DatasetAttribute& one : attributes) attribute(std::move(one.name), std::move(one.value), one.kind);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> /*inputs*/) const override {
    throw InvalidArgument(str(op(), " has no inputs"));
  }
  std::unique_ptr<internal::Cursor> cursor(const CursorContext& /*context*/) const override {
    return std::make_unique<internal::RowCursor>(source_);
  }

 private:
  std::shared_ptr<RowSource> source_;
};

class ElementsNode final : public DatasetNode {
 public:
  ElementsNode(std::shared_ptr<const std::vector<Element>> elements, ElementSpec spec, SourceSite site)
      : DatasetNode("from_elements", {}, std::move(spec), site), elements_(std::move(elements)) {
    attribute("count", static_cast<std::int64_t>(elements_->size()));
    // Names of files and the like decide what the elements below are: another list is another dataset.
    internal::Hasher hasher;
    bool strings = !elements_->empty();
    for (const Element& element : *elements_) {
      strings = strings && element.is_leaf() && std::holds_alternative<std::string>(element.leaf());
      if (strings) hasher.add(element.string());
    }
    if (strings) attribute("hash", str(hasher.result()));
  }
  AnyDataset with_inputs(std::vector<AnyDataset> /*inputs*/) const override {
    throw InvalidArgument(str(op(), " has no inputs"));
  }
  std::unique_ptr<internal::Cursor> cursor(const CursorContext& /*context*/) const override {
    return std::make_unique<ElementsCursor>(elements_);
  }

 private:
  class ElementsCursor final : public internal::Cursor {
   public:
    explicit ElementsCursor(std::shared_ptr<const std::vector<Element>> elements)
        : elements_(std::move(elements)) {}
    void start(std::uint64_t /*epoch*/) override { at_ = 0; }
    bool next(Element& to) override {
      if (at_ == elements_->size()) return false;
      to = (*elements_)[at_++];
      return true;
    }
    std::uint64_t skip(std::uint64_t count) override {
      const std::uint64_t done = std::min<std::uint64_t>(count, elements_->size() - at_);
      at_ += done;
      return done;
    }
    void save(internal::StateWriter& to) const override { to.number(at_); }
    void restore(internal::StateReader& from) override {
      at_ = from.number(elements_->size(), "the element of a source");
    }

   private:
    std::shared_ptr<const std::vector<Element>> elements_;
    std::size_t at_ = 0;
  };

  std::shared_ptr<const std::vector<Element>> elements_;
};

}  // namespace

AnyDataset datasets::range(std::int64_t begin, std::int64_t end, std::int64_t step, SourceSite site) {
  if (step == 0) internal::refuse("range", site, "the step is 0");
  // As numbers without sign: the distance of two numbers may have 64 bits.
  const auto distance = [](std::int64_t from, std::int64_t to) {
    return static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from);
  };
  std::uint64_t count = 0;
  if (step > 0 && begin < end) count = (distance(begin, end) - 1) / static_cast<std::uint64_t>(step) + 1;
  if (step < 0 && begin > end)
    count = (distance(end, begin) - 1) / (std::uint64_t{0} - static_cast<std::uint64_t>(step)) + 1;
  if (count > static_cast<std::uint64_t>(std::int64_t{1} << 62U))
    internal::refuse("range", site, str("there would be ", count, " elements; 2^62 at most"));
  const auto rows = static_cast<std::int64_t>(count);
  return make_dataset<RowsNode>(
      "range", std::make_shared<RangeRows>(begin, step, rows), ElementSpec(TensorSpec{DType::kI64, {}}),
      std::vector<DatasetAttribute>{{"begin", begin}, {"end", end}, {"step", step}}, site);
}

AnyDataset datasets::from_elements(std::vector<Element> elements, SourceSite site) {
  if (elements.empty())
    internal::refuse("from_elements", site,
                     "no elements, so that their spec is not known: give one at least");
  ElementSpec spec = spec_of(elements[0]);
  for (std::size_t i = 1; i < elements.size(); ++i) {
    try {
      spec = join_specs(spec, spec_of(elements[i]));
    } catch (const InvalidArgument& error) {
      internal::refuse("from_elements", site, str("element ", i, ": ", error.message()));
    }
  }
  return make_dataset<ElementsNode>(std::make_shared<const std::vector<Element>>(std::move(elements)),
                                    std::move(spec), site);
}

AnyDataset datasets::from_slices(const Element& nest, SourceSite site) {
  std::optional<std::int64_t> rows;
  const auto has_rows = [&](std::int64_t count) {
    if (rows.value_or(count) != count)
      internal::refuse("from_slices", site,
                       str("a leaf has ", counted(count, "row"), ", another one ", *rows));
    rows = count;
  };
  const Element host = nest.with_leaves<ElementLeaf>([&](const ElementLeaf& leaf) -> ElementLeaf {
    if (const Strings* const strings = std::get_if<Strings>(&leaf)) {
      has_rows(static_cast<std::int64_t>(strings->size()));
      return leaf;
    }
    const Tensor* const tensor = std::get_if<Tensor>(&leaf);
    if (tensor == nullptr || !tensor->defined() || tensor->shape().rank() == 0)
      internal::refuse("from_slices", site,
                       str("expected tensors with rows and lists of strings, got ", spec_of(leaf)));
    has_rows(tensor->shape()[0]);
    return tensor->host();
  });
  if (!rows) internal::refuse("from_slices", site, "there is no leaf in the nest");
  ElementSpec spec = internal::row_spec(spec_of(host));
  return make_dataset<RowsNode>("from_slices", std::make_shared<MemoryRows>(host, *rows), std::move(spec),
                                std::vector<DatasetAttribute>{{"rows", *rows}}, site);
}

}  // namespace lockstep
