// io/datasets/internal/node.h - the two halves of an operation: its node in the tree, and its cursor in an iteration.
//
// A DatasetNode is immutable and shared. A Cursor is one iteration of it, and belongs to the cursor of the node above.
//
//   start(epoch)   to the beginning. The number of the epoch is what shuffles draw by
//   next()         the next element; false at the end, then and ever after
//   save()         the position after the last element that next() gave; of the same tree, any cursor takes it
//   restore()      instead of start()
//
// After an exception a cursor can only be started or restored. Equal positions give equal elements: what a cursor has
// read ahead is no part of its position.
//
// Some cursors give rows of arrays (rows() is not null). Then a batch is made of row numbers, without elements between.
// Thread safety: nodes may be used from any thread; one thread at a time per cursor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/io/datasets/any_dataset.h"
#include "lockstep/io/datasets/element.h"
#include "lockstep/io/datasets/internal/state_bytes.h"

namespace lockstep::internal {

class InputArena;

// Arrays that elements are rows of. Any thread may read the ones in memory; files, one thread at a time.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual std::int64_t rows() const = 0;
  virtual Element row(std::int64_t index) = 0;
  // The rows, stacked.
  virtual Element gather(std::span<const std::int64_t> rows) = 0;
};

class Cursor {
 public:
  virtual ~Cursor() = default;
  virtual void start(std::uint64_t epoch) = 0;
  virtual bool next(Element& to) = 0;
  // Passes over that many elements; returns how many there were.
  virtual std::uint64_t skip(std::uint64_t count);
  virtual void save(StateWriter& to) const = 0;
  virtual void restore(StateReader& from) = 0;

  virtual RowSource* rows() { return nullptr; }
  // The numbers of the next rows, instead of next(); fewer than asked for only at the end.
  virtual std::size_t next_rows(std::span<std::int64_t> to);

  virtual void add_stats(std::vector<DatasetStage>& to) const;

  // save() into a string of its own.
  std::string save_now() const;
};

struct CursorContext {
  InputArena* arena = nullptr;  // null: nothing works ahead
  unsigned threads = 1;
  std::stop_token cancel = {};
};

class DatasetNode {
 public:
  DatasetNode(std::string_view op, std::vector<AnyDataset> inputs, ElementSpec spec, SourceSite site)
      : op_(op), inputs_(std::move(inputs)), spec_(std::move(spec)), site_(site) {}
  virtual ~DatasetNode() = default;
  DatasetNode(const DatasetNode&) = delete;
  DatasetNode& operator=(const DatasetNode&) = delete;

  virtual AnyDataset with_inputs(std::vector<AnyDataset> inputs) const = 0;
  virtual std::unique_ptr<Cursor> cursor(const CursorContext& context) const = 0;
  // How many threads the tree asks for; nothing if this node does not say.
  virtual std::optional<unsigned> threads() const { return std::nullopt; }

  const std::string& op() const { return op_; }
  const std::vector<DatasetAttribute>& attributes() const { return attributes_; }
  const std::vector<AnyDataset>& inputs() const { return inputs_; }
  const ElementSpec& spec() const { return spec_; }
  const SourceSite& site() const { return site_; }
  std::unique_ptr<Cursor> input_cursor(const CursorContext& context, std::size_t i = 0) const {
    return node_of(inputs_[i]).cursor(context);
  }
  static const DatasetNode& node_of(const AnyDataset& dataset) { return *dataset.node_; }
  // Shared, for cursors that outlive the handle.
  static std::shared_ptr<const DatasetNode> share(const AnyDataset& dataset) { return dataset.node_; }

 protected:
  void attribute(std::string name, DatasetAttribute::Value value,
                 DatasetAttribute::Kind kind = DatasetAttribute::Kind::kMeaning) {
    attributes_.push_back({std::move(name), std::move(value), kind});
  }

 private:
  std::string op_;
  std::vector<DatasetAttribute> attributes_;
  std::vector<AnyDataset> inputs_;
  ElementSpec spec_;
  SourceSite site_;
};

template <class Node, class... Args>
AnyDataset make_dataset(Args&&... args) {
  return AnyDataset(std::make_shared<const Node>(std::forward<Args>(args)...));
}

// Where an error of the node's applies.
ErrorPlace place_of(const DatasetNode& node);
[[noreturn]] void refuse(std::string_view op, const SourceSite& site, const std::string& message);
// In a handler: throws the exception again as an Error that names the element and the node; of an Error that names a node
// of its own already, nothing is changed.
[[noreturn]] void rethrow_at(const DatasetNode& node, std::uint64_t element);
void check_fits(const DatasetNode& node, std::uint64_t element, const Element& value);
void check_cancelled(const std::stop_token& cancel);
// A number of an epoch inside another one.
std::uint64_t inner_epoch(std::uint64_t epoch, std::uint64_t pass);
// The spec without its first axis, and with one. Unknown stays unknown.
ElementSpec row_spec(const ElementSpec& spec);
ElementSpec batch_spec(const ElementSpec& spec, std::int64_t extent, std::string_view op,
                       const SourceSite& site);

}  // namespace lockstep::internal
