// io/graphs/graph_records.cpp - the contents of a graph file as plain records, which Cereal writes and
// bounded archives read.
#include "lockstep/io/graphs/internal/graph_records.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_set>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/device_spellings.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/text/text.h"

namespace lockstep::internal {
namespace {

// Files of every version rely on these numbers.
static_assert(static_cast<int>(DType::kF16) == 0 && static_cast<int>(DType::kBF16) == 1 &&
              static_cast<int>(DType::kF32) == 2 && static_cast<int>(DType::kF64) == 3 &&
              static_cast<int>(DType::kI32) == 4 && static_cast<int>(DType::kI64) == 5 &&
              static_cast<int>(DType::kU8) == 6 && static_cast<int>(DType::kBool) == 7);
static_assert(static_cast<int>(AttributeType::kBool) == 0 && static_cast<int>(AttributeType::kInt) == 1 &&
              static_cast<int>(AttributeType::kFloat) == 2 && static_cast<int>(AttributeType::kString) == 3 &&
              static_cast<int>(AttributeType::kDType) == 4 && static_cast<int>(AttributeType::kShape) == 5 &&
              static_cast<int>(AttributeType::kTensor) == 6 &&
              static_cast<int>(AttributeType::kVariable) == 7 &&
              static_cast<int>(AttributeType::kInts) == 8 && static_cast<int>(AttributeType::kFloats) == 9 &&
              static_cast<int>(AttributeType::kStrings) == 10 &&
              static_cast<int>(AttributeType::kLambda) == 11);

constexpr std::string_view kSlices = "slices ";
constexpr std::string_view kGradients = "gradients";     // Provenance::made_by of what gradients() made
constexpr std::string_view kGradientBy = "gradients, ";  // before the pass that made a node of a gradient

// Tensors of at least this size are raw blocks, which are read straight into their place.
constexpr std::size_t kBlockBytes = 1024;
// The memory of a node in the graph, in its indexes and during verification.
constexpr std::uint64_t kNodeBytes = sizeof(Node) + 128;
// As in the text form: graphs are copied, verified and destroyed by functions that recurse into regions.
constexpr std::size_t kMaxRegionDepth = 256;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kDataLoss, message); }

std::vector<std::int64_t> dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }
SpecRecord record_of(const TensorSpec& spec) { return {spec.dtype, dims_of(spec.shape)}; }
Shape shape_of(const std::vector<std::int64_t>& dims) { return Shape(std::span<const std::int64_t>(dims)); }
TensorSpec spec_of(const SpecRecord& record) { return {record.dtype, shape_of(record.shape)}; }

// --- from a graph to records

class Recorder {
 public:
  explicit Recorder(RecordForm form) : form_(form) {}

  // Returns the place of the graph in the file.
  std::uint32_t add(const Graph& graph) {
    GraphRecord record;
    std::vector<std::uint32_t> place_of_id(graph.id_bound());
    std::uint32_t next = 0;
    for (const Node& node : graph.nodes()) place_of_id[node.id().index()] = next++;

    NameMap<std::uint32_t> sites;
    for (const VariableDecl& variable : graph.variables()) record.variables.push_back(record_of(variable));
    record.nodes.reserve(graph.size());
    for (const Node& node : graph.nodes())
      record.nodes.push_back(record_of(graph, node, place_of_id, record.sites, sites));
    for (const NodeId id : graph.parameters()) record.parameters.push_back(place_of_id.at(id.index()));
    for (const ValueId value : graph.results()) record.results.push_back(use_of(value, place_of_id));
    records_.file.graphs.push_back(std::move(record));
    return static_cast<std::uint32_t>(records_.file.graphs.size() - 1);
  }

  GraphRecords take() { return std::move(records_); }

 private:
  static ValueRecord use_of(ValueId value, const std::vector<std::uint32_t>& place_of_id) {
    return {place_of_id.at(value.node.index()), value.output};
  }

  NodeRecord record_of(const Graph& graph, const Node& node, const std::vector<std::uint32_t>& place_of_id,
                       std::vector<SiteRecord>& sites, NameMap<std::uint32_t>& site_index) {
    NodeRecord record;
    record.name = node.name();
    record.op = node.op().name;
    for (const ValueId input : node.inputs()) record.inputs.push_back(use_of(input, place_of_id));
    for (const NodeId control : node.controls()) record.controls.push_back(place_of_id.at(control.index()));
    for (const TensorSpec& spec : node.outputs()) record.outputs.push_back(internal::record_of(spec));
    for (const Attribute& attribute : node.attributes())
      record.attributes.push_back(record_of(node, attribute));
    for (const Graph& region : node.regions()) record.regions.push_back(add(region));
    record.device = node.device();
    if (const SourceSite site = node.site(); site.known()) {
      const std::string key = str(site.line, ":", site.file, ":", site.function);
      const auto [found, fresh] = site_index.try_emplace(key, static_cast<std::uint32_t>(sites.size() + 1));
      if (fresh) sites.push_back({site.file, site.function, site.line});
      record.site = found->second;
    }
    const Provenance& provenance = node.provenance();
    record.identity = record_of(provenance.identity);
    record.origin = record_of(provenance.origin);
    record.made_by = graph.text(provenance.made_by);
    if (provenance.gradient == GradientMark::kShare && record.made_by != kGradients) {
      record.made_by.insert(0, kGradientBy);
      need_version(3);
    }
    record.why = graph.text(provenance.why);
    record.replica = provenance.replica;
    return record;
  }

  void need_version(std::uint32_t version) { records_.version = std::max(records_.version, version); }

  IdentityRecord record_of(std::uint64_t local) {
    if (local == 0) return {};
    const LastingIdentity identity = lasting_identity(local);
    const auto [found, fresh] =
        origins_.try_emplace(identity.origin, static_cast<std::uint32_t>(records_.file.origins.size()));
    if (fresh) records_.file.origins.push_back(to_string(identity.origin));
    return {found->second, identity.number};
  }

  AttributeRecord record_of(const Node& node, const Attribute& attribute) {
    AttributeRecord record;
    record.name = attribute.name;
    record.type = type_of(attribute.value);
    check_can_be_kept(node, attribute);
    if (form_ == RecordForm::kJson) {
      record.text = print(attribute.value);
      return record;
    }
    std::visit(
        [&]<class T>(const T& value) {
          if constexpr (std::is_same_v<T, bool>) record.flag = value;
          if constexpr (std::is_same_v<T, std::int64_t>) record.integer = value;
          if constexpr (std::is_same_v<T, double>) record.number = value;
          if constexpr (std::is_same_v<T, std::string>) record.string = value;
          if constexpr (std::is_same_v<T, DType>) record.integer = static_cast<std::int64_t>(value);
          if constexpr (std::is_same_v<T, Shape>) record.integers = dims_of(value);
          if constexpr (std::is_same_v<T, Tensor>) record.tensor = add(value);
          if constexpr (std::is_same_v<T, VariableRef>) record.string = value.name;
          if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) record.integers = value;
          if constexpr (std::is_same_v<T, std::vector<double>>) record.numbers = value;
          if constexpr (std::is_same_v<T, std::vector<std::string>>) record.strings = value;
        },
        attribute.value);
    return record;
  }

  VariableRecord record_of(const VariableDecl& variable) {
    VariableRecord record;
    record.name = variable.name;
    record.spec = internal::record_of(variable.spec);
    if (form_ == RecordForm::kBinary) record.initial = add(variable.initial);
    if (form_ == RecordForm::kJson && variable.initial.defined())
      record.initial_text = print(variable.initial);
    record.synchronization = to_string(variable.synchronization);
    record.aggregation = to_string(variable.aggregation);
    if (variable.aggregation == Aggregation::kSlices) {
      record.aggregation += str(" ", variable.slice_axis, " ", variable.slice_extent);
      need_version(2);
    }
    record.trainable = variable.trainable;
    record.device = variable.device;
    record.copy_of = variable.copy_of;
    record.replica = variable.replica;
    record.shares = variable.shares;
    return record;
  }

  // The place of the tensor in the table; tensors that share memory (the constants of replicas) are held
  // once.
  std::uint32_t add(const Tensor& tensor) {
    if (!tensor.defined()) return kNoTensor;
    const auto [found, fresh] = tensors_.try_emplace(
        {tensor.raw(), to_string(tensor.spec())}, static_cast<std::uint32_t>(records_.file.tensors.size()));
    if (!fresh) return found->second;
    TensorRecord record;
    record.spec = internal::record_of(tensor.spec());
    record.in_block = tensor.num_bytes() >= kBlockBytes;
    if (record.in_block) {
      records_.blocks.push_back(tensor);
    } else {
      record.contents.assign(static_cast<const char*>(tensor.raw()), tensor.num_bytes());
    }
    records_.file.tensors.push_back(std::move(record));
    return found->second;
  }

  RecordForm form_;
  GraphRecords records_;
  std::map<OriginId, std::uint32_t> origins_;
  std::map<std::pair<const void*, std::string>, std::uint32_t> tensors_;
};

// --- from records to a graph

template <class Enum>
Enum enum_of(std::string_view name, std::initializer_list<Enum> all, std::string_view what) {
  for (const Enum candidate : all) {
    if (to_string(candidate) == name) return candidate;
  }
  refuse(str("'", name.substr(0, 40), "' is not ", what));
}

class Rebuilder {
 public:
  Rebuilder(const GraphFileRecord& file, RecordForm form, const std::vector<Tensor>& tensors,
            ReadBudget& budget)
      : file_(file), form_(form), tensors_(tensors), budget_(budget) {}

  Graph build() {
    if (file_.graphs.empty()) refuse("it holds no graph");
    for (const std::string& origin : file_.origins) origins_.push_back(parse_origin(origin));
    std::vector<std::size_t> depth(file_.graphs.size());
    for (std::size_t i = 0; i < file_.graphs.size(); ++i) {
      for (const NodeRecord& node : file_.graphs[i].nodes) {
        for (const std::uint32_t region : node.regions) {
          if (region >= i)
            refuse(str("graph ", i, " has graph ", region, " as a region, which does not stand before it"));
          depth[i] = std::max(depth[i], depth[region] + 1);
        }
      }
      if (depth[i] > kMaxRegionDepth)
        refuse(str("regions are nested deeper than ", kMaxRegionDepth, " levels"));
      graphs_.emplace_back(build(file_.graphs[i]));
    }
    Graph outermost = take_graph(file_.graphs.size() - 1);
    const auto unused = std::ranges::find_if(graphs_, [](const auto& graph) { return graph.has_value(); });
    if (unused != graphs_.end()) refuse(str("graph ", unused - graphs_.begin(), " is the region of no node"));
    verify(outermost);
    adopt_identities(outermost);
    return outermost;
  }

 private:
  // A graph may be the region of one node only.
  Graph take_graph(std::size_t place) {
    if (!graphs_[place]) refuse(str("graph ", place, " is the region of two nodes"));
    Graph graph = std::move(*graphs_[place]);
    graphs_[place].reset();
    return graph;
  }

  Graph build(const GraphRecord& record) {
    budget_.take(sizeof(Graph) + sizeof(VariableDecl) * record.variables.size(), "a graph");
    Graph graph;
    graph.reserve(record.nodes.size());
    for (const VariableRecord& variable : record.variables) graph.declare_variable(declaration_of(variable));
    for (const NodeRecord& node : record.nodes) {
      try {
        add(graph, record, node);
      } catch (const Error& error) {
        throw_error(error.code(), str("node '", node.name.substr(0, 200), "': ", error.message()),
                    error.place().node.empty() ? place_in_file(record, node) : error.place());
      }
    }
    for (const std::uint32_t parameter : record.parameters) graph.add_parameter(node_id(record, parameter));
    for (const ValueRecord& result : record.results)
      graph.add_result({node_id(record, result.node), result.output});
    return graph;
  }

  static ErrorPlace place_in_file(const GraphRecord& record, const NodeRecord& node) {
    ErrorPlace place;
    place.node = node.name;
    place.op = node.op;
    if (node.site != 0 && node.site <= record.sites.size()) {
      place.file = record.sites[node.site - 1].file;
      place.line = record.sites[node.site - 1].line;
    }
    return place;
  }

  static NodeId node_id(const GraphRecord& record, std::uint32_t place) {
    if (place >= record.nodes.size()) {
      refuse(str("node ", place, " is used in a graph of ", record.nodes.size(), " nodes"));
    }
    return NodeId(place);
  }

  void add(Graph& graph, const GraphRecord& record, const NodeRecord& node) {
    budget_.take(kNodeBytes + node.name.size(), "a node");
    NodeInit init;
    init.op = &registered_op(node.op);
    init.name = node.name;
    for (const ValueRecord& input : node.inputs)
      init.inputs.push_back({node_id(record, input.node), input.output});
    for (const std::uint32_t control : node.controls) init.controls.push_back(node_id(record, control));
    for (const SpecRecord& output : node.outputs) init.outputs.push_back(spec_of(output));
    init.attributes = attributes_of(node);
    for (const std::uint32_t region : node.regions) init.regions.push_back(take_graph(region));
    const std::string device = devices_.canonical(node.device);
    init.device = device;
    if (node.site > record.sites.size()) refuse(str("site ", node.site, " is one of ", record.sites.size()));
    if (node.site != 0) {
      const SiteRecord& site = record.sites[node.site - 1];
      init.site = {site.file.c_str(), site.function.c_str(), site.line};
    }
    if (node.replica < -1) refuse(str("there is no replica ", node.replica));
    Provenance provenance;
    provenance.identity = identities_.size();  // for adopt_identities()
    identities_.push_back({lasting(node.identity), lasting(node.origin)});
    std::string_view made_by = node.made_by;
    if (made_by == kGradients || made_by.starts_with(kGradientBy)) {
      provenance.gradient = GradientMark::kShare;
      if (made_by != kGradients) made_by.remove_prefix(kGradientBy.size());
    }
    if (!made_by.empty()) provenance.made_by = graph.intern(made_by);
    if (!node.why.empty()) provenance.why = graph.intern(node.why);
    provenance.replica = node.replica;
    init.provenance = provenance;
    graph.add(std::move(init));
  }

  LastingIdentity lasting(const IdentityRecord& record) const {
    if (record.number == 0) return {};
    if (record.origin >= origins_.size())
      refuse(str("origin ", record.origin, " is one of ", origins_.size()));
    return {origins_[record.origin], record.number};
  }

  // Replaces the identities of the file by numbers of this process. This comes last, since the mapping is
  // remembered. A node without an identity, or with one that another node of the file already has, gets a new
  // one: within a graph an identity belongs to one node.
  void adopt_identities(Graph& graph) {
    for (std::size_t i = 0; i < graph.id_bound(); ++i) {
      const NodeId id(i);
      Provenance provenance = graph.node(id).provenance();
      const auto& [identity, origin] = identities_[provenance.identity];
      provenance.identity = local_identity(identity);
      if (provenance.identity == 0 || !taken_.insert(provenance.identity).second)
        provenance.identity = Graph::new_identity();
      provenance.origin = local_identity(origin);
      graph.set_provenance(id, provenance);
      for (std::size_t r = 0; r < graph.node(id).regions().size(); ++r) adopt_identities(graph.region(id, r));
    }
  }

  std::vector<Attribute> attributes_of(const NodeRecord& node) {
    std::vector<Attribute> attributes;
    attributes.reserve(node.attributes.size());
    for (const AttributeRecord& attribute : node.attributes) {
      if (attribute.name.empty()) refuse("an attribute has no name");
      attributes.push_back({attribute.name, value_of(attribute)});
    }
    std::ranges::sort(attributes, {}, &Attribute::name);
    const auto twice = std::ranges::adjacent_find(attributes, {}, &Attribute::name);
    if (twice != attributes.end()) refuse(str("attribute '", twice->name, "' is given twice"));
    return attributes;
  }

  AttributeValue value_of(const AttributeRecord& record) {
    if (form_ == RecordForm::kJson) return value_of_text(record.text);
    switch (record.type) {
      case AttributeType::kBool: return record.flag;
      case AttributeType::kInt: return record.integer;
      case AttributeType::kFloat: return record.number;
      case AttributeType::kString: return record.string;
      case AttributeType::kDType:
        if (record.integer < 0 || record.integer >= std::ssize(kAllDTypes)) {
          refuse(str("there is no element type ", record.integer));
        }
        return static_cast<DType>(record.integer);
      case AttributeType::kShape: return shape_of(record.integers);
      case AttributeType::kTensor: return tensor(record.tensor);
      case AttributeType::kVariable: return VariableRef{record.string};
      case AttributeType::kInts: return record.integers;
      case AttributeType::kFloats: return record.numbers;
      case AttributeType::kStrings: return record.strings;
      case AttributeType::kLambda: break;
    }
    refuse("an attribute has no type that a file can hold");
  }

  AttributeValue value_of_text(const std::string& text) const { return parse_value(text, budget_); }

  Tensor tensor(std::uint32_t place) const {
    if (place == kNoTensor) return {};
    if (place >= tensors_.size()) refuse(str("tensor ", place, " is one of ", tensors_.size()));
    return tensors_[place];
  }

  VariableDecl declaration_of(const VariableRecord& record) {
    VariableDecl decl;
    decl.name = record.name;
    decl.spec = spec_of(record.spec);
    if (form_ == RecordForm::kBinary) {
      decl.initial = tensor(record.initial);
    } else if (!record.initial_text.empty()) {
      AttributeValue value = value_of_text(record.initial_text);
      if (!std::holds_alternative<Tensor>(value)) {
        refuse(str("the initial value of variable '", record.name.substr(0, 200), "' is not a tensor"));
      }
      decl.initial = std::get<Tensor>(std::move(value));
    }
    {
      using enum Synchronization;
      decl.synchronization =
          enum_of(record.synchronization, {kAuto, kNone, kOnWrite, kOnRead}, "a kind of synchronization");
    }
    if (record.aggregation.starts_with(kSlices)) {
      decl.aggregation = Aggregation::kSlices;
      const char* const end = record.aggregation.data() + record.aggregation.size();
      const auto axis = std::from_chars(record.aggregation.data() + kSlices.size(), end, decl.slice_axis);
      const bool space = axis.ec == std::errc() && axis.ptr != end && *axis.ptr == ' ';
      const auto extent = std::from_chars(space ? axis.ptr + 1 : end, end, decl.slice_extent);
      if (extent.ec != std::errc() || extent.ptr != end)
        refuse(str("'", record.aggregation.substr(0, 200), "' is no kind of aggregation"));
    } else {
      using enum Aggregation;
      decl.aggregation =
          enum_of(record.aggregation, {kNone, kSum, kMean, kOnlyFirstReplica}, "a kind of aggregation");
    }
    decl.trainable = record.trainable;
    decl.device = devices_.canonical(record.device);
    decl.copy_of = record.copy_of;
    if (record.replica < -1) refuse(str("there is no replica ", record.replica));
    decl.replica = record.replica;
    decl.shares = record.shares;
    return decl;
  }

  struct Identities {
    LastingIdentity identity;
    LastingIdentity origin;
  };

  const GraphFileRecord& file_;
  const RecordForm form_;
  const std::vector<Tensor>& tensors_;
  ReadBudget& budget_;
  std::vector<OriginId> origins_;
  std::vector<std::optional<Graph>> graphs_;  // built, and not yet taken as a region
  std::vector<Identities> identities_;
  std::unordered_set<std::uint64_t> taken_;  // identities that are already given to nodes
  DeviceSpellings devices_;
};

}  // namespace

void check_can_be_kept(const Node& node, const Attribute& attribute) {
  if (!std::holds_alternative<Lambda>(attribute.value)) return;
  throw InvalidArgument(
      str("node '", node.name(),
          "' holds C++ code (a lambda), which a file cannot carry: register the code as an op and "
          "use that, or keep the graph in C++"),
      place_of(node));
}

GraphRecords make_records(const Graph& graph, RecordForm form) {
  Recorder recorder(form);
  recorder.add(graph);
  return recorder.take();
}

const OpDef& registered_op(std::string_view name) {
  try {
    return OpRegistry::global().get(name);
  } catch (const NotFound& error) {
    throw NotFound(
        str(error.message(),
            " Ops of a plugin or of your own are registered before a graph is read: load_plugin(), "
            "--load of the lockstep command, OpRegistry::global().add()"));
  }
}

Graph make_graph(const GraphFileRecord& file, RecordForm form, const std::vector<Tensor>& tensors,
                 ReadBudget& budget) {
  return Rebuilder(file, form, tensors, budget).build();
}

}  // namespace lockstep::internal
