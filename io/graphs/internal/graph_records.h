// io/graphs/internal/graph_records.h - the contents of a graph file as plain records, which Cereal writes and
// bounded archives read.
//
// A file is a flat list of graphs: a region stands before the graph whose node holds it, the outermost graph
// last. So records do not nest with regions, and depth is a number that can be checked. Inside a graph nodes
// are numbered by their place in its list.
//
// The binary and the JSON form hold the same, except for tensors and attributes. In binary an attribute is a
// type and a value, and a tensor is a place in a table, whose large entries lie as raw blocks outside the
// records. In JSON both are written as in the text form (docs/text_format.md), which is exact and readable.
//
// The numbers of types in binary files are the enumerators' values and must never change.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cereal/cereal.hpp>

#include "lockstep/core/base/export.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/io/graphs/internal/identities.h"

namespace lockstep::internal {

inline constexpr std::uint32_t kNoTensor = 0xFFFFFFFFU;

template <class Archive>
inline constexpr bool kIsText = std::is_base_of_v<cereal::traits::TextArchive, Archive>;

struct IdentityRecord {
  std::uint32_t origin = 0;  // place in GraphFileRecord::origins
  std::uint64_t number = 0;  // 0: none
  template <class Archive>
  void serialize(Archive& archive) {
    archive(CEREAL_NVP(origin), CEREAL_NVP(number));
  }
};

struct SpecRecord {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // -1: unknown
  template <class Archive>
  void save(Archive& archive) const {
    if constexpr (kIsText<Archive>) {
      archive(cereal::make_nvp("dtype", std::string(to_string(dtype))), CEREAL_NVP(shape));
    } else {
      archive(static_cast<std::uint8_t>(dtype), shape);
    }
  }
  template <class Archive>
  void load(Archive& archive) {
    if constexpr (kIsText<Archive>) {
      std::string name;
      archive(cereal::make_nvp("dtype", name), CEREAL_NVP(shape));
      const auto known = parse_dtype(name);
      if (!known) archive.fail(str("'", name.substr(0, 40), "' is not an element type"));
      dtype = *known;
    } else {
      std::uint8_t code = 0;
      archive(code, shape);
      if (code >= std::size(kAllDTypes)) archive.fail(str("there is no element type ", int{code}));
      dtype = static_cast<DType>(code);
    }
  }
};

// Binary only. Either the contents are here, or they are the next raw block of the file.
struct TensorRecord {
  SpecRecord spec;
  bool in_block = false;
  std::uint32_t block_crc = 0;
  std::string contents = {};
  template <class Archive>
  void serialize(Archive& archive) {
    archive(spec, in_block, block_crc, contents);
  }
};

struct AttributeRecord {
  std::string name;
  // JSON: the value as text.
  std::string text;
  // Binary: the value; for a tensor its place in the table instead.
  AttributeType type = AttributeType::kInt;
  bool flag = false;
  std::int64_t integer = 0;  // also the number of an element type
  double number = 0;
  std::string string;  // also the name of a variable
  std::uint32_t tensor = kNoTensor;
  std::vector<std::int64_t> integers;  // also the dimensions of a shape
  std::vector<double> numbers;
  std::vector<std::string> strings;

  template <class Archive>
  void save(Archive& archive) const {
    if constexpr (kIsText<Archive>) {
      archive(CEREAL_NVP(name), cereal::make_nvp("value", text));
    } else {
      archive(name, static_cast<std::uint8_t>(type));
      with_value(*this, [&](const auto& value) { archive(value); });
    }
  }
  template <class Archive>
  void load(Archive& archive) {
    if constexpr (kIsText<Archive>) {
      archive(CEREAL_NVP(name), cereal::make_nvp("value", text));
    } else {
      std::uint8_t code = 0;
      archive(name, code);
      if (code >= static_cast<std::uint8_t>(AttributeType::kLambda)) {
        archive.fail(str("there is no attribute type ", int{code}));
      }
      type = static_cast<AttributeType>(code);
      with_value(*this, [&](auto& value) { archive(value); });
    }
  }

 private:
  template <class Self, class F>
  static void with_value(Self& self, F f) {
    switch (self.type) {
      case AttributeType::kBool: return f(self.flag);
      case AttributeType::kInt:
      case AttributeType::kDType: return f(self.integer);
      case AttributeType::kFloat: return f(self.number);
      case AttributeType::kString:
      case AttributeType::kVariable: return f(self.string);
      case AttributeType::kTensor: return f(self.tensor);
      case AttributeType::kShape:
      case AttributeType::kInts: return f(self.integers);
      case AttributeType::kFloats: return f(self.numbers);
      case AttributeType::kStrings: return f(self.strings);
      case AttributeType::kLambda: break;
    }
  }
};

struct SiteRecord {
  std::string file;
  std::string function;
  std::uint32_t line = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(CEREAL_NVP(file), CEREAL_NVP(function), CEREAL_NVP(line));
  }
};

struct ValueRecord {
  std::uint32_t node = 0;
  std::uint32_t output = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(CEREAL_NVP(node), CEREAL_NVP(output));
  }
};

struct VariableRecord {
  std::string name;
  SpecRecord spec;
  std::string initial_text;           // JSON: the initial value as text; empty: zeros
  std::uint32_t initial = kNoTensor;  // binary: its place in the table; kNoTensor: zeros
  std::string synchronization;        // as the text form names them
  std::string aggregation;            // of slices, from version 2 on: "slices <axis> <extent>"
  bool trainable = true;
  std::string device;
  std::string copy_of;
  std::int32_t replica = -1;
  bool shares = false;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(CEREAL_NVP(name), CEREAL_NVP(spec));
    if constexpr (kIsText<Archive>) {
      archive(cereal::make_nvp("initial", initial_text));
    } else {
      archive(initial);
    }
    archive(CEREAL_NVP(synchronization), CEREAL_NVP(aggregation), CEREAL_NVP(trainable), CEREAL_NVP(device),
            CEREAL_NVP(copy_of), CEREAL_NVP(replica), CEREAL_NVP(shares));
  }
};

struct NodeRecord {
  std::string name;
  std::string op;
  std::vector<ValueRecord> inputs;
  std::vector<std::uint32_t> controls;  // nodes
  std::vector<SpecRecord> outputs;
  std::vector<AttributeRecord> attributes;
  std::vector<std::uint32_t> regions;  // graphs of this file, before the one that holds the node
  std::string device;
  std::uint32_t site = 0;  // place in GraphRecord::sites, from 1; 0: unknown
  IdentityRecord identity;
  IdentityRecord origin;
  std::string made_by;  // from version 3 on: behind "gradients, ", if a pass made the node of a gradient
  std::string why;
  std::int32_t replica = -1;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(CEREAL_NVP(name), CEREAL_NVP(op), CEREAL_NVP(inputs), CEREAL_NVP(controls), CEREAL_NVP(outputs),
            CEREAL_NVP(attributes), CEREAL_NVP(regions), CEREAL_NVP(device), CEREAL_NVP(site),
            CEREAL_NVP(identity), CEREAL_NVP(origin), CEREAL_NVP(made_by), CEREAL_NVP(why),
            CEREAL_NVP(replica));
  }
};

struct GraphRecord {
  std::vector<VariableRecord> variables;
  std::vector<SiteRecord> sites;
  std::vector<NodeRecord> nodes;
  std::vector<std::uint32_t> parameters;  // nodes
  std::vector<ValueRecord> results;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(CEREAL_NVP(variables), CEREAL_NVP(sites), CEREAL_NVP(nodes), CEREAL_NVP(parameters),
            CEREAL_NVP(results));
  }
};

struct GraphFileRecord {
  std::vector<std::string> origins;   // as to_string(OriginId)
  std::vector<TensorRecord> tensors;  // binary only
  std::vector<GraphRecord> graphs;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(CEREAL_NVP(origins));
    if constexpr (!kIsText<Archive>) archive(tensors);
    archive(CEREAL_NVP(graphs));
  }
};

enum class RecordForm : std::uint8_t { kBinary, kJson };

struct GraphRecords {
  std::uint32_t version = 1;  // the lowest version that can hold them
  GraphFileRecord file;
  std::vector<Tensor> blocks;  // contents of the tensors that are `in_block`, in their order; binary only
};

// Throws InvalidArgument for C++ code, naming the node and its source line.
void check_can_be_kept(const Node& node, const Attribute& attribute);
// The graph must be valid; throws as check_can_be_kept().
LOCKSTEP_API GraphRecords make_records(const Graph& graph, RecordForm form);

// As OpRegistry::get(), but the error for an unknown name also says how the ops of a file get registered.
const OpDef& registered_op(std::string_view name);

// `tensors` are those of the table. The graph's memory is charged to the budget. Throws Error if records
// contradict each other, or if verify() refuses the graph; only the identities of a graph that passes are
// remembered.
Graph make_graph(const GraphFileRecord& file, RecordForm form, const std::vector<Tensor>& tensors,
                 ReadBudget& budget);

}  // namespace lockstep::internal
