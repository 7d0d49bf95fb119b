// io/formats/example.h - tf.train.Example: records that hold named features.
//
//   const ExampleParser parser({{.name = "image", .type = FeatureType::kBytes},
//                               {.name = "label", .type = FeatureType::kI64},
//                               {.name = "box", .shape = {4}},
//                               {.name = "words", .type = FeatureType::kI64, .shape = {kUnknown}}});
//   std::vector<FeatureValue> values;                        // its memory is used again
//   parser.parse(record, values);
//   values[1].tensor                                         // i64[]
//   values[0].strings[0]                                     // the bytes
//
//   parser.parse_batch(records, values);                     // f32[n,4], i64[n], ...: for many small records
//
// fixed      a feature of a known shape holds exactly as many values. A record without it gives `otherwise`,
//            and is refused if there is none
// variable   {kUnknown} takes any number of values; a record without it has none
// others     features that are not declared are passed over. Of a feature that comes twice the last one counts
//
// failure    Error(kDataLoss) for bytes that are no Example; InvalidArgument for a feature that is missing, of
//            another type, or of another number of values, and for values that take more memory than
//            limits.memory_for(bytes of the record). Messages name the record and the feature
//
// Thread safety: a parser is immutable, and may be used from any thread. An ExampleBuilder belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// What an Example can hold.
enum class FeatureType : std::uint8_t {
  kF32,
  kI64,
  kBytes,  // strings of bytes
};
LOCKSTEP_API std::string_view to_string(FeatureType type);  // "f32", "i64", "bytes"

// The values of one feature: a tensor of numbers, or strings in row-major order.
struct FeatureValue {
  Tensor tensor = {};
  std::vector<std::string> strings = {};
  // After parse_batch, of a variable feature: i64[n], how many values each record has. The values of all
  // records come one after another.
  Tensor lengths = {};
};

struct FeatureSpec {
  std::string name;
  FeatureType type = FeatureType::kF32;
  Shape shape = {};  // known, or {kUnknown} for any number of values
  FeatureValue otherwise =
      {};  // for records without the feature: the shape's values, or one that stands for all
};

// Where a record comes from, for messages: "train.tfrecord: record 17".
struct RecordName {
  std::string_view file = {};
  std::uint64_t number = 0;
};

class LOCKSTEP_API ExampleParser {
 public:
  // InvalidArgument for a name that comes twice, for other shapes, and for an `otherwise` that does not fit.
  explicit ExampleParser(std::vector<FeatureSpec> features, const ReadLimits& limits = {});
  ExampleParser(std::initializer_list<FeatureSpec> features, const ReadLimits& limits = {})
      : ExampleParser(std::vector<FeatureSpec>(features), limits) {}
  ~ExampleParser();
  ExampleParser(const ExampleParser&) = delete;
  ExampleParser& operator=(const ExampleParser&) = delete;

  const std::vector<FeatureSpec>& features() const;
  // One value for each feature, in their order. A tensor that nobody else holds is written into again.
  void parse(std::string_view record, std::vector<FeatureValue>& values, const RecordName& name = {}) const;
  // The same for records that become one batch; every tensor has the number of records as its first axis.
  // `first` names the first record.
  void parse_batch(const std::vector<std::string>& records, std::vector<FeatureValue>& values,
                   const RecordName& first = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Writes Examples: for tests and for conversions.
//
//   ExampleBuilder example;
//   example.tensor("box", box).bytes("image", jpeg);
//   writer.append(example.encoded());
class LOCKSTEP_API ExampleBuilder {
 public:
  ExampleBuilder& floats(std::string_view name, const float* values, std::size_t count);
  ExampleBuilder& integers(std::string_view name, const std::int64_t* values, std::size_t count);
  ExampleBuilder& bytes(std::string_view name, std::string_view value);
  ExampleBuilder& strings(std::string_view name, const std::vector<std::string>& values);
  // The elements in row-major order: floating ones as f32, others as i64. InvalidArgument for f64 values that
  // f32 cannot hold.
  ExampleBuilder& tensor(std::string_view name, const Tensor& values);

  std::string encoded() const;
  void clear() { features_.clear(); }

 private:
  ExampleBuilder& add(std::string_view name, std::uint32_t kind, std::string_view list);

  std::string features_;  // a Features message
};

// What features a record has, in its order: to look at a file whose features nobody declared. A feature
// without a type, which can have no values, is left out.
struct FoundFeature {
  std::string name;
  FeatureType type = FeatureType::kF32;
  std::int64_t count = 0;
};
LOCKSTEP_API std::vector<FoundFeature> features_of(std::string_view record);

}  // namespace lockstep
