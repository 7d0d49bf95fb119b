// Refused, or values of the declared shapes that are written and read back as they were.
#include "lockstep/io/formats/example.h"

#include <cstdint>
#include <string_view>
#include <vector>

#include "fuzz_file.h"

using namespace lockstep;
using testing::finding;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  static const ExampleParser parser(
      {{.name = "f", .shape = {2}, .otherwise = {.tensor = Tensor::scalar(1.F)}},
       {.name = "i", .type = FeatureType::kI64, .shape = {kUnknown}},
       {.name = "s", .type = FeatureType::kBytes, .shape = {kUnknown}}});
  std::vector<FeatureValue> values, again;
  try {
    parser.parse(bytes, values);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss && error.code() != ErrorCode::kInvalidArgument)
      finding("another error");
    return 0;
  }
  if (values[0].tensor.shape() != Shape{2}) finding("another shape");
  ExampleBuilder builder;
  builder.tensor("f", values[0].tensor).tensor("i", values[1].tensor).strings("s", values[2].strings);
  parser.parse(builder.encoded(), again);
  for (const std::size_t k : {0U, 1U}) {
    if (!again[k].tensor.bit_equal(values[k].tensor))
      finding("numbers are written otherwise than they were read");
  }
  if (again[2].strings != values[2].strings) finding("strings are written otherwise than they were read");
  std::vector<FeatureValue> batch;
  parser.parse_batch({std::string(bytes)}, batch);
  if (!batch[0].tensor.reshape({2}).bit_equal(values[0].tensor) ||
      !batch[1].tensor.bit_equal(values[1].tensor))
    finding("a batch of one record is another one");
  try {
    features_of(bytes);
  } catch (const Error& error) {  // of a feature that the parser passed over
    if (error.code() != ErrorCode::kDataLoss) finding("another error");
  }
  return 0;
}
