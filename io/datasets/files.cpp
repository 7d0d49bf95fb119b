// io/datasets/files.cpp - sources and parsers of io/formats as datasets.
#include "lockstep/io/datasets/files.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/formats/array_rows.h"
#include "lockstep/io/formats/match_files.h"

namespace lockstep {

namespace {

Dataset<std::string> strings_of(const AnyDataset& files, RecordFormat format, const SourceSite& site) {
  return Dataset<std::string>(datasets::records(files, std::move(format), site));
}
AnyDataset dataset_of(Strings files, const SourceSite& site) {
  return datasets::from_slices(Element(std::move(files)), site);
}

RecordFormat format_of(const TfRecordOptions& options) {
  return {options.ignore_errors ? "tfrecord, without what is damaged" : "tfrecord",
          [options](const std::string& file) { return open_tfrecord(file, options); }};
}
RecordFormat format_of(const TextLineOptions& options) {
  return {"text lines", [options](const std::string& file) { return open_text_lines(file, options); }};
}
RecordFormat format_of(const FixedLengthOptions& options) {
  return {str("records of ", options.record_bytes, " bytes after ", options.header_bytes, ", before ",
              options.footer_bytes),
          [options](const std::string& file) { return open_fixed_length(file, options); }};
}

DType number_type_of(FeatureType type) { return type == FeatureType::kI64 ? DType::kI64 : DType::kF32; }

std::string lengths_of(const FeatureSpec& feature) { return feature.name + "/lengths"; }

bool is_variable(const FeatureSpec& feature) {
  return feature.shape.rank() == 1 && feature.shape[0] == kUnknown;
}

ElementSpec spec_of(const FeatureSpec& feature, bool of_batch) {
  const bool is_one = !of_batch && feature.shape.rank() == 0;
  if (feature.type == FeatureType::kBytes)
    return ElementSpec(is_one ? LeafSpec::string() : LeafSpec::strings());
  const Shape shape =
      of_batch && !is_variable(feature) ? feature.shape.with_inserted(0, kUnknown) : feature.shape;
  return ElementSpec(LeafSpec(TensorSpec{number_type_of(feature.type), shape}));
}

Element element_of(const FeatureSpec& feature, FeatureValue&& value, bool of_batch) {
  if (feature.type != FeatureType::kBytes) return Element(std::move(value.tensor));
  if (!of_batch && feature.shape.rank() == 0) return Element(std::move(value.strings.at(0)));
  return Element(std::move(value.strings));
}

}  // namespace

namespace datasets {

Dataset<std::string> tfrecords(const AnyDataset& files, const TfRecordOptions& options, SourceSite site) {
  return strings_of(files, format_of(options), site);
}
Dataset<std::string> tfrecords(Strings files, const TfRecordOptions& options, SourceSite site) {
  return tfrecords(dataset_of(std::move(files), site), options, site);
}
Dataset<std::string> text_lines(const AnyDataset& files, const TextLineOptions& options, SourceSite site) {
  return strings_of(files, format_of(options), site);
}
Dataset<std::string> text_lines(Strings files, const TextLineOptions& options, SourceSite site) {
  return text_lines(dataset_of(std::move(files), site), options, site);
}
Dataset<std::string> fixed_length(const AnyDataset& files, const FixedLengthOptions& options,
                                  SourceSite site) {
  return strings_of(files, format_of(options), site);
}
Dataset<std::string> fixed_length(Strings files, const FixedLengthOptions& options, SourceSite site) {
  return fixed_length(dataset_of(std::move(files), site), options, site);
}

Dataset<Tensor> idx_rows(const std::string& file, SourceSite site) {
  return Dataset<Tensor>(array_rows(
      file, [](const std::string& name) { return open_idx_rows(name); }, site));
}
Dataset<Tensor> npy_rows(const std::string& file, SourceSite site) {
  return Dataset<Tensor>(array_rows(
      file, [](const std::string& name) { return open_npy_rows(name); }, site));
}
Dataset<Tensor> npz_rows(const std::string& file, const std::string& member, SourceSite site) {
  return Dataset<Tensor>(array_rows(
      file, [member](const std::string& name) { return open_npz_rows(name, member); }, site));
}

Strings matching(const std::string& pattern) {
  Strings names;
  for (const std::filesystem::path& file : match_files(pattern)) names.push_back(file.string());
  return names;
}

}  // namespace datasets

AnyDataset parse_examples(const AnyDataset& records, std::vector<FeatureSpec> features, unsigned threads,
                          SourceSite site) {
  const ElementSpec& given = records.element_spec();
  const bool of_batch = given.is_leaf() && given.leaf().kind == LeafSpec::Kind::kStrings;
  if (!of_batch && !(given.is_leaf() && given.leaf().kind == LeafSpec::Kind::kString)) {
    InvalidArgument error(str("expected records (strings) or batches of them, got ", given));
    error.add_call("parse_examples()", site);
    throw error;
  }
  const auto parser = std::make_shared<const ExampleParser>(std::move(features));
  std::vector<std::pair<std::string, ElementSpec>> parts;
  for (const FeatureSpec& feature : parser->features()) {
    parts.emplace_back(feature.name, spec_of(feature, of_batch));
    if (of_batch && is_variable(feature))
      parts.emplace_back(lengths_of(feature), ElementSpec(LeafSpec(TensorSpec{DType::kI64, {kUnknown}})));
  }
  const auto parse = [parser, of_batch](const Element& element) {
    std::vector<FeatureValue> values;
    if (of_batch) {
      parser->parse_batch(element.strings(), values);
    } else {
      parser->parse(element.string(), values);
    }
    std::vector<std::pair<std::string, Element>> parsed;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const FeatureSpec& feature = parser->features()[i];
      if (of_batch && is_variable(feature))
        parsed.emplace_back(lengths_of(feature), Element(std::move(values[i].lengths)));
      parsed.emplace_back(feature.name, element_of(feature, std::move(values[i]), of_batch));
    }
    return Element::dict(std::move(parsed));
  };
  return records.map(parse, ElementSpec::dict(std::move(parts)), threads, site);
}

}  // namespace lockstep
