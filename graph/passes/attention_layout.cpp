// graph/passes/attention_layout.cpp - values are followed through reshapes to the transposes that made them, or that they feed.
#include "lockstep/graph/passes/internal/attention_layout.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/graph/ops/fused/internal/attention.h"
#include "lockstep/graph/ops/rules/internal/axes.h"

namespace lockstep::internal {
namespace {

using Ints = std::vector<std::int64_t>;

constexpr const char* kWhy = "attention without transposes";

class Folder {
 public:
  Folder(Rewriter& edit, NodeId attention) : edit_(edit), graph_(edit.graph()), old_(attention) {}

  void run() {
    if (!find()) return;
    const bool packed = find_packed() || find_packed_rows();
    if (!packed && !find_rows_first()) return;
    std::vector<Attribute> attributes = attributes_of(old_);
    if (packed) {
      const Shape& q = shape(node(old_).inputs()[0]);
      sources_ = {reshaped(whole_, {batch_, q.dim(-2), 3, heads_, q.dim(-1)}, old_)};
      attributes.push_back({"packed", true});
    } else {
      attributes.push_back({"layout", std::string("rows_first")});
    }
    std::vector<ValueId> inputs = sources_;
    if (masked_) inputs.push_back(node(old_).inputs()[3]);
    const NodeId made = insert(old_, kAttention, inputs, attributes);
    const std::vector<ValueId> before(node(old_).inputs().begin(), node(old_).inputs().end());
    std::vector<ValueId> loose = before;
    for (const NodeId grad : grads_) {
      std::vector<ValueId> read = inputs;
      const ValueId flow = node(grad).inputs().back();
      loose.push_back(flow);
      read.insert(read.end(), {ValueId{made, 0}, ValueId{made, 1}, rows_first_of(flow, grad)});
      const NodeId made_back = insert(grad, kAttentionGrad, read, attributes);
      if (packed) {
        replace_joined(grad, made_back);
      } else {
        for (std::uint32_t i = 0; i < 3; ++i) turn_back({grad, i}, {made_back, i});
      }
      renames_.emplace_back(made_back, std::string(node(grad).name()));
      edit_.erase(grad);
    }
    turn_back({old_, 0}, {made, 0});
    renames_.emplace_back(made, std::string(node(old_).name()));
    edit_.erase(old_);
    for (const auto& [id, name] : renames_) edit_.rename(id, name);
    for (const ValueId value : loose) erase_unread(value.node);
  }

 private:
  const Node& node(NodeId id) const { return graph_.node(id); }
  const Shape& shape(ValueId value) const { return graph_.spec(value).shape; }

  // --- nodes that only say how elements lie

  // On the same device, for the same replica, after nothing but what it reads, and nothing waits for it.
  bool is_plain(const Node& other) const {
    return other.device() == node(old_).device() && other.controls().empty() &&
           edit_.control_users(other.id()).empty() &&
           other.provenance().replica == node(old_).provenance().replica;
  }
  bool is_alias(const Node& other) const { return other.op().traits.alias && is_plain(other); }
  bool transposes(const Node& other, const Ints& perm) const {
    return &other.op() == &transpose_ && is_plain(other) && *other.find<Ints>("perm") == perm;
  }
  // The value under its first name.
  ValueId first_name(ValueId value) const {
    while (is_alias(node(value.node))) value = node(value.node).inputs()[0];
    return value;
  }
  // The readers of a value under all its names.
  void readers_of(ValueId value, std::vector<Use>& readers) const {
    for (const Use& use : edit_.uses(value)) {
      if (use.user.valid() && use.index == 0 && is_alias(node(use.user))) {
        readers_of({use.user, 0}, readers);
      } else {
        readers.push_back(use);
      }
    }
  }

  // --- what there is to change

  bool find() {
    const Node& attention = node(old_);
    if (attention.find<bool>("packed") != nullptr || attention.find<std::string>("layout") != nullptr)
      return false;
    masked_ = attention.find<bool>("mask") != nullptr && *attention.find<bool>("mask");
    if (attention.inputs().size() != (masked_ ? 4U : 3U)) return false;
    for (const ValueId input : attention.inputs()) {
      if (!shape(input).is_known()) return false;
    }
    for (const Use& use : edit_.uses({old_, 1})) {
      if (!use.user.valid()) return false;
      const Node& grad = node(use.user);
      const std::size_t first = attention.inputs().size();
      if (grad.op().name != kAttentionGrad || use.index != first + 1 ||
          grad.inputs()[first] != ValueId{old_, 0} ||
          !std::ranges::equal(grad.inputs().first(first), attention.inputs()) ||
          !std::ranges::equal(grad.attributes(), attention.attributes(),
                              [](const Attribute& a, const Attribute& b) {
                                return a.name == b.name && same_value(a.value, b.value);
                              }))
        return false;
      grads_.push_back(use.user);
    }
    return true;
  }

  // The scores are [batch, heads, queries, keys] from now on.
  bool keeps_mask() const {
    if (!masked_) return true;
    const Shape &q = shape(node(old_).inputs()[0]), &mask = shape(node(old_).inputs()[3]);
    if (q.rank() == 4 && q[0] == batch_ && q[1] == heads_) return true;
    for (std::size_t axis = 0; axis + 2 < mask.rank(); ++axis) {
      if (mask[axis] != 1) return false;
    }
    return mask.rank() <= 4;
  }

  // q, k or v before it was transposed.
  std::optional<ValueId> before_transpose(ValueId value) const {
    const Node& turn = node(first_name(value).node);
    if (!transposes(turn, {0, 2, 1, 3})) return std::nullopt;
    const Shape& turned = turn.outputs()[0].shape;
    if (turned.dim(-2) != shape(value).dim(-2) || turned.dim(-1) != shape(value).dim(-1)) return std::nullopt;
    return turn.inputs()[0];
  }

  bool find_rows_first() {
    sources_.clear();
    for (std::size_t i = 0; i < 3; ++i) {
      const std::optional<ValueId> source = before_transpose(node(old_).inputs()[i]);
      if (!source) return false;
      const Shape& rows = shape(*source);
      if (i == 0) {
        batch_ = rows[0];
        heads_ = rows[2];
      }
      if (rows[0] != batch_ || rows[2] != heads_) return false;
      sources_.push_back(*source);
    }
    return keeps_mask();
  }

  // Part i of three equal ones along an axis; from there on a part has `inner` elements.
  struct Third {
    ValueId whole;
    std::uint32_t part = 0;
    std::int64_t inner = 1;
  };
  std::optional<Third> third_of(ValueId value) const {
    const ValueId piece = first_name(value);
    const Node& split = node(piece.node);
    if (&split.op() != &split_ || !is_plain(split) || split.outputs().size() != 3) return std::nullopt;
    for (const TensorSpec& output : split.outputs()) {
      if (output.shape != split.outputs()[0].shape) return std::nullopt;
    }
    return Third{split.inputs()[0], piece.output, inner_of(split, shape(piece))};
  }
  // Of a node with an axis: how many elements a value has from there on.
  static std::int64_t inner_of(const Node& joined, const Shape& part) {
    auto axis = *joined.find<std::int64_t>("axis");
    if (axis < 0) axis += static_cast<std::int64_t>(part.rank());
    std::int64_t inner = 1;
    for (auto at = static_cast<std::size_t>(axis); at < part.rank(); ++at) inner *= part[at];
    return inner;
  }
  // The three are q, k and v, in this order, of one value, each cut where it has `inner` elements left.
  std::optional<ValueId> whole_of(const std::array<ValueId, 3>& parts, std::int64_t inner) const {
    ValueId whole;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::optional<Third> third = third_of(parts[i]);
      if (!third || third->part != i || third->inner != inner || (i > 0 && third->whole != whole))
        return std::nullopt;
      whole = third->whole;
    }
    return whole;
  }

  // Parts of a value that was transposed as a whole.
  bool find_packed() {
    const std::span<const ValueId> read = node(old_).inputs();
    const std::optional<ValueId> whole = whole_of({read[0], read[1], read[2]}, shape(read[0]).num_elements());
    if (!whole) return false;
    const Node& turn = node(first_name(*whole).node);
    if (!transposes(turn, {2, 0, 3, 1, 4})) return false;
    const Shape& rows = shape(turn.inputs()[0]);  // [batch, rows, 3, heads, width]
    if (rows[2] != 3 || rows[1] != shape(read[0]).dim(-2) || rows[4] != shape(read[0]).dim(-1)) return false;
    batch_ = rows[0];
    heads_ = rows[3];
    whole_ = turn.inputs()[0];
    return keeps_mask() && std::ranges::all_of(grads_, [&](NodeId grad) { return joined(grad).valid(); });
  }
  // Parts of the rows of a value, each of which was transposed.
  bool find_packed_rows() {
    if (!find_rows_first()) return false;
    rows_ = shape(sources_[0]);
    const std::optional<ValueId> whole =
        whole_of({sources_[0], sources_[1], sources_[2]}, rows_[2] * rows_[3]);
    if (!whole) return false;
    whole_ = *whole;
    in_rows_ = std::ranges::all_of(grads_, [&](NodeId grad) { return joined_rows(grad).valid(); });
    return in_rows_;
  }

  // The one reader of a value under all its names; none if there are several.
  std::optional<Use> only_reader(ValueId value) const {
    std::vector<Use> readers;
    readers_of(value, readers);
    return readers.size() == 1 && readers[0].user.valid() ? std::optional(readers[0]) : std::nullopt;
  }
  // Joins three equal parts where they have `inner` elements left.
  bool joins(const Node& join, std::int64_t inner) const {
    return &join.op() == &concat_ && is_plain(join) && join.inputs().size() == 3 &&
           shape(join.inputs()[0]) == shape(join.inputs()[1]) &&
           shape(join.inputs()[0]) == shape(join.inputs()[2]) &&
           inner_of(join, shape(join.inputs()[0])) == inner;
  }

  // The transpose that puts together what flows back into q, k and v, if nothing else reads that; else invalid.
  NodeId joined(NodeId grad) const {
    NodeId concat;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::optional<Use> reader = only_reader({grad, i});
      if (!reader || reader->index != i || (i > 0 && reader->user != concat)) return {};
      concat = reader->user;
    }
    if (!joins(node(concat), node(grad).outputs()[0].shape.num_elements())) return {};
    const std::optional<Use> reader = only_reader({concat, 0});
    if (!reader || !transposes(node(reader->user), {1, 3, 0, 2, 4})) return {};
    return node(reader->user).outputs()[0].shape == shape(whole_) ? reader->user : NodeId();
  }
  // The same, if each is transposed before.
  NodeId joined_rows(NodeId grad) const {
    NodeId concat;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::optional<Use> turn = only_reader({grad, i});
      if (!turn || !transposes(node(turn->user), {0, 2, 1, 3}) ||
          node(turn->user).outputs()[0].shape != rows_)
        return {};
      const std::optional<Use> reader = only_reader({turn->user, 0});
      if (!reader || reader->index != i || (i > 0 && reader->user != concat)) return {};
      concat = reader->user;
    }
    const bool fits =
        joins(node(concat), rows_[2] * rows_[3]) && node(concat).outputs()[0].shape == shape(whole_);
    return fits ? concat : NodeId();
  }

  // --- changes

  std::vector<Attribute> attributes_of(NodeId id) const {
    return {node(id).attributes().begin(), node(id).attributes().end()};
  }

  // In the place of another one.
  NodeId insert(NodeId origin, std::string_view op, std::vector<ValueId> inputs,
                std::vector<Attribute> attributes) {
    Rewriter::NewNode made{.op = op, .name = node(origin).name()};
    made.inputs = std::move(inputs);
    made.attributes = std::move(attributes);
    made.controls.assign(node(origin).controls().begin(), node(origin).controls().end());
    made.origin = origin;
    made.why = kWhy;
    return edit_.insert(std::move(made));
  }
  ValueId transposed(ValueId value, NodeId origin) {
    return {edit_.insert({.op = "transpose",
                          .name = str(node(origin).name(), "/transpose"),
                          .inputs = {value},
                          .attributes = {{"perm", Ints{0, 2, 1, 3}}},
                          .origin = origin,
                          .why = kWhy}),
            0};
  }
  ValueId reshaped(ValueId value, const Shape& to, NodeId origin) {
    if (shape(value) == to) return value;
    return {edit_.insert({.op = "reshape",
                          .name = str(node(origin).name(), "/reshape"),
                          .inputs = {value},
                          .attributes = {{"shape", to}},
                          .origin = origin,
                          .why = kWhy}),
            0};
  }

  // What flows into out, as [batch, rows, heads, width].
  ValueId rows_first_of(ValueId flow, NodeId origin) {
    const std::optional<ValueId> source = before_transpose(flow);
    if (source && shape(*source)[0] == batch_ && shape(*source)[2] == heads_) return *source;
    const Shape heads_first = {batch_, heads_, shape(flow).dim(-2), shape(flow).dim(-1)};
    return transposed(reshaped(flow, heads_first, origin), origin);
  }

  // Readers that transpose the old value read the new one as it lies; for the others it is transposed.
  void turn_back(ValueId old, ValueId made) {
    std::vector<Use> readers;
    readers_of(old, readers);
    for (const Use& use : readers) {
      if (!use.user.valid() || !transposes(node(use.user), {0, 2, 1, 3}) ||
          node(use.user).outputs()[0].shape != shape(made))
        continue;
      edit_.replace_uses({use.user, 0}, made);
      erase_unread(use.user, old.node);
    }
    if (edit_.uses(old).empty()) return;
    const NodeId origin = made.node;
    edit_.replace_uses(old, reshaped(transposed(made, origin), shape(old), origin));
  }

  void replace_joined(NodeId grad, NodeId made) {
    const NodeId joint = in_rows_ ? joined_rows(grad) : joined(grad);
    edit_.replace_uses({joint, 0}, reshaped({made, 0}, node(joint).outputs()[0].shape, made));
    erase_unread(joint, grad);
  }

  // Up to a node that is to stay.
  void erase_unread(NodeId id, NodeId end = {}) {
    if (!graph_.contains(id) || id == end || edit_.is_used(id)) return;
    const Node& unread = node(id);
    const OpDef& op = unread.op();
    const bool moves =
        op.traits.alias || op.traits.gives_shape || &op == &transpose_ || &op == &split_ || &op == &concat_;
    if (!moves) return;
    const std::vector<ValueId> inputs(unread.inputs().begin(), unread.inputs().end());
    edit_.erase(id);
    for (const ValueId input : inputs) erase_unread(input.node, end);
  }

  Rewriter& edit_;
  const Graph& graph_;
  NodeId old_;
  std::vector<NodeId> grads_;
  bool masked_ = false;
  std::vector<ValueId> sources_;  // what is read instead of q, k and v
  ValueId whole_;                 // if they are parts of one
  Shape rows_;                    // of each part, [batch, rows, heads, width]
  bool in_rows_ = false;          // which is cut into them before it is transposed
  std::int64_t batch_ = 0, heads_ = 0;
  std::vector<std::pair<NodeId, std::string>> renames_;
  const OpDef& transpose_ = OpRegistry::global().get("transpose");
  const OpDef& split_ = OpRegistry::global().get("split");
  const OpDef& concat_ = OpRegistry::global().get("concat");
};

}  // namespace

void fold_layout(Rewriter& edit, NodeId attention) { Folder(edit, attention).run(); }

}  // namespace lockstep::internal
