// tools/data_file.cpp - a file of training data: which format it has, and its elements in one form.
#include "data_file.h"

#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "command_line.h"
#include "graph_input.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"
#include "lockstep/io/files/npz.h"
#include "lockstep/io/formats/array_rows.h"
#include "lockstep/io/formats/csv.h"
#include "lockstep/io/formats/text_lines.h"
#include "lockstep/io/formats/tfrecord.h"

namespace lockstep::tools {

namespace {

// Records that are Examples show their features, others their bytes.
class TfRecordData final : public DataFile {
 public:
  explicit TfRecordData(const std::string& path)
      : path_(path), reader_(open_tfrecord(path, {.limits = input_limits()})) {
    std::string first;
    try {
      examples_ = reader_->next(first) && !features_of(first).empty();
    } catch (const Error&) {
      // What is wrong with the first record shows when it is read.
    }
    reader_->seek({});
  }

  std::string format() const override { return examples_ ? "TFRecord of tf.train.Example" : "TFRecord"; }

  bool next(std::vector<DataPart>& parts) override {
    const std::uint64_t number = reader_->position().records;
    if (!reader_->next(record_)) return false;
    parts.clear();
    if (!examples_) {
      parts.push_back({"record", {.strings = {record_}}});
      return true;
    }
    std::map<std::string, FeatureSpec> specs;  // of a feature that comes twice the last one counts
    try {
      for (const FoundFeature& found : features_of(record_))
        specs[found.name] = {.name = found.name, .type = found.type, .shape = {kUnknown}};
    } catch (const Error& error) {
      throw_error(error.code(), str(path_, ": record ", number, ": ", error.message()));
    }
    std::vector<FeatureSpec> declared;
    declared.reserve(specs.size());
    for (const auto& [name, spec] : specs) declared.push_back(spec);
    std::vector<FeatureValue> values;
    ExampleParser(std::move(declared), input_limits()).parse(record_, values, {path_, number});
    std::size_t i = 0;
    for (const auto& [name, spec] : specs) parts.push_back({name, std::move(values[i++])});
    return true;
  }

 private:
  std::string path_;
  std::unique_ptr<RecordReader> reader_;
  bool examples_ = false;
  std::string record_;
};

// Columns are i64 if every value is a whole number, f32 if every one is a number, else text.
class CsvData final : public DataFile {
 public:
  CsvData(const std::string& path, char delimiter) : delimiter_(delimiter) {
    std::vector<CsvColumn> columns;
    for (const std::string& name : read_csv_header(path, delimiter))
      columns.push_back({.name = name, .dtype = std::nullopt, .otherwise = ""});
    const CsvSchema schema(columns, delimiter);
    reader_ = open_csv(path, schema);
    names_ = columns;
    find_dtypes();
    reader_->seek({});
  }

  std::string format() const override { return "CSV"; }

  bool next(std::vector<DataPart>& parts) override {
    if (!reader_->next(record_)) return false;
    const std::vector<std::string> fields = fields_of_record();
    parts.clear();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      DataPart& part = parts.emplace_back();
      part.name = names_[i].name;
      const std::optional<DType> dtype = names_[i].dtype;
      if (!dtype) {
        part.value.strings = {fields[i]};
      } else if (!fields[i].empty()) {
        part.value.tensor = parse_csv_record(fields[i], *numbers_[i]).at(0).tensor.reshape({1});
      }
    }
    return true;
  }

 private:
  std::vector<std::string> fields_of_record() const {
    std::vector<std::string> fields = split_csv_record(record_, delimiter_, {.reader = reader_.get()});
    if (fields.size() == names_.size()) return fields;
    throw InvalidArgument(str(reader_->path().string(), ":", reader_->line(), ": the record has ",
                              counted(fields.size(), "field"), ", and the header ", names_.size()));
  }
  void find_dtypes() {
    std::vector<bool> whole(names_.size(), true), numbers(names_.size(), true), any(names_.size(), false);
    try {
      while (reader_->next(record_)) {
        const std::vector<std::string> fields = fields_of_record();
        for (std::size_t i = 0; i < fields.size(); ++i) {
          if (fields[i].empty()) continue;
          any[i] = true;
          whole[i] = whole[i] && is_number<std::int64_t>(fields[i]);
          numbers[i] = numbers[i] && is_number<float>(fields[i]);
        }
      }
    } catch (const Error&) {
      // What is damaged shows when it is read.
    }
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (any[i] && whole[i]) names_[i].dtype = DType::kI64;
      if (any[i] && !whole[i] && numbers[i]) names_[i].dtype = DType::kF32;
      // A schema of its own for each column: fields that were in quotes are not in them any more.
      const CsvColumn column{.name = names_[i].name, .dtype = names_[i].dtype};
      numbers_.push_back(names_[i].dtype ? std::make_unique<CsvSchema>(std::vector{column}, delimiter_)
                                         : nullptr);
    }
  }
  template <class T>
  static bool is_number(const std::string& text) {
    T value{};
    const char* const end = text.data() + text.size();
    const auto [behind, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && behind == end;
  }

  char delimiter_;
  std::unique_ptr<CsvReader> reader_;
  std::vector<CsvColumn> names_;
  std::vector<std::unique_ptr<CsvSchema>> numbers_;
  std::string record_;
};

class RowsData final : public DataFile {
 public:
  RowsData(std::string format, std::unique_ptr<ArrayRows> rows)
      : format_(std::move(format)), rows_(std::move(rows)) {}
  std::string format() const override { return format_; }
  bool next(std::vector<DataPart>& parts) override {
    if (at_ == rows_->rows()) return false;
    Tensor row = Tensor::empty(rows_->row().dtype, rows_->row().shape);
    rows_->read(at_++, 1, row.raw());
    parts.clear();
    parts.push_back({"value", {.tensor = std::move(row)}});
    return true;
  }

 private:
  std::string format_;
  std::unique_ptr<ArrayRows> rows_;
  std::int64_t at_ = 0;
};

// Arrays of as many rows each: an element is a row of every one.
class NpzData final : public DataFile {
 public:
  explicit NpzData(const std::string& path) : tensors_(load_npz(path, input_limits())) {
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.shape().rank() == 0)
        throw InvalidArgument(str(path, ": '", name, "' is one number and has no rows"));
      const std::int64_t rows = tensor.shape()[0];
      if (&tensor != &tensors_.begin()->second && rows != rows_) {
        throw InvalidArgument(
            str(path, ": '", tensors_.begin()->first, "' has ", rows_, " rows, and '", name, "' ", rows));
      }
      rows_ = rows;
    }
  }
  std::string format() const override { return "NumPy (.npz)"; }
  bool next(std::vector<DataPart>& parts) override {
    if (at_ == rows_) return false;
    parts.clear();
    for (const auto& [name, tensor] : tensors_)
      parts.push_back({name, {.tensor = tensor.slice(at_, at_ + 1).reshape(tensor.shape().without_dim(0))}});
    ++at_;
    return true;
  }

 private:
  std::map<std::string, Tensor> tensors_;
  std::int64_t rows_ = 0, at_ = 0;
};

class TextData final : public DataFile {
 public:
  explicit TextData(const std::string& path) : reader_(open_text_lines(path)) {}
  std::string format() const override { return "text"; }
  bool next(std::vector<DataPart>& parts) override {
    if (!reader_->next(line_)) return false;
    parts.clear();
    parts.push_back({"line", {.strings = {line_}}});
    return true;
  }

 private:
  std::unique_ptr<RecordReader> reader_;
  std::string line_;
};

std::string without_gz(const std::string& path) {
  return extension_of(path) == "gz" ? path.substr(0, path.size() - 3) : path;
}

// Does it begin with a record whose length has a good checksum, or with an IDX header that fits the file?
std::string format_by_contents(const std::string& path) {
  try {
    std::string record;
    if (open_tfrecord(path, {.limits = input_limits()})->next(record)) return "tfrecord";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) throw;
  }
  try {
    open_idx_rows(path, input_limits());
    return "idx";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) throw;
  }
  throw UsageError("data: the name and the first bytes of '" + path +
                   "' do not tell its format; give --format");
}

}  // namespace

std::string data_format_by_name(const std::string& path) {
  const std::string name = without_gz(path);
  const std::string extension = extension_of(name);
  const std::array<std::pair<const char*, const char*>, 9> known = {{{"tfrecord", "tfrecord"},
                                                                     {"tfrecords", "tfrecord"},
                                                                     {"csv", "csv"},
                                                                     {"tsv", "csv"},
                                                                     {"idx", "idx"},
                                                                     {"npy", "npy"},
                                                                     {"npz", "npz"},
                                                                     {"txt", "text"},
                                                                     {"text", "text"}}};
  for (const auto& [ending, format] : known) {
    if (extension == ending) return format;
  }
  // MNIST's own: train-images-idx3-ubyte.
  return name.ends_with("-ubyte") && name.find("-idx") != std::string::npos ? "idx" : "";
}

std::unique_ptr<DataFile> open_data_file(const std::string& path, const std::string& format, char delimiter) {
  std::string known = format.empty() ? data_format_by_name(path) : format;
  if (known.empty()) known = format_by_contents(path);
  if (known == "tfrecord") return std::make_unique<TfRecordData>(path);
  if (known == "idx") return std::make_unique<RowsData>("IDX", open_idx_rows(path, input_limits()));
  if (known == "npy") return std::make_unique<RowsData>("NumPy (.npy)", open_npy_rows(path, input_limits()));
  if (known == "npz") return std::make_unique<NpzData>(path);
  if (known == "text") return std::make_unique<TextData>(path);
  if (delimiter == '\0') delimiter = extension_of(without_gz(path)) == "tsv" ? '\t' : ',';
  return std::make_unique<CsvData>(path, delimiter);
}

}  // namespace lockstep::tools
