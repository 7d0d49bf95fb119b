// tools/data_file.h - a file of training data, whatever its format: its elements one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/dtype.h"
#include "lockstep/io/formats/example.h"

namespace lockstep::tools {

// What a format calls a feature, a column or the rows of an array.
struct DataPart {
  std::string name;
  FeatureValue value;  // a tensor, or strings; neither: it is missing
};

class DataFile {
 public:
  virtual ~DataFile() = default;
  // "TFRecord of tf.train.Example", "CSV", "IDX".
  virtual std::string format() const = 0;
  // The next element; false at the end. Throws Error for damage, with the byte.
  virtual bool next(std::vector<DataPart>& parts) = 0;
};

inline const std::vector<std::string> kDataFormats = {"tfrecord", "csv", "idx", "npy", "npz", "text"};

// Opens a file. An empty format: by its name and its first bytes; UsageError if they do not tell. The delimiter is for
// CSV; 0: a comma, or a tab for .tsv.
std::unique_ptr<DataFile> open_data_file(const std::string& path, const std::string& format, char delimiter);

// The format that a name asks for, without ".gz"; empty if it does not say.
std::string data_format_by_name(const std::string& path);

}  // namespace lockstep::tools
