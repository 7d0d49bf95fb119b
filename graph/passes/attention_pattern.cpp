// graph/passes/attention_pattern.cpp - the nodes are followed upwards from the last product, then down from the shares.
#include "lockstep/graph/passes/internal/attention_pattern.h"

#include <cstddef>

#include "lockstep/core/tensor.h"

namespace lockstep::internal {
namespace {

bool flag(const Node& node, const char* name) {
  const bool* const found = node.find<bool>(name);
  return found != nullptr && *found;
}

// A value times a constant of one element, given as the value and a factor.
struct Scaled {
  ValueId value;
  double factor = 1;
};

class Finder {
 public:
  explicit Finder(const Rewriter& edit) : edit_(edit), graph_(edit.graph()) {}

  std::optional<AttentionPattern> find(NodeId out) {
    if (!find_forward(out) || !find_backward()) return std::nullopt;
    for (const bool of_q : {true, false}) take_scale(of_q);
    found_.forward.push_back(out);
    return found_;
  }

 private:
  const Node& node(ValueId value) const { return graph_.node(value.node); }
  const Shape& shape(ValueId value) const { return graph_.spec(value).shape; }
  bool is(const Node& node, const OpDef& op) const { return &node.op() == &op; }
  bool is_product(const Node& node, bool transpose_a, bool transpose_b) const {
    return is(node, matmul_) && flag(node, "transpose_a") == transpose_a &&
           flag(node, "transpose_b") == transpose_b;
  }
  bool is_along_rows(const Node& node) const {
    const auto axis = *node.find<std::int64_t>("axis");
    return axis == -1 || axis == static_cast<std::int64_t>(node.outputs()[0].shape.rank()) - 1;
  }
  // The node that alone reads the value, as input `index`; null: there is none.
  const Node* only_reader(ValueId value, std::optional<std::uint32_t> index = {}) const {
    const std::vector<Use> uses = edit_.uses(value);
    if (uses.size() != 1 || !uses[0].user.valid() || (index && uses[0].index != *index)) return nullptr;
    return &graph_.node(uses[0].user);
  }

  // What this node multiplies by a constant; none: it does something else.
  std::optional<Scaled> scaled(const Node& node) const {
    const bool divides = is(node, div_);
    if (!divides && !is(node, mul_)) return std::nullopt;
    for (const std::size_t which : {std::size_t{1}, std::size_t{0}}) {
      if (divides && which == 0) break;
      const Node& other = graph_.node(node.inputs()[which].node);
      const ValueId value = node.inputs()[1 - which];
      if (!is(other, constant_) || graph_.spec(value) != node.outputs()[0]) continue;
      const auto& number = *other.find<Tensor>("value");
      if (number.num_elements() != 1) continue;
      return Scaled{value, divides ? 1 / number.item() : number.item()};
    }
    return std::nullopt;
  }

  // --- forward

  bool find_forward(NodeId id) {
    const Node& out = graph_.node(id);
    if (!is_product(out, false, false)) return false;
    out_ = id;
    shares_ = out.inputs()[0];
    found_.v = out.inputs()[1];
    softmax_ = shares_;
    if (const Node& drops = node(shares_); is(drops, dropout_)) {
      found_.rate = *drops.find<double>("rate");
      found_.key = *drops.find<std::int64_t>("key");
      found_.forward.push_back(drops.id());
      softmax_ = drops.inputs()[0];
    }
    const Node& softmax = node(softmax_);
    if (!is(softmax, softmax_op_) || !is_along_rows(softmax)) return false;
    found_.forward.push_back(softmax.id());
    const ValueId scores = softmax.inputs()[0];
    if (!only_reader(scores)) return false;
    return find_product(scores) || find_mask(scores);
  }

  bool find_mask(ValueId masked) {
    const Node& add = node(masked);
    if (!is(add, add_)) return false;
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
      const ValueId scores = add.inputs()[which], mask = add.inputs()[1 - which];
      if (!only_reader(scores) || graph_.spec(scores) != add.outputs()[0] ||
          !fits(shape(mask), shape(scores)) || !find_product(scores))
        continue;
      found_.mask = mask;
      found_.forward.push_back(add.id());
      return true;
    }
    return false;
  }
  // More than two axes of a batch are more than the op's mask tells apart.
  static bool fits(const Shape& mask, const Shape& scores) { return mask.is_known() && scores.rank() <= 4; }

  bool find_product(ValueId scores) {
    const Node* product = &node(scores);
    std::optional<Scaled> scale = scaled(*product);
    if (scale) {
      if (!only_reader(scale->value)) return false;
      product = &node(scale->value);
    }
    if (!is_product(*product, false, true)) return false;
    const ValueId q = product->inputs()[0], k = product->inputs()[1];
    if (!has_same_heads(q, k) || !has_same_heads(q, found_.v)) return false;
    found_.q = q;
    found_.k = k;
    product_ = product->id();
    if (scale) {
      scaled_ = scores.node;
      found_.scale = scale->factor;
      found_.forward.push_back(scores.node);
    }
    found_.forward.push_back(product_);
    return true;
  }
  bool has_same_heads(ValueId a, ValueId b) const {
    const Shape &x = shape(a), &y = shape(b);
    if (!x.is_known() || !y.is_known() || x.rank() != y.rank() || x.rank() < 2) return false;
    for (std::size_t axis = 0; axis + 2 < x.rank(); ++axis) {
      if (x[axis] != y[axis]) return false;
    }
    return true;
  }

  // --- backward

  // False if anything reads scores or shares but attention and a gradient of it.
  bool find_backward() {
    NodeId grad;  // of softmax
    const auto is_read_as_expected = [&](ValueId value) {
      for (const Use& use : edit_.uses(value)) {
        if (!use.user.valid()) return false;
        const Node& reader = graph_.node(use.user);
        if (use.user == out_ && use.index == 0) continue;
        if (value != shares_ && use.user == shares_.node) continue;
        if (value == shares_ && use.index == 0 && !found_.dv.valid() && is_product(reader, true, false)) {
          found_.dv = use.user;
        } else if (value == softmax_ && use.index == 0 && !grad.valid() && is(reader, softmax_grad_)) {
          grad = use.user;
        } else {
          return false;
        }
      }
      return true;
    };
    if (!is_read_as_expected(shares_) || (softmax_ != shares_ && !is_read_as_expected(softmax_)))
      return false;
    if (found_.dv.valid()) {
      found_.flow = graph_.node(found_.dv).inputs()[1];
      found_.backward.push_back(found_.dv);
    }
    if (grad.valid() && (!find_flow_into(graph_.node(grad)) || !find_flow_out_of(graph_.node(grad))))
      return false;
    return found_.backward.empty() || shape(found_.flow) == graph_.node(out_).outputs()[0].shape;
  }

  bool find_flow_into(const Node& grad) {
    if (!is_along_rows(grad)) return false;
    found_.backward.push_back(grad.id());
    ValueId flow = grad.inputs()[1];
    if (!only_reader(flow)) return false;
    if (found_.rate) {
      const Node& drops = node(flow);
      if (!is(drops, dropout_) || *drops.find<double>("rate") != *found_.rate ||
          *drops.find<std::int64_t>("key") != found_.key)
        return false;
      found_.backward.push_back(drops.id());
      flow = drops.inputs()[0];
      if (!only_reader(flow)) return false;
    }
    const Node& product = node(flow);
    if (!is_product(product, false, true) || product.inputs()[1] != found_.v) return false;
    if (found_.dv.valid() && product.inputs()[0] != found_.flow) return false;
    found_.flow = product.inputs()[0];
    found_.backward.push_back(product.id());
    return true;
  }

  bool find_flow_out_of(const Node& grad) {
    ValueId scores{grad.id(), 0};
    if (scaled_.valid()) {
      const Node* const scales = only_reader(scores);
      const std::optional<Scaled> scale = scales == nullptr ? std::nullopt : scaled(*scales);
      if (!scale || scale->value != scores || scale->factor != found_.scale) return false;
      found_.backward.push_back(scales->id());
      scores = {scales->id(), 0};
    }
    for (const Use& use : edit_.uses(scores)) {
      if (!use.user.valid() || use.index != 0) return false;
      const Node& product = graph_.node(use.user);
      const ValueId other = product.inputs().size() == 2 ? product.inputs()[1] : scores;
      if (!found_.dq.valid() && is_product(product, false, false) && other == found_.k) {
        found_.dq = use.user;
      } else if (!found_.dk.valid() && is_product(product, true, false) && other == found_.q) {
        found_.dk = use.user;
      } else {
        return false;
      }
      found_.backward.push_back(use.user);
    }
    return found_.dq.valid() || found_.dk.valid();
  }

  // If q (or k) is scaled, and so is what flows back into it, the op can do both. Otherwise they stay.
  void take_scale(bool of_q) {
    ValueId& part = of_q ? found_.q : found_.k;
    NodeId& back = of_q ? found_.dq : found_.dk;
    const NodeId other = of_q ? found_.dk : found_.dq;
    const Node& scales = node(part);
    const std::optional<Scaled> scale = scaled(scales);
    if (!scale || !edit_.control_users(scales.id()).empty()) return;
    for (const Use& use : edit_.uses(part)) {
      const bool is_ours = (use.user == product_ && use.index == (of_q ? 0U : 1U)) ||
                           (other.valid() && use.user == other && use.index == 1);
      if (!is_ours) return;
    }
    if (back.valid()) {
      const Node* const scales_back = only_reader({back, 0});
      const std::optional<Scaled> same = scales_back == nullptr ? std::nullopt : scaled(*scales_back);
      if (!same || same->value != ValueId{back, 0} || same->factor != scale->factor) return;
      back = scales_back->id();
      found_.backward.push_back(back);
    }
    part = scale->value;
    found_.scale *= scale->factor;
    found_.forward.push_back(scales.id());
  }

  const Rewriter& edit_;
  const Graph& graph_;
  AttentionPattern found_;
  NodeId out_, product_, scaled_;  // scaled_: what scales the scores
  ValueId shares_, softmax_;       // what out is made of; what softmax gives
  const OpDef& matmul_ = OpRegistry::global().get("matmul");
  const OpDef& softmax_op_ = OpRegistry::global().get("softmax");
  const OpDef& softmax_grad_ = OpRegistry::global().get("softmax_grad");
  const OpDef& dropout_ = OpRegistry::global().get("dropout");
  const OpDef& constant_ = OpRegistry::global().get("constant");
  const OpDef& add_ = OpRegistry::global().get("add");
  const OpDef& mul_ = OpRegistry::global().get("mul");
  const OpDef& div_ = OpRegistry::global().get("div");
};

}  // namespace

std::optional<AttentionPattern> find_attention(const Rewriter& edit, NodeId out) {
  return Finder(edit).find(out);
}

}  // namespace lockstep::internal
