// io/formats/example.cpp - tf.train.Example: finds the declared features in a record, then decodes them.
//
//   Example { Features features = 1 }
//   Features { map<string, Feature> feature = 1 }    an entry is a message { string key = 1; Feature value = 2 }
//   Feature { oneof { BytesList = 1, FloatList = 2, Int64List = 3 } }    each a message { repeated value = 1 }
#include "lockstep/io/formats/example.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <span>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/kernels/cast.h"
#include "lockstep/io/formats/protobuf_wire.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kNothing = 0, kBytesList = 1, kFloatList = 2, kInt64List = 3;

FeatureType type_of(std::uint32_t kind) {
  return kind == kBytesList   ? FeatureType::kBytes
         : kind == kFloatList ? FeatureType::kF32
                              : FeatureType::kI64;
}

// A feature as it lies in the record.
struct Raw {
  std::uint32_t kind = kNothing;
  WireField list;  // a message of values
};

// Messages that were put together from several pieces.
using Joined = std::deque<std::string>;

// A message that comes in several pieces is the message of all their bytes, one after another: so says the
// format.
WireField join(const std::vector<WireField>& pieces, Joined& joined) {
  std::string& all = joined.emplace_back();
  for (const WireField& piece : pieces) all += piece.bytes;
  WireField field = pieces.front();
  field.bytes = all;
  return field;
}

// Of the values that a feature has one after another, those of the last kind count.
Raw raw_feature(WireReader feature, Joined& joined) {
  Raw raw;
  std::vector<WireField> pieces;  // of the list, if there are several
  WireField field;
  while (feature.next(field)) {
    if (field.number == 0 || field.number > kInt64List) continue;
    field.expect(WireType::kBytes);
    if (field.number != raw.kind) {
      raw = {field.number, field};
      pieces.clear();
      continue;
    }
    if (pieces.empty()) pieces.push_back(raw.list);
    pieces.push_back(field);
  }
  if (!pieces.empty()) raw.list = join(pieces, joined);
  return raw;
}

// Calls f(name, raw) for each entry of the record. `want(name)` says whether the value is looked at.
template <class Want, class F>
void each_feature(std::string_view record, Joined& joined, const Want& want, const F& f) {
  WireReader example(record);
  WireField features, entry, part;
  while (example.next(features)) {
    if (features.number != 1) continue;
    WireReader map = example.inside(features);
    while (map.next(entry)) {
      if (entry.number != 1) continue;
      WireReader pair = map.inside(entry);
      std::string_view key;
      WireField value;
      std::vector<WireField> pieces;
      while (pair.next(part)) {
        if (part.number == 1) key = part.text();
        if (part.number != 2) continue;
        part.expect(WireType::kBytes);
        if (value.number != 0) {
          if (pieces.empty()) pieces.push_back(value);
          pieces.push_back(part);
        }
        value = part;
      }
      if (!want(key)) continue;
      if (!pieces.empty()) value = join(pieces, joined);
      f(key, value.number == 0 ? Raw() : raw_feature(pair.inside(value), joined));
    }
  }
}

// --- values

// Calls `one` for each field that holds values, all of which have the number 1.
template <class F>
void each_values(const Raw& raw, const F& one) {
  if (raw.kind == kNothing) return;
  WireReader list(raw.list);
  WireField field;
  while (list.next(field)) {
    if (field.number == 1) one(field);
  }
}

std::size_t varints_in(std::string_view bytes) {
  std::size_t count = 0;
  for (const char byte : bytes) count += static_cast<signed char>(byte) >= 0 ? 1U : 0U;
  return count;
}

// How many values there are, without a look at what they are.
std::size_t count_values(const Raw& raw) {
  std::size_t count = 0;
  each_values(raw, [&](const WireField& field) {
    const bool is_one = field.type != WireType::kBytes || raw.kind == kBytesList;
    count += is_one                   ? 1
             : raw.kind == kFloatList ? field.bytes.size() / sizeof(float)
                                      : varints_in(field.bytes);
  });
  return count;
}

// Writes `count` values to `to`; there must be as many.
void decode_floats(const Raw& raw, float* to, std::size_t count) {
  const float* const end = to + count;
  each_values(raw, [&](const WireField& field) {
    if (field.type == WireType::kBytes) {
      field.check_packed(sizeof(float));
      LOCKSTEP_CHECK(field.bytes.size() <= static_cast<std::size_t>(end - to) * sizeof(float));
      if (!field.bytes.empty()) std::memcpy(to, field.bytes.data(), field.bytes.size());
      to += field.bytes.size() / sizeof(float);
    } else {
      LOCKSTEP_CHECK(to != end);
      *to++ = field.single();
    }
  });
  LOCKSTEP_CHECK(to == end);
}

void decode_integers(const Raw& raw, std::int64_t* to, std::size_t count) {
  const std::int64_t* const end = to + count;
  each_values(raw, [&](const WireField& field) {
    field.each_varint([&](std::uint64_t value) {
      LOCKSTEP_CHECK(to != end);
      *to++ = static_cast<std::int64_t>(value);
    });
  });
  LOCKSTEP_CHECK(to == end);
}

DType dtype_of_type(FeatureType type) { return type == FeatureType::kF32 ? DType::kF32 : DType::kI64; }

// Tensors and strings are made for so many values.
void prepare(FeatureValue& value, FeatureType type, const Shape& shape) {
  value.lengths = {};
  if (type == FeatureType::kBytes) {
    value.tensor = {};
    value.strings.resize(static_cast<std::size_t>(shape.num_elements()));
    return;
  }
  value.strings.clear();
  Tensor& tensor = value.tensor;
  const bool fits = tensor.defined() && tensor.use_count() == 1 && tensor.memory() == kHostMemory &&
                    tensor.dtype() == dtype_of_type(type) && tensor.shape() == shape;
  if (!fits) tensor = Tensor::empty(dtype_of_type(type), shape);
}

}  // namespace

std::string_view to_string(FeatureType type) {
  return type == FeatureType::kBytes ? "bytes" : type == FeatureType::kF32 ? "f32" : "i64";
}

// --- the parser

struct ExampleParser::State {
  struct Column {
    FeatureSpec spec;
    bool is_variable = false;
    bool has_otherwise = false;
    std::size_t count = 0;  // of values, of a fixed feature
  };
  std::vector<FeatureSpec> specs;
  std::vector<Column> columns;
  std::vector<std::uint32_t> by_name;  // places of columns, by the length of the name and then the name
  ReadLimits limits;

  static bool before(std::string_view a, std::string_view b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }
  // -1 if it is not declared.
  std::ptrdiff_t find(std::string_view name) const {
    const auto at = std::ranges::lower_bound(
        by_name, name, before, [&](std::uint32_t i) { return std::string_view(specs[i].name); });
    return at != by_name.end() && specs[*at].name == name ? static_cast<std::ptrdiff_t>(*at) : -1;
  }

  void add(const FeatureSpec& spec);
  void find_all(std::string_view record, const RecordName& name, Joined& joined, std::span<Raw> found) const;
  std::size_t count_of(const Column& column, const Raw& raw, std::size_t record_bytes,
                       const RecordName& name) const;
  void decode(const Column& column, const Raw& raw, std::size_t count, FeatureValue& value, std::size_t at,
              const RecordName& name) const;
  // Calls `body` with room for one Raw for each feature.
  template <class F>
  void with_room(const F& body) const {
    constexpr std::size_t kFew = 16;
    if (columns.size() <= kFew) {
      std::array<Raw, kFew> few;
      return body(std::span(few).first(columns.size()));
    }
    std::vector<Raw> many(columns.size());
    body(std::span(many));
  }
};

namespace {

std::string name_of(const RecordName& name) {
  return name.file.empty() ? str("record ", name.number) : str(name.file, ": record ", name.number);
}

[[noreturn]] void refuse_feature(const RecordName& name, const FeatureSpec& spec, const std::string& what) {
  throw InvalidArgument(str(name_of(name), ": feature '", printable(spec.name), "' ", what));
}

template <class F>
void naming_record(const RecordName& name, const F& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) throw;
    throw Error(ErrorCode::kDataLoss, str(name_of(name), " is no whole tf.train.Example: ", error.message()));
  }
}

}  // namespace

void ExampleParser::State::add(const FeatureSpec& spec) {
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(str("feature '", printable(spec.name), "': ", what));
  };
  Column column{.spec = spec};
  column.is_variable = spec.shape == Shape{kUnknown};
  if (!column.is_variable && !spec.shape.is_known()) {
    refuse(str("its shape ", spec.shape, " is neither known nor [?], which takes any number of values"));
  }
  if (!column.is_variable) column.count = static_cast<std::size_t>(spec.shape.num_elements());
  const bool is_bytes = spec.type == FeatureType::kBytes;
  column.has_otherwise = is_bytes ? !spec.otherwise.strings.empty() : spec.otherwise.tensor.defined();
  if (column.has_otherwise && column.is_variable)
    refuse("a feature of any number of values needs no `otherwise`: a record without it has none");
  if (is_bytes ? spec.otherwise.tensor.defined() : !spec.otherwise.strings.empty())
    refuse(str("`otherwise` holds ", is_bytes ? "a tensor" : "strings", ", and the feature is ",
               to_string(spec.type)));
  if (column.has_otherwise) {
    std::size_t count = spec.otherwise.strings.size();
    if (!is_bytes) {
      const Tensor& tensor = spec.otherwise.tensor;
      count = static_cast<std::size_t>(tensor.num_elements());
      if (tensor.dtype() != dtype_of_type(spec.type))
        refuse(str("`otherwise` is ", tensor.spec(), ", and the feature is ", to_string(spec.type)));
      column.spec.otherwise.tensor = tensor.host();
    }
    if (count != 1 && count != column.count)
      refuse(str("`otherwise` has ", counted(count, "value"), "; its shape ", spec.shape, " needs ",
                 column.count, ", or 1"));
  }
  specs.push_back(column.spec);
  columns.push_back(std::move(column));
}

ExampleParser::ExampleParser(std::vector<FeatureSpec> features, const ReadLimits& limits)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.limits = limits;
  const std::vector<FeatureSpec> declared = std::move(features);
  for (const FeatureSpec& spec : declared) state.add(spec);
  for (std::uint32_t i = 0; i < declared.size(); ++i) state.by_name.push_back(i);
  std::ranges::sort(state.by_name, State::before,
                    [&](std::uint32_t i) { return std::string_view(state.specs[i].name); });
  for (std::size_t i = 1; i < state.by_name.size(); ++i) {
    const std::string& name = state.specs[state.by_name[i]].name;
    if (name == state.specs[state.by_name[i - 1]].name)
      throw InvalidArgument(str("the feature '", printable(name), "' is declared twice"));
  }
}

ExampleParser::~ExampleParser() = default;

const std::vector<FeatureSpec>& ExampleParser::features() const { return state_->specs; }

void ExampleParser::State::find_all(std::string_view record, const RecordName& name, Joined& joined,
                                    std::span<Raw> found) const {
  std::ptrdiff_t at = -1;
  naming_record(name, [&] {
    each_feature(
        record, joined, [&](std::string_view key) { return (at = find(key)) >= 0; },
        [&](std::string_view, const Raw& raw) { found[static_cast<std::size_t>(at)] = raw; });
  });
}

// How many values the feature has, which is checked; those of `otherwise` if the record does not have it.
std::size_t ExampleParser::State::count_of(const Column& column, const Raw& raw, std::size_t record_bytes,
                                           const RecordName& name) const {
  const FeatureSpec& spec = column.spec;
  if (raw.kind == kNothing) {
    if (!column.is_variable && !column.has_otherwise)
      refuse_feature(name, spec, "is missing; give it `otherwise`, or declare it as [?]");
    return column.count;
  }
  if (type_of(raw.kind) != spec.type) {
    refuse_feature(
        name, spec,
        str("holds ", to_string(type_of(raw.kind)), ", and ", to_string(spec.type), " is declared"));
  }
  std::size_t count = 0;
  naming_record(name, [&] { count = count_values(raw); });
  if (!column.is_variable && count != column.count) {
    refuse_feature(name, spec,
                   str("has ", counted(count, "value"), "; its shape ", spec.shape, " needs ", column.count));
  }
  const std::size_t size =
      spec.type == FeatureType::kBytes ? sizeof(std::string) : size_of(dtype_of_type(spec.type));
  if (column.is_variable && count * size > limits.memory_for(record_bytes)) {
    refuse_feature(name, spec,
                   str("would take more than ", limits.memory_for(record_bytes),
                       " bytes of memory, the limit for a record of ", record_bytes,
                       "; whoever trusts it raises ReadLimits::base_bytes in C++"));
  }
  return count;
}

// Writes the values from place `at` on.
void ExampleParser::State::decode(const Column& column, const Raw& raw, std::size_t count,
                                  FeatureValue& value, std::size_t at, const RecordName& name) const {
  const FeatureValue& otherwise = column.spec.otherwise;
  if (column.spec.type == FeatureType::kBytes) {
    const std::span<std::string> to = std::span(value.strings).subspan(at, count);
    if (raw.kind == kNothing) {
      for (std::size_t i = 0; i < count; ++i)
        to[i] = otherwise.strings[otherwise.strings.size() == 1 ? 0 : i];
      return;
    }
    std::size_t next = 0;
    naming_record(name,
                  [&] { each_values(raw, [&](const WireField& field) { to[next++] = field.text(); }); });
    return;
  }
  const std::size_t size = size_of(value.tensor.dtype());
  char* const to = static_cast<char*>(value.tensor.raw()) + at * size;
  if (raw.kind == kNothing) {
    const auto* const from = static_cast<const char*>(otherwise.tensor.raw());
    const std::size_t step = otherwise.tensor.num_elements() == 1 ? 0 : size;
    for (std::size_t i = 0; i < count; ++i) std::memcpy(to + i * size, from + i * step, size);
    return;
  }
  naming_record(name, [&] {
    if (raw.kind == kFloatList) {
      decode_floats(raw, reinterpret_cast<float*>(to), count);
    } else {
      decode_integers(raw, reinterpret_cast<std::int64_t*>(to), count);
    }
  });
}

void ExampleParser::parse(std::string_view record, std::vector<FeatureValue>& values,
                          const RecordName& name) const {
  const State& state = *state_;
  values.resize(state.columns.size());
  Joined joined;
  state.with_room([&](std::span<Raw> found) {
    state.find_all(record, name, joined, found);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const State::Column& column = state.columns[i];
      const std::size_t count = state.count_of(column, found[i], record.size(), name);
      prepare(values[i], column.spec.type,
              column.is_variable ? Shape{static_cast<std::int64_t>(count)} : column.spec.shape);
      state.decode(column, found[i], count, values[i], 0, name);
    }
  });
}

void ExampleParser::parse_batch(const std::vector<std::string>& records, std::vector<FeatureValue>& values,
                                const RecordName& first) const {
  const State& state = *state_;
  const std::size_t columns = state.columns.size();
  const auto rows = static_cast<std::int64_t>(records.size());
  // Where everything lies first: the variable features of all records together say how much memory they take.
  std::vector<Raw> found(records.size() * columns);
  std::vector<std::size_t> counts(found.size()), totals(columns, 0);
  Joined joined;
  const auto name_at = [&](std::size_t i) { return RecordName{first.file, first.number + i}; };
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::span<Raw> row = std::span(found).subspan(i * columns, columns);
    state.find_all(records[i], name_at(i), joined, row);
    for (std::size_t k = 0; k < columns; ++k) {
      const std::size_t count = state.count_of(state.columns[k], row[k], records[i].size(), name_at(i));
      counts[i * columns + k] = count;
      totals[k] += count;
    }
  }
  values.resize(columns);
  for (std::size_t k = 0; k < columns; ++k) {
    const State::Column& column = state.columns[k];
    FeatureValue& value = values[k];
    prepare(value, column.spec.type,
            column.is_variable ? Shape{static_cast<std::int64_t>(totals[k])}
                               : column.spec.shape.with_inserted(0, rows));
    std::int64_t* lengths = nullptr;
    if (column.is_variable) {
      value.lengths = Tensor::empty(DType::kI64, {rows});
      lengths = value.lengths.data<std::int64_t>().data();
    }
    std::size_t at = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
      const std::size_t count = counts[i * columns + k];
      state.decode(column, found[i * columns + k], count, value, at, name_at(i));
      if (lengths != nullptr) lengths[i] = static_cast<std::int64_t>(count);
      at += count;
    }
  }
}

std::vector<FoundFeature> features_of(std::string_view record) {
  std::vector<FoundFeature> features;
  Joined joined;
  naming_record({}, [&] {
    each_feature(
        record, joined, [](std::string_view) { return true; },
        [&](std::string_view name, const Raw& raw) {
          if (raw.kind == kNothing) return;
          features.push_back(
              {std::string(name), type_of(raw.kind), static_cast<std::int64_t>(count_values(raw))});
        });
  });
  return features;
}

// --- writing

ExampleBuilder& ExampleBuilder::add(std::string_view name, std::uint32_t kind, std::string_view list) {
  const WireMessage entry = WireMessage().bytes(1, name).message(2, WireMessage().bytes(kind, list));
  features_ += WireMessage().message(1, entry).encoded();
  return *this;
}

ExampleBuilder& ExampleBuilder::floats(std::string_view name, const float* values, std::size_t count) {
  return add(name, kFloatList, WireMessage().singles(1, values, count).encoded());
}

ExampleBuilder& ExampleBuilder::integers(std::string_view name, const std::int64_t* values,
                                         std::size_t count) {
  return add(name, kInt64List, WireMessage().integers(1, values, count).encoded());
}

ExampleBuilder& ExampleBuilder::bytes(std::string_view name, std::string_view value) {
  return add(name, kBytesList, WireMessage().bytes(1, value).encoded());
}

ExampleBuilder& ExampleBuilder::strings(std::string_view name, const std::vector<std::string>& values) {
  WireMessage list;
  for (const std::string& value : values) list.bytes(1, value);
  return add(name, kBytesList, list.encoded());
}

ExampleBuilder& ExampleBuilder::tensor(std::string_view name, const Tensor& values) {
  const Tensor host = values.host();
  const auto count = static_cast<std::size_t>(host.num_elements());
  const auto convert = [&](void* to, DType dtype) {
    kernels::cast_loop(host.dtype(), dtype)(host.raw(), to, host.num_elements());
  };
  if (!is_floating(host.dtype())) {
    std::vector<std::int64_t> integers_of(count);
    if (host.dtype() == DType::kI64) return integers(name, host.data<std::int64_t>().data(), count);
    convert(integers_of.data(), DType::kI64);
    return integers(name, integers_of.data(), count);
  }
  std::vector<float> floats_of(count);
  if (host.dtype() == DType::kF64) {
    for (const double value : host.data<double>()) {
      if (std::isfinite(value) && std::fabs(value) > std::numeric_limits<float>::max())
        throw InvalidArgument(
            str("feature '", printable(name), "': an Example holds f32, and ", value, " is beyond it"));
    }
  }
  if (host.dtype() == DType::kF32) return floats(name, host.data<float>().data(), count);
  convert(floats_of.data(), DType::kF32);
  return floats(name, floats_of.data(), count);
}

std::string ExampleBuilder::encoded() const { return WireMessage().bytes(1, features_).encoded(); }

}  // namespace lockstep
