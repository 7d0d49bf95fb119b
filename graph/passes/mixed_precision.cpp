// graph/passes/mixed_precision.cpp - products and what lies between them are computed in 16 bits; variables stay f32.
#include "lockstep/graph/passes/mixed_precision.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/graph/ir/internal/gradient_nodes.h"
#include "lockstep/graph/passes/internal/conditional_updates.h"
#include "lockstep/graph/passes/internal/loss_scale.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

using internal::kMixedPrecision;
constexpr double kScaleOfF16 = 32768, kLargestScale = 1 << 24;

constexpr auto kProducts =
    std::to_array<std::string_view>({"matmul", "conv2d", "conv2d_backward_filter", "conv2d_backward_input"});
// Their results need no more digits or exponents than their inputs have, or, of softmax, are computed in f32 inside.
constexpr auto kFollowers = std::to_array<std::string_view>({"abs",
                                                             "add",
                                                             "avg_pool",
                                                             "avg_pool_backward",
                                                             "clip",
                                                             "div",
                                                             "dropout",
                                                             "gelu",
                                                             "gelu_grad",
                                                             "max_pool",
                                                             "max_pool_backward",
                                                             "max_pool_pick",
                                                             "maximum",
                                                             "minimum",
                                                             "mul",
                                                             "neg",
                                                             "relu",
                                                             "relu_grad",
                                                             "sigmoid",
                                                             "sign",
                                                             "softmax",
                                                             "softmax_grad",
                                                             "square",
                                                             "sub",
                                                             "tanh",
                                                             "where"});
constexpr auto kMoves = std::to_array<std::string_view>({"pad", "split", "unslice", "unslice_at"});
constexpr auto kSums = std::to_array<std::string_view>({"sum", "sum_to"});

enum class Kind : std::uint8_t { kFull, kProduct, kFollower, kMove, kSum };

const OptionTable<MixedPrecisionOptions>& mixed_precision_options() {
  static const auto table =
      OptionTable<MixedPrecisionOptions>(std::string(kMixedPrecision),
                                         "products and what lies between them are computed in 16 bits")
          .option("dtype", &MixedPrecisionOptions::dtype, "bf16 or f16")
          .option("loss_scale", &MixedPrecisionOptions::loss_scale,
                  "of gradients, at first; 1: none; 0: none for bf16, 32768 for f16")
          .option("growth_steps", &MixedPrecisionOptions::growth_steps,
                  "good steps until it doubles; 0: it stays")
          .option("products", &MixedPrecisionOptions::products, "more ops that always change")
          .option("followers", &MixedPrecisionOptions::followers, "more ops that change between products")
          .option("full", &MixedPrecisionOptions::full, "ops that stay f32")
          .option("keep", &MixedPrecisionOptions::keep, "nodes, or scopes, that stay f32");
  return table;
}

class Kinds {
 public:
  explicit Kinds(const MixedPrecisionOptions& options) : keep_(options.keep) {
    const auto add = [&](const auto& names, Kind kind) {
      for (const auto& name : names) kinds_[&OpRegistry::global().get(name)] = kind;
    };
    add(kProducts, Kind::kProduct);
    add(kFollowers, Kind::kFollower);
    add(kMoves, Kind::kMove);
    add(kSums, Kind::kSum);
    add(options.products, Kind::kProduct);
    add(options.followers, Kind::kFollower);
    add(options.full, Kind::kFull);
  }

  Kind of(const Node& node) const {
    if (!node.regions().empty() || is_kept(node.name()) || has(effects_of(node), Effect::kHost))
      return Kind::kFull;
    // What this pass made stays as it is: a scale would be put in, and taken out, in 16 bits.
    const StringId maker = node.provenance().made_by;
    if (maker.valid() && node.graph().text(maker) == kMixedPrecision) return Kind::kFull;
    const auto found = kinds_.find(&node.op());
    if (found != kinds_.end()) {
      if (found->second == Kind::kSum && !internal::is_gradient_share(node)) return Kind::kFull;
      return found->second;
    }
    const OpTraits& traits = node.op().traits;
    const bool moves = (traits.moves_elements || traits.alias) && !traits.reads_variable &&
                       !traits.updates_variable && !traits.gives_attribute &&
                       traits.role == ReplicaRole::kNone;
    return moves ? Kind::kMove : Kind::kFull;
  }

 private:
  // With its gradient: "gradients/head/matmul/..." belongs to "head/", and so does "train/gradients/head/...".
  bool is_kept(std::string_view name) const {
    constexpr std::string_view kGradient = "gradients/";
    for (std::size_t at = name.rfind(kGradient); at != std::string_view::npos && at > 0;
         at = name.rfind(kGradient, at - 1)) {
      if (name[at - 1] == '/') return is_kept(name.substr(at));
    }
    while (name.starts_with(kGradient)) name.remove_prefix(kGradient.size());
    return std::ranges::any_of(keep_, [&](const std::string& kept) {
      return kept.ends_with('/') ? name.starts_with(kept)
                                 : name == kept || (name.starts_with(kept) && name[kept.size()] == '/');
    });
  }

  const std::vector<std::string>& keep_;
  std::map<const OpDef*, Kind> kinds_;
};

class Painter {
 public:
  Painter(Graph& outermost, Graph& level, DType dtype, const Kinds& kinds)
      : outermost_(outermost), graph_(level), dtype_(dtype), kinds_(kinds) {}

  bool run() {
    order_ = graph_.topological_order();
    kind_.resize(graph_.id_bound());
    bool any = false;
    for (const NodeId id : order_) {
      kind_[id.index()] = kind_of(graph_.node(id));
      any = any || kind_[id.index()] == Kind::kProduct;
    }
    if (!any) return false;
    choose();
    edit_.emplace(graph_, kMixedPrecision, &outermost_);
    for (const NodeId id : order_) {
      if (chosen_[id.index()]) change(id);
    }
    for (const ValueId value : narrowed_) widen(value);
    if (results_) edit_->set_results(std::move(*results_));
    return true;
  }

 private:
  bool is_f32(ValueId value) const { return graph_.spec(value).dtype == DType::kF32; }

  // Nodes without values of f32 are left alone.
  Kind kind_of(const Node& node) const {
    const auto has_f32 = [](const TensorSpec& spec) { return spec.dtype == DType::kF32; };
    if (std::ranges::none_of(node.outputs(), has_f32) ||
        std::ranges::none_of(node.inputs(), [&](ValueId input) { return is_f32(input); }))
      return Kind::kFull;
    return kinds_.of(node);
  }

  // --- which nodes change

  // Of what it reads, as f32, and of what it gives: how many elements; none if that is not known.
  std::optional<std::int64_t> elements_read(const Node& node) const {
    std::int64_t all = 0;
    for (const ValueId input : node.inputs()) {
      if (!is_f32(input)) continue;
      if (!graph_.spec(input).shape.is_known()) return std::nullopt;
      all += graph_.spec(input).shape.num_elements();
    }
    return all;
  }
  static std::optional<std::int64_t> elements_given(const Node& node) {
    std::int64_t all = 0;
    for (const TensorSpec& spec : node.outputs()) {
      if (!spec.shape.is_known()) return std::nullopt;
      all += spec.shape.num_elements();
    }
    return all;
  }
  // A cast in front of it costs no more than one behind it, or the other way round.
  bool is_no_larger_before(const Node& node) const {
    const auto before = elements_read(node), after = elements_given(node);
    return before && after ? *before <= *after : keeps_size(node);
  }
  bool is_no_larger_after(const Node& node) const {
    const auto before = elements_read(node), after = elements_given(node);
    return before && after ? *after <= *before : keeps_size(node);
  }
  bool keeps_size(const Node& node) const { return node.op().traits.alias || &node.op() == &transpose_; }

  void choose() {
    const std::size_t bound = graph_.id_bound();
    std::vector<bool> after(bound),
        before(bound);  // does a product come before it, or after it, with only followers between?
    std::vector<bool> read_elsewhere(bound);  // ... and is it read by others besides?
    chosen_.assign(bound, false);
    for (const NodeId id : order_) {
      const Node& node = graph_.node(id);
      const Kind kind = kind_[id.index()];
      after[id.index()] = kind == Kind::kProduct ||
                          (kind != Kind::kFull && std::ranges::any_of(node.inputs(), [&](ValueId input) {
                             return is_f32(input) && after[input.node.index()];
                           }));
    }
    for (const ValueId result : graph_.results()) read_elsewhere[result.node.index()] = true;
    for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
      const Node& node = graph_.node(*id);
      const std::size_t at = id->index();
      const Kind kind = kind_[at];
      const bool leads = kind == Kind::kProduct || (kind != Kind::kFull && kind != Kind::kSum && before[at]);
      before[at] = leads;
      chosen_[at] = kind == Kind::kProduct || (leads && after[at]) ||
                    (leads && kind == Kind::kMove && !read_elsewhere[at] && is_no_larger_before(node));
      for (const ValueId input : node.inputs()) {
        if (!is_f32(input)) continue;
        if (leads) before[input.node.index()] = true;
        if (!chosen_[at]) read_elsewhere[input.node.index()] = true;
      }
    }
    for (const NodeId id : order_) {
      const Node& node = graph_.node(id);
      const std::size_t at = id.index();
      if (chosen_[at] || !after[at]) continue;
      const bool all = std::ranges::all_of(
          node.inputs(), [&](ValueId input) { return !is_f32(input) || chosen_[input.node.index()]; });
      if (!all) continue;
      chosen_[at] = kind_[at] == Kind::kSum || (kind_[at] == Kind::kMove && is_no_larger_after(node));
    }
  }

  // --- changing them

  std::string cast_name(ValueId value, DType to) const {
    std::string name = graph_.node(value.node).name();
    if (value.output > 0) name += str("_", value.output);
    return str(name, "/", to);
  }

  ValueId cast(ValueId value, DType to) {
    const auto [found, is_new] = casts_.try_emplace(value);
    if (is_new) {
      const std::string name = cast_name(value, to);
      found->second = {edit_->insert({.op = "cast",
                                      .name = name,
                                      .inputs = {value},
                                      .attributes = {{"dtype", to}},
                                      .origin = value.node,
                                      .why = to == DType::kF32 ? "read in f32" : "read in 16 bits"}),
                       0};
    }
    return found->second;
  }

  void change(NodeId id) {
    const Node& node = graph_.node(id);
    std::vector<ValueId> wide;
    for (std::uint32_t output = 0; output < node.outputs().size(); ++output) {
      if (is_f32({id, output})) wide.push_back({id, output});
    }
    Rewriter::NewNode changed{.op = node.op().name};
    for (const ValueId input : node.inputs()) {
      // What was chosen has changed already.
      changed.inputs.push_back(is_f32(input) ? cast(input, dtype_) : input);
    }
    changed.attributes = node.attributes();
    changed.why = "computed in 16 bits";
    edit_->become(id, std::move(changed));
    // Some ops give f32 whatever they read.
    std::ranges::copy_if(wide, std::back_inserter(narrowed_), [&](ValueId value) { return !is_f32(value); });
  }

  // Readers that were not chosen get f32.
  void widen(ValueId value) {
    for (const Use& use : edit_->uses(value)) {
      if (!use.user.valid()) {
        if (!results_) results_ = graph_.results();
        (*results_)[use.index] = cast(value, DType::kF32);
      } else if (!chosen_[use.user.index()] && !graph_.node(use.user).op().traits.gives_shape) {
        edit_->set_input(use.user, use.index, cast(value, DType::kF32));
      }
    }
  }

  Graph& outermost_;
  Graph& graph_;
  DType dtype_;
  const Kinds& kinds_;
  std::optional<Rewriter> edit_;
  std::vector<NodeId> order_;
  std::vector<Kind> kind_;    // by node
  std::vector<bool> chosen_;  // by node
  std::vector<ValueId> narrowed_;
  std::map<ValueId, ValueId> casts_;
  std::optional<std::vector<ValueId>> results_;  // of the graph, once one of them has changed
  const OpDef& transpose_ = OpRegistry::global().get("transpose");
};

class MixedPrecision final : public Pass {
 public:
  MixedPrecision(MixedPrecisionOptions options, DType dtype)
      : options_(std::move(options)), dtype_(dtype), kinds_(options_) {}
  std::string_view name() const override { return kMixedPrecision; }
  std::string to_string() const override { return mixed_precision_options().print(options_); }

 private:
  double scale() const {
    if (options_.loss_scale != 0) return options_.loss_scale;
    return dtype_ == DType::kF16 ? kScaleOfF16 : 1;
  }

  PassOutcome run_on(Graph& graph, PassContext& /*context*/) override {
    bool changed = false;
    if (scale() != 1) {
      const internal::LossScale how{kMixedPrecision, scale(), options_.growth_steps};
      changed = internal::scale_gradients(graph, how);
    }
    for_each_level(graph,
                   [&](Graph& level) { changed = Painter(graph, level, dtype_, kinds_).run() || changed; });
    return outcome_of(changed);
  }

  MixedPrecisionOptions options_;
  DType dtype_;
  Kinds kinds_;
};

}  // namespace

std::unique_ptr<Pass> make_mixed_precision(MixedPrecisionOptions options) {
  const std::optional<DType> dtype = parse_dtype(options.dtype);
  if (!dtype || size_of(*dtype) != 2)
    throw BadOptionValue(str(kMixedPrecision, ": dtype must be bf16 or f16, got '", options.dtype, "'"));
  const double scale = options.loss_scale;
  int exponent = 0;
  const bool is_power =
      scale == 0 || (scale >= 1 && scale <= kLargestScale && std::frexp(scale, &exponent) == 0.5);
  if (!is_power)
    throw BadOptionValue(
        str(kMixedPrecision, ": loss_scale must be a power of two from 1 to 2^24, or 0, got ", scale));
  if (options.growth_steps < 0)
    throw BadOptionValue(
        str(kMixedPrecision, ": growth_steps must be 0 or more, got ", options.growth_steps));
  for (const std::vector<std::string>* names : {&options.products, &options.followers, &options.full}) {
    for (const std::string& name : *names) {
      if (OpRegistry::global().find(name) == nullptr)
        throw BadOptionValue(str(kMixedPrecision, ": there is no op '", name, "'"));
    }
  }
  return std::make_unique<MixedPrecision>(std::move(options), *dtype);
}

void internal::register_mixed_precision(PassRegistry& registry) {
  add_pass(registry, mixed_precision_options(), make_mixed_precision);
}

}  // namespace lockstep
