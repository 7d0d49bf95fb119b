// graph/ir/op.h - what an operation is, and the registry of all of them.
//
// Everything the system knows of an op it knows from its OpDef: builder, verifier, passes, strategies,
// interpreter and compiler never look at op names. A user's op with the right entries is a first-class op:
//
//   OpDef def;
//   def.name = "my_square";
//   def.inputs = Arity::exactly(1);
//   def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
//   def.traits.elementwise = true;
//   def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
//     return [](KernelContext& c) { ... };
//   };
//   OpRegistry::global().add(std::move(def));           // a taken name is an error
//
// Thread safety: the registry may be used from any thread; an OpDef never changes once added, and is never
// removed. Registering allocates: if the first use of global() throws std::bad_alloc, the next one tries
// again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/small_vector.h"
#include "lockstep/core/device.h"
#include "lockstep/core/shape.h"
#include "lockstep/graph/ir/attribute.h"
#include "lockstep/graph/ir/kernel.h"

namespace lockstep {

class Gradient;
class Graph;
class GraphBuilder;
class Group;
class Node;
class Runtime;
class Value;

// What running a node does besides computing its outputs. kPure is the empty set.
enum class Effect : std::uint8_t {
  kPure = 0,
  kReadsVariable = 1,
  kWritesVariable = 2,
  kCollective = 4,  // takes part in a communicator's order
  kRandom = 8,      // draws from the run's random stream: equal nodes with equal keys are equal
  kHost = 16,       // touches the world outside: never erased, merged or repeated
  kOpaque = 32,     // unknown effects: a barrier that nothing is moved across
};
constexpr Effect operator|(Effect a, Effect b) {
  return static_cast<Effect>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}
constexpr bool has(Effect set, Effect one) {
  return (static_cast<std::uint8_t>(set) & static_cast<std::uint8_t>(one)) != 0;
}
LOCKSTEP_API std::string to_string(Effect effects);  // "pure", "reads_variable|random", ...
// Must the node run although nobody reads its outputs?
constexpr bool must_run(Effect e) {
  return has(e, Effect::kWritesVariable | Effect::kCollective | Effect::kHost | Effect::kOpaque);
}

// How many inputs an op takes.
struct Arity {
  std::size_t min = 0;
  std::size_t max = 0;
  static constexpr Arity exactly(std::size_t n) { return {n, n}; }
  static constexpr Arity at_least(std::size_t n) { return {n, std::numeric_limits<std::size_t>::max()}; }
  static constexpr Arity between(std::size_t low, std::size_t high) { return {low, high}; }
  constexpr bool accepts(std::size_t n) const { return n >= min && n <= max; }
};

struct AttributeSpec {
  std::string name;
  AttributeType type = AttributeType::kInt;
  bool required = true;
};

// An element of a shape operand that is not known yet. (Not kUnknown: -1 has a meaning of its own in
// reshape.)
inline constexpr std::int64_t kUnknownElement = std::numeric_limits<std::int64_t>::min();

// A node as rules see it: its op's inputs by spec, its attributes, its regions. A view: valid during the
// call.
class LOCKSTEP_API NodeView {
 public:
  using VariableSpecs = std::function<const TensorSpec*(std::string_view)>;  // null: not declared
  // What a shape operand is known to hold, by input; unknown elements are kUnknownElement.
  using ShapeValues = std::function<std::vector<std::int64_t>(std::size_t input)>;

  NodeView(std::string_view name, std::span<const TensorSpec> inputs,
           const std::vector<Attribute>& attributes, std::span<const Graph> regions,
           const VariableSpecs* variables, std::span<const TensorSpec> declared,
           const ShapeValues* shape_values = nullptr)
      : name_(name),
        inputs_(inputs),
        attributes_(attributes),
        regions_(regions),
        variables_(variables),
        declared_(declared),
        shape_values_(shape_values) {}

  std::string_view name() const { return name_; }
  std::size_t num_inputs() const { return inputs_.size(); }
  const TensorSpec& input(std::size_t i) const { return inputs_[i]; }
  std::span<const TensorSpec> inputs() const { return inputs_; }
  const std::vector<Attribute>& attributes() const { return attributes_; }
  std::span<const Graph> regions() const { return regions_; }
  // The output specs stated when the node was made: the only source for ops whose outputs follow from nothing
  // else (placeholders, lambdas).
  std::span<const TensorSpec> declared() const { return declared_; }
  // find() gives the attribute or null; get() throws InvalidArgument if it is missing or has another type.
  template <class T>
  const T* find(std::string_view attribute) const {
    const AttributeValue* value = find_attribute(attributes_, attribute);
    return value == nullptr ? nullptr : std::get_if<T>(value);
  }
  template <class T>
  const T& get(std::string_view attribute) const {
    const T* value = find<T>(attribute);
    if (value == nullptr) missing(attribute);
    return *value;
  }
  template <class T>
  T get_or(std::string_view attribute, T fallback) const {
    const T* value = find<T>(attribute);
    return value == nullptr ? fallback : *value;
  }
  // Spec of a declared variable; throws InvalidArgument if it is not declared.
  const TensorSpec& variable(std::string_view name) const;
  // The elements of input i, one of OpDef::shape_operands, as far as they are known: all of them once feeds
  // have arrived, before that perhaps only their number (elements not known yet are kUnknownElement).
  std::vector<std::int64_t> shape_operand(std::size_t i) const;

  // For kernel makers: the user's line that made the node; unknown unless the view is of a node (view_of).
  const SourceSite& site() const { return site_; }
  // For kernel makers: the device that the node will run on; null in the interpreter, which has none.
  const Device* device() const { return device_; }
  // For kernel makers: the number of the card that this device is a part of (DeviceFacts::card); -1 in the interpreter.
  int card() const;
  // For kernel makers of collectives between processes: the group that the runtime knows by this name. Throws
  // NotFound, naming the groups there are, and FailedPrecondition in the interpreter, which has none.
  Group& group(std::string_view name) const;
  // For kernel makers: may products of f32 be computed from less precise factors (CompileOptions::allow_tf32)?
  bool allows_tf32() const { return allows_tf32_; }
  // The same node, about to run on this device of this runtime; both must outlive the view.
  NodeView placed(const Device& device, const Runtime& runtime, bool allows_tf32 = false) const {
    NodeView view = *this;
    view.device_ = &device;
    view.runtime_ = &runtime;
    view.allows_tf32_ = allows_tf32;
    return view;
  }

  // Throws InvalidArgument; the caller adds op, node and source line.
  [[noreturn]] static void fail(const std::string& message);

 private:
  friend NodeView view_of(const Node& node, std::span<const TensorSpec> inputs,
                          const VariableSpecs& variables, const ShapeValues* shape_values);
  [[noreturn]] static void missing(std::string_view attribute);

  std::string_view name_;
  std::span<const TensorSpec> inputs_;
  const std::vector<Attribute>& attributes_;
  std::span<const Graph> regions_;
  const VariableSpecs* variables_;
  std::span<const TensorSpec> declared_;
  const ShapeValues* shape_values_;
  const Device* device_ = nullptr;
  const Runtime* runtime_ = nullptr;
  bool allows_tf32_ = false;
  SourceSite site_ = {};
};

// The node that an inference rule looks at, and the outputs that the rule gives. Rules are called when a node
// is made (dimensions may be unknown), when it is verified, and when feeds arrive (all dimensions known).
class LOCKSTEP_API InferContext : public NodeView {
 public:
  using Outputs = SmallVector<TensorSpec, 1>;
  using NodeView::NodeView;
  void add_output(TensorSpec spec);
  void add_output(DType dtype, Shape shape);
  Outputs& outputs() { return outputs_; }
  // A rule that gives more outputs than this fails at the first one too many: a node that already states its
  // outputs, such as one from a file, is not worth more work.
  void limit_outputs(std::size_t most) { most_ = most; }
  // For rules that first build a list as long as their outputs: throws if `count` outputs are more than the
  // limit.
  void expect_outputs(std::int64_t count) const;
  // Throws if the inputs' dtypes differ; returns the common one.
  DType same_dtype() const;
  void require(bool condition, const char* message) const {
    if (!condition) fail(message);
  }

 private:
  Outputs outputs_;
  std::size_t most_ = std::size_t{1} << 20;
};

// The work of one run of a node.
struct Cost {
  double flops = 0;    // an estimate: operations, weighed by what a core takes for them
  double bytes = 0;    // that must be read and written, on any device: of a table the rows that are looked up
  double seconds = 0;  // if > 0, used as it is: a measured time or a user's hint
  // Of products of matrices, convolutions and attention, to the last one: two operations each, which are a part of `flops`.
  double multiply_adds = 0;
};

// The input of a gradient rule: a node of the graph being built and what flows back into its outputs. The
// rule makes the nodes of the backward pass with the ordinary op functions and returns one Gradient per
// input, an empty one if nothing flows back (into an integer input, for example). See
// graph/train/gradients.h.
class GradientContext;
using GradientFn = std::function<std::vector<Gradient>(GradientContext&)>;

// How strategies treat the nodes of an op in the code of a replica.
enum class ReplicaRole : std::uint8_t {
  kNone,             // one node per replica; its value follows from its inputs
  kOwnSource,        // its value differs between replicas, whatever its inputs
  kReplicaNumber,    // output 0 is the number of the replica: a constant once it is known
  kShare,            // its value is a share: the shares of all replicas add up to the value
  kSumOverReplicas,  // each replica computes a part: the value is the sum over all replicas
  // The copies of the node for all replicas become one node, which takes the inputs of all of them, replica
  // by replica, gives their outputs in the same order, and states their number in its int attribute
  // `replicas`.
  kCollective,
  kLoweredCollective,  // combines values of several replicas: a collective is lowered to it
  kAgree,              // all its inputs are equal: prove-sync proves it
};

struct OpTraits {
  bool elementwise = false;    // output element i depends on element i of the (broadcast) inputs alone
  bool commutative = false;    // the first two inputs may be swapped
  bool in_place = false;       // output may lie in an input of equal spec; of several outputs, i in input i
  bool alias = false;          // output 0 is input 0 under another name or shape: nothing runs
  bool alias_if_same = false;  // as alias, if input 0 and output 0 turn out to have one spec
  bool infallible = false;     // its kernel never throws: allowed in the commit stage
  bool refuses_integers = false;  // its kernel throws on some integers: an index out of range, a divisor of 0
  bool refuses_floats = false;    // its kernel throws on some floating values: NaN
  bool refuses(DType dtype) const { return is_integer(dtype) ? refuses_integers : refuses_floats; }
  ReplicaRole role = ReplicaRole::kNone;
  bool is(ReplicaRole asked) const { return role == asked; }
  bool same_on_all = false;       // of a collective: each of its outputs is equal on all replicas
  bool transfers = false;         // brings input 0 to the node's device, whatever memory it lies in
  bool declares_effects = false;  // its int attribute `effects` replaces OpDef::effects
  bool checkpoint = false;        // its output is kept for gradients; nodes leading to it may be recomputed
  bool gives_shape = false;       // output 0 is the shape of input 0, whose contents are not looked at
  // Each element of output 0 is an element of input 0 (of any input, if the op takes any number of them);
  // other inputs only say which.
  bool moves_elements = false;
  // Output 0 is all zeros if input 0 is. Only ops that spread or negate an assigned number need to set this:
  // it tells strategies that replicas add nothing.
  bool keeps_zeros = false;
  // Its kernel may run while a graph is built, read or verified, to compute the contents of a shape operand.
  // Only for ops that are quick, take no memory but their outputs, and whose kernel is safe for everything
  // that their rule accepts: a graph from a file may hold anything.
  bool shape_math = false;
  // Output 0 is the tensor in this attribute: nothing runs.
  std::optional<std::string> gives_attribute;
  // The attribute that names the variable it reads as a value.
  std::optional<std::string> reads_variable;
  // It writes a variable, and perhaps slot variables that belong to it. Its kernel takes the current values
  // of the variable and of the slots, in this order, before the node's inputs, and gives the new ones as
  // outputs 0, 1, ...; these are the node's outputs too. A kernel that runs in place must allow output i to
  // be input i.
  struct Update {
    std::string attribute;       // names the variable
    std::size_t operand = 0;     // the input that must agree across replicas: a gradient, a new value
    bool uses_old_value = true;  // of the variable
    std::vector<std::string> slots = {};  // attributes that name slot variables, which are read and written
    bool gradient = false;  // the operand is a gradient: replicas sum it, whatever the aggregation
    // The input with the row numbers, if the operand holds only some rows.
    std::optional<std::size_t> indices = {};
  };
  std::optional<Update> updates_variable;
  // Its region holds updates, which its kernel makes at once: docs/graph_rules.md says in what order. The kernel takes and
  // gives values of variables as that of an update does, those of the first update in the region first.
  bool merges_updates = false;
};

// Makes the kernel for one node of known specs; called once per plan, so attributes are looked up here.
using KernelMaker = std::function<KernelFn(const NodeView&, std::span<const TensorSpec> outputs)>;
using CostFn = std::function<Cost(const NodeView&, std::span<const TensorSpec> outputs)>;
using SplitFn = std::function<Split(const NodeView&, std::span<const TensorSpec> outputs)>;

// How the nodes of an op run on the devices of one backend. A kernel maker alone is one too:
//   def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn { ... };
struct KernelDef {
  KernelDef() = default;
  template <class Maker>
  requires std::is_constructible_v<KernelMaker, Maker> KernelDef(Maker maker) : make(std::move(maker)) {}

  KernelMaker make;
  CostFn cost;    // absent: from the bytes
  SplitFn split;  // absent: one shard
  // Of an op that updates variables: makes the kernel of a `merged_updates` node that holds nodes of this op. Absent:
  // they stay apart.
  KernelMaker merge;
  // Its calls may go on after the kernel has returned (KernelContext::defer). Such a kernel has one shard and
  // updates no variable.
  bool deferred = false;
};

// A box of elements that an op takes from an input to an output as they are. Element (i, j, ...) of it, below `extents`, lies
// at in_start + i * in_strides[0] + j * in_strides[1] + ... of the input, and likewise in the output; counted in elements.
struct ElementBox {
  std::size_t input = 0, output = 0;
  std::vector<std::int64_t> extents, in_strides, out_strides;
  std::int64_t in_start = 0, out_start = 0;
};
// The boxes do not overlap in an output; what they leave open there becomes `fill`.
struct ElementMoves {
  std::vector<ElementBox> boxes;
  std::optional<double> fill = std::nullopt;  // none: they leave nothing open
};
using MovesFn = std::function<ElementMoves(const NodeView&, std::span<const TensorSpec> outputs)>;

// Computes `count` consecutive elements of an output from as many consecutive elements of each input;
// `output` may be one of the inputs. Stateless; never throws if the op is infallible.
using TileFn = std::function<void(const void* const* inputs, void* output, std::int64_t count)>;
using TileMaker = std::function<TileFn(const NodeView&, std::span<const TensorSpec> outputs)>;

// How an op's regions run. The inputs and results of each form are in docs/graph_rules.md.
enum class RegionKind : std::uint8_t {
  kNone,
  kCond,        // (pred, args...) -> one of two regions over args
  kWhile,       // (carried..., captured...) -> while region 0 says true: carried = region 1
  kReplicated,  // region 0 once per replica
};

struct OpDef {
  std::string name;
  std::string summary;  // one line for the docs
  Arity inputs;
  std::vector<AttributeSpec> attributes;
  std::size_t regions = 0;
  RegionKind region_kind = RegionKind::kNone;
  Effect effects = Effect::kPure;  // regions add theirs
  OpTraits traits;
  std::function<void(InferContext&)> infer;
  // Of the kernel set "cpu", unless kernels["cpu"] has its own.
  CostFn cost;          // absent: from the bytes
  SplitFn split;        // absent: one shard
  GradientFn gradient;  // absent: not differentiable
  // Inputs (i64, rank 0 or 1) whose contents decide shapes. They must follow from constants and from shapes
  // of values: the builder refuses others, and rules read them with NodeView::shape_operand.
  std::vector<std::size_t> shape_operands;
  // By kernel set: "cpu", or the name that the backend of a device gives its own (DeviceFacts::kernels). More
  // can be added later, from other files and libraries: OpRegistry::add_kernel.
  std::map<std::string, KernelDef, std::less<>> kernels;
  // For an element-wise op with one output, on the CPU: the pass fuse-elementwise joins only ops that have
  // it. It gives the same bits as the kernel.
  TileMaker tile;
  // For an op that only moves elements, from which kernels of other devices are made. Shapes are known.
  MovesFn moves;
  // For an op whose output elements depend on the elements of its inputs at the same place alone: what it computes, as
  // a C++ expression for each output, from which kernels of other devices are generated. x0, x1, ... are elements of
  // the inputs, T is the type of x0 and R that of the output; 16-bit floating values are computed as float and rounded
  // once. $name is the attribute of that name, as a double. Besides C's operators and functions of float and double
  // there are the functions of graph/cuda/prelude.cpp; refuse() leaves word that the element is refused.
  std::vector<std::string> source;
  // Unless set, attributes not declared above are refused.
  bool open_attributes = false;
  bool known = true;  // false: an unregistered name that came from the text form
};

// "takes 2 inputs, got 3".
LOCKSTEP_API std::string arity_message(const OpDef& op, std::size_t inputs);

class LOCKSTEP_API OpRegistry {
 public:
  // The one registry, with the built-in ops in it.
  static OpRegistry& global();

  OpRegistry();
  ~OpRegistry();
  OpRegistry(const OpRegistry&) = delete;
  OpRegistry& operator=(const OpRegistry&) = delete;

  // Throws InvalidArgument for a taken or malformed name, or an OpDef without an inference rule.
  const OpDef& add(OpDef def);
  // Adds a kernel for another kernel set to an op that is registered already. Throws NotFound for an unknown
  // op, InvalidArgument if the op has a kernel for that set, or if the kernel has no maker.
  void add_kernel(std::string_view op, std::string_view kernel_set, KernelDef kernel);
  // Ops that have no kernel for the set, whenever they are registered, get what `derive` makes of what they say about
  // themselves (OpDef::source, OpDef::moves); an empty maker: nothing. One for each set: InvalidArgument for a second.
  void derive_kernels(std::string_view kernel_set, std::function<KernelMaker(const OpDef&)> derive);
  // The op's kernel for the set, its own, an added one or a derived one; null: there is none. Once asked for it never changes.
  const KernelDef* kernel(const OpDef& op, std::string_view kernel_set) const;
  // The sets that the op has a kernel for, sorted.
  std::vector<std::string> kernel_sets(const OpDef& op) const;
  // Null if the op is not registered.
  const OpDef* find(std::string_view name) const;
  // Throws NotFound, naming the closest registered names.
  const OpDef& get(std::string_view name) const;
  // As find, but an unregistered name gets an OpDef with known == false, so that a graph can hold it. Such an
  // OpDef lives as long as the returned pointer, or as a graph with a node of it.
  std::shared_ptr<const OpDef> find_or_unknown(std::string_view name);
  std::vector<std::string> names() const;  // sorted

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
