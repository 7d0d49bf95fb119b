// graph/build/builder.h - builds a graph node by node, checking each as it is made.
//
//   GraphBuilder b;
//   Value x = b.placeholder("x", DType::kF32, {kUnknown, 4});
//   VariableRef w = b.variable("w", Tensor::zeros({4, 1}));
//   {
//     auto scope = b.scope("layer");                   // names inside read "layer/..."
//     Value y = relu(matmul(x, b.read(w)) + 1.0F);
//     b.result(y);
//   }
//   Graph graph = b.finish();
//
// Shape and dtype errors surface here, at the call, with what was expected, what came and the caller's line.
// Reading and writing one variable happens in program order: the builder adds the control edges. Inside the
// functions given to cond() and while_loop(), values of enclosing graphs may be used freely; they are
// captured.
//
// A builder does not move. After finish() it is empty and may start another graph.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/source_site.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

namespace internal {
struct RegionTrace;
class BuilderAccess;  // graph/build/builder_access.h
}  // namespace internal

// How a lambda node behaves; by default nothing is promised.
struct CallOptions {
  // Estimated seconds of one call; 0: unknown (about a microsecond is assumed).
  double seconds = 0;
  // kHost: never erased, merged or repeated. kPure lets passes do all that. kOpaque makes it a barrier in
  // program order.
  Effect effects = Effect::kHost;
};

class LOCKSTEP_API GraphBuilder {
 public:
  GraphBuilder();
  ~GraphBuilder();
  GraphBuilder(const GraphBuilder&) = delete;
  GraphBuilder& operator=(const GraphBuilder&) = delete;

  // --- sources
  // Fed by its name, which must not be taken.
  Value placeholder(std::string_view name, DType dtype, Shape shape, SourceSite site = SourceSite::current());
  // Copies the tensor: later changes to it do not change the graph.
  Value constant(const Tensor& value, std::string_view name = "constant",
                 SourceSite site = SourceSite::current());
  template <class T>
  requires std::is_arithmetic_v<T> Value constant(T value, SourceSite site = SourceSite::current()) {
    return constant(Tensor::scalar(value), "constant", site);
  }
  // Uniform in [low, high). The key decides the bits (with the run's seed, step and replica); absent, the
  // builder gives each call its own.
  Value random_uniform(const TensorSpec& spec, double low = 0, double high = 1,
                       std::optional<std::int64_t> key = std::nullopt,
                       SourceSite site = SourceSite::current());

  // --- variables
  // Copies the initial value. The variable lives on the device() of the builder, unless its declaration names one.
  VariableRef variable(std::string_view name, const Tensor& initial, SourceSite site = SourceSite::current());
  VariableRef variable(VariableDecl decl, SourceSite site = SourceSite::current());
  Value read(const VariableRef& variable, SourceSite site = SourceSite::current());
  // The new value, as a Value.
  Value assign(const VariableRef& variable, const Value& value, SourceSite site = SourceSite::current());
  Value assign_add(const VariableRef& variable, const Value& delta, SourceSite site = SourceSite::current());

  // --- C++ code as a node
  std::vector<Value> call(std::string_view name, std::span<const Value> inputs,
                          std::span<const TensorSpec> outputs, KernelFn function, CallOptions options = {},
                          SourceSite site = SourceSite::current());
  // Without inputs and outputs; returns the node, to be passed as `after`.
  NodeId call(std::string_view name, std::function<void()> function, CallOptions options = {},
              std::span<const NodeId> after = {}, SourceSite site = SourceSite::current());

  // --- any op, by name
  std::vector<Value> op(std::string_view op, std::span<const Value> inputs,
                        std::vector<Attribute> attributes = {}, std::string_view name = {},
                        SourceSite site = SourceSite::current());
  // The first output of such a node.
  Value op1(std::string_view op, std::initializer_list<Value> inputs, std::vector<Attribute> attributes = {},
            std::string_view name = {}, SourceSite site = SourceSite::current());
  NodeId node(const OpDef& op, std::string_view name, std::span<const Value> inputs,
              std::vector<Attribute> attributes, std::vector<Graph> regions, SourceSite site,
              std::span<const TensorSpec> declared = {});
  std::vector<Value> outputs_of(NodeId node);
  // A plain edge: `node` runs after `before`.
  void run_after(NodeId node, NodeId before);

  // --- names and places
  class [[nodiscard]] Guard {
   public:
    Guard(std::string& slot, std::string value) : slot_(slot), old_(std::exchange(slot, std::move(value))) {}
    ~Guard() { slot_ = std::move(old_); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::string& slot_;
    std::string old_;
  };
  Guard scope(std::string_view name);     // prefixes names with "name/"
  Guard device(std::string_view device);  // places nodes and variables; any spelling

  // --- results
  void result(const Value& value, SourceSite site = SourceSite::current());
  // The finished graph; the builder is empty afterwards. Throws FailedPrecondition inside a region.
  Graph finish();
  // The graph as it stands.
  const Graph& graph() const { return graph_; }

 private:
  friend class internal::BuilderAccess;  // documents the private functions that other rooms call
  friend struct internal::RegionTrace;
  friend class Value;
  struct Maker {
    SourceSite site;
    std::string name;          // Provenance::made_by; empty: the user
    std::uint64_t origin = 0;  // Provenance::origin
    GradientMark gradient = GradientMark::kNone;
  };
  explicit GraphBuilder(GraphBuilder* parent);
  GraphBuilder& innermost();
  GraphBuilder& outermost();
  VariableRef find_or_declare(VariableDecl decl, SourceSite site);
  std::int64_t new_key() { return outermost().next_key_--; }
  void keep_trips(NodeId loop);
  Value import(const Value& value);
  const TensorSpec* variable_spec(std::string_view name) const;
  void order_effects(NodeId node);
  Value import_shape(const Value& value);
  Value add_parameter(std::string_view name, const TensorSpec& spec, SourceSite site);
  NodeId add_call(std::string_view name, std::span<const Value> inputs, std::span<const TensorSpec> outputs,
                  KernelFn function, const CallOptions& options, SourceSite site);

  Graph graph_;
  internal::BuilderTicket* ticket_ = nullptr;  // identifies this builder to its values
  GraphBuilder* parent_ = nullptr;
  bool in_replicas_ = false;  // builds the code of one replica, which stands for several
  GraphBuilder* child_ = nullptr;
  std::string scope_;
  bool has_outer_scope_ = false;  // scope_ begins with the scopes of the graphs around this one
  std::string device_;
  std::optional<Maker> maker_;  // of the outermost: see BuilderAccess::made_at
  NodeView::VariableSpecs variable_specs_;
  std::int64_t next_key_ = -1;
  std::vector<std::pair<Value, NodeId>> captures_;  // value of the parent -> parameter here
  std::vector<std::pair<Value, Value>> shapes_;     // shape operand of an enclosing graph -> the same here
  struct Order {
    NodeId last_write;
    std::vector<NodeId> reads;
  };
  NameMap<Order> order_;
  NodeId barrier_;
  std::vector<NodeId> since_barrier_;
};

}  // namespace lockstep
