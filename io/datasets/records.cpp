// io/datasets/records.cpp - sources that read files: records, file after file, and rows of arrays.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/io/datasets/internal/node.h"
#include "lockstep/io/datasets/internal/row_cursor.h"
#include "lockstep/io/datasets/sources.h"
#include "lockstep/io/formats/array_rows.h"
#include "lockstep/io/formats/record_reader.h"

namespace lockstep {

namespace {

using internal::Cursor;
using internal::CursorContext;
using internal::DatasetNode;
using internal::StateReader;
using internal::StateWriter;

constexpr std::uint64_t kAnyPlace = std::numeric_limits<std::uint64_t>::max();

class RecordsNode final : public DatasetNode {
 public:
  RecordsNode(const AnyDataset& files, RecordFormat format, SourceSite site)
      : DatasetNode("records", {files}, ElementSpec(LeafSpec::string()), site), format_(std::move(format)) {
    attribute("format", format_.format);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const override {
    return datasets::records(inputs[0], format_, site());
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& context) const override;
  std::unique_ptr<RecordReader> open(const std::string& file) const {
    std::unique_ptr<RecordReader> reader = format_.open(file);
    if (reader == nullptr)
      throw InvalidArgument(str("records: the function opened no reader for '", printable(file), "'"),
                            internal::place_of(*this));
    return reader;
  }

 private:
  const RecordFormat format_;
};

// Its position: that of the list of files before the file that is open, and that in the file.
class RecordsCursor final : public Cursor {
 public:
  RecordsCursor(const RecordsNode& node, const CursorContext& context)
      : node_(node), cancel_(context.cancel), files_(node.input_cursor(context)) {}

  void start(std::uint64_t epoch) override {
    reader_.reset();
    index_ = 0;
    files_->start(epoch);
  }
  bool next(Element& to) override {
    try {
      for (;;) {
        if (reader_ != nullptr && reader_->next(record_)) break;
        internal::check_cancelled(cancel_);
        if (!open_next()) return false;
      }
    } catch (...) {
      internal::rethrow_at(node_, index_);
    }
    ++index_;
    to = Element(std::move(record_));
    record_.clear();
    return true;
  }
  void save(StateWriter& to) const override {
    to.number(index_);
    to.number(reader_ != nullptr ? 1 : 0);
    if (reader_ == nullptr) return files_->save(to);
    to.bytes(before_);
    const ReadPosition position = reader_->position();
    to.number(position.offset);
    to.number(position.records);
  }
  void restore(StateReader& from) override {
    reader_.reset();
    index_ = from.number(kAnyPlace, "a count of records");
    if (from.number(1, "whether a file is open") == 0) return files_->restore(from);
    StateReader inner(from.bytes("the position in the list of files"));
    ReadPosition position;
    position.offset = from.number(kAnyPlace, "the byte of a file");
    position.records = from.number(kAnyPlace, "the record of a file");
    files_->restore(inner);
    if (!open_next()) internal::damaged_state("a file that it names is not there");
    reader_->seek(position);
  }
  void add_stats(std::vector<DatasetStage>& to) const override { files_->add_stats(to); }

 private:
  bool open_next() {
    reader_.reset();
    before_ = files_->save_now();
    Element file;
    if (!files_->next(file)) return false;
    reader_ = node_.open(file.string());
    return true;
  }

  const RecordsNode& node_;
  std::stop_token cancel_;
  std::unique_ptr<Cursor> files_;
  std::unique_ptr<RecordReader> reader_;
  std::string before_;  // the position of the list before the file
  std::string record_;
  std::uint64_t index_ = 0;
};

std::unique_ptr<Cursor> RecordsNode::cursor(const CursorContext& context) const {
  return std::make_unique<RecordsCursor>(*this, context);
}

// --- rows

class FileRows final : public internal::RowSource {
 public:
  explicit FileRows(std::unique_ptr<ArrayRows> array) : array_(std::move(array)), rows_(array_->rows()) {}
  std::int64_t rows() const override { return rows_; }
  Element row(std::int64_t index) override {
    Tensor row = Tensor::empty(array_->row().dtype, array_->row().shape);
    array_->read(index, 1, row.raw());
    return row;
  }
  Element gather(std::span<const std::int64_t> rows) override {
    Tensor batch = Tensor::empty(
        array_->row().dtype, array_->row().shape.with_inserted(0, static_cast<std::int64_t>(rows.size())));
    if (rows.empty()) return batch;
    auto* to = static_cast<std::byte*>(batch.raw());
    const std::size_t size = batch.num_bytes() / rows.size();
    for (std::size_t i = 0; i < rows.size();) {
      std::size_t count = 1;  // that lie one after another
      while (i + count < rows.size() && rows[i + count] == rows[i] + static_cast<std::int64_t>(count))
        ++count;
      array_->read(rows[i], static_cast<std::int64_t>(count), to + i * size);
      i += count;
    }
    return batch;
  }

 private:
  std::unique_ptr<ArrayRows> array_;
  const std::int64_t rows_;
};

class ArrayRowsNode final : public DatasetNode {
 public:
  using Open = std::function<std::unique_ptr<ArrayRows>(const std::string& file)>;
  ArrayRowsNode(std::string file, Open open, const ArrayRows& array, SourceSite site)
      : DatasetNode("array_rows", {}, ElementSpec(array.row()), site),
        file_(std::move(file)),
        open_(std::move(open)),
        rows_(array.rows()) {
    attribute("file", file_);
    attribute("rows", rows_);
  }
  AnyDataset with_inputs(std::vector<AnyDataset> /*inputs*/) const override {
    throw InvalidArgument("array_rows has no inputs");
  }
  std::unique_ptr<Cursor> cursor(const CursorContext& /*context*/) const override {
    std::unique_ptr<ArrayRows> array = open_(file_);
    if (array == nullptr || array->rows() != rows_ || ElementSpec(array->row()) != spec())
      throw Error(ErrorCode::kDataLoss,
                  str("array_rows: '", printable(file_),
                      "' is not the array any more that it was when the dataset was made"),
                  internal::place_of(*this));
    return std::make_unique<internal::RowCursor>(std::make_shared<FileRows>(std::move(array)));
  }

 private:
  const std::string file_;
  const Open open_;
  const std::int64_t rows_;
};

}  // namespace

AnyDataset datasets::records(const AnyDataset& files, RecordFormat format, SourceSite site) {
  if (!format.open) internal::refuse("records", site, "there is no function that opens a file");
  if (files.element_spec() != ElementSpec(LeafSpec::string()))
    internal::refuse("records", site, str("files are a dataset of strings, got ", files.element_spec()));
  return internal::make_dataset<RecordsNode>(files, std::move(format), site);
}

AnyDataset datasets::records(Strings files, RecordFormat format, SourceSite site) {
  if (files.empty()) internal::refuse("records", site, "there are no files; give one at least");
  return records(from_slices(Element(std::move(files)), site), std::move(format), site);
}

AnyDataset datasets::array_rows(const std::string& file,
                                std::function<std::unique_ptr<ArrayRows>(const std::string& file)> open,
                                SourceSite site) {
  if (!open) internal::refuse("array_rows", site, "there is no function that opens a file");
  const std::unique_ptr<ArrayRows> array = open(file);
  if (array == nullptr)
    internal::refuse("array_rows", site, str("the function opened nothing for '", printable(file), "'"));
  return internal::make_dataset<ArrayRowsNode>(file, std::move(open), *array, site);
}

}  // namespace lockstep
