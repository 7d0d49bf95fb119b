// graph/check/verifier_rules_regions.cpp - the rules for nodes with regions, by kind.
#include "lockstep/graph/check/internal/verifier_rules.h"
#include "lockstep/graph/ir/internal/region_shapes.h"
#include "lockstep/graph/ir/replica_nodes.h"

namespace lockstep::internal::verifier {
namespace {

bool is_bool_scalar(const TensorSpec& spec) { return spec.dtype == DType::kBool && spec.shape.rank() == 0; }

// Is every value of spec `value` one of spec `wanted`?
bool admits(const TensorSpec& wanted, const TensorSpec& value) {
  if (!wanted.may_equal(value)) return false;
  for (std::size_t axis = 0; axis < wanted.shape.rank(); ++axis) {
    if (wanted.shape[axis] != kUnknown && value.shape[axis] == kUnknown) return false;
  }
  return true;
}

// A node with regions, all of whose inputs, parameters and results are known to exist.
class Signature {
 public:
  explicit Signature(NodeCheck& check) : check_(check), node_(check.node) {}

  void check_cond() {
    if (node_.inputs().empty()) return fail("needs a predicate as its first input");
    if (!is_bool_scalar(input(0))) return fail(str("the predicate must be bool[], got ", input(0)));
    for (std::size_t region = 0; region < 2; ++region) {
      if (!takes(region, node_.inputs().size() - 1, [](std::size_t i) { return i + 1; })) return;
    }
    const Graph& then_region = node_.regions()[0];
    const Graph& else_region = node_.regions()[1];
    if (then_region.results().size() != else_region.results().size()) {
      return fail(str("the branch 'then' gives ", then_region.results().size(), " results, 'else' gives ",
                      else_region.results().size()));
    }
    for (std::size_t i = 0; i < then_region.results().size(); ++i) {
      const TensorSpec& a = then_region.spec(then_region.results()[i]);
      const TensorSpec& b = else_region.spec(else_region.results()[i]);
      if (a.dtype == b.dtype && a.shape.rank() == b.shape.rank()) continue;
      fail(str("result ", i, " is ", a, " in the branch 'then' and ", b,
               " in 'else'; dtypes and ranks must be equal"));
    }
  }

  void check_while() {
    const std::int64_t* carried = node_.find<std::int64_t>("carried");
    if (carried == nullptr) return fail("needs the attribute 'carried' (int)");
    const std::size_t inputs = node_.inputs().size();
    if (*carried < 0 || static_cast<std::size_t>(*carried) > inputs) {
      return fail(str("'carried' is ", *carried, "; it must be between 0 and the ", inputs, " inputs"));
    }
    for (std::size_t region = 0; region < 2; ++region) {
      if (!takes(region, inputs, [](std::size_t i) { return i; })) return;
    }
    const Graph& condition = node_.regions()[0];
    if (condition.results().size() != 1 || !is_bool_scalar(condition.spec(condition.results()[0]))) {
      return fail(str("the region 'condition' must give one bool[], it gives ", specs_of_results(condition)));
    }
    const Graph& body = node_.regions()[1];
    if (body.results().size() != static_cast<std::size_t>(*carried)) {
      return fail(str("the region 'body' gives ", body.results().size(), " results for ", *carried,
                      " carried values"));
    }
    for (std::size_t i = 0; i < body.results().size(); ++i) {
      const TensorSpec& result = body.spec(body.results()[i]);
      const TensorSpec& wanted = parameter(body, i);
      if (!admits(wanted, result)) {
        fail(str("carried value ", i, " enters the region 'body' as ", wanted, " and leaves it as ", result));
      }
    }
  }

  void check_replicated() {
    const std::int64_t* replicas = node_.find<std::int64_t>("replicas");
    const std::int64_t* shared = node_.find<std::int64_t>("shared");
    if (replicas == nullptr) return fail("needs the attribute 'replicas' (int)");
    if (shared == nullptr) return fail("needs the attribute 'shared' (int)");
    if (*replicas < 1 || *replicas > kMaxReplicas) {
      return fail(str("'replicas' is ", *replicas, "; it must be between 1 and ", kMaxReplicas));
    }
    const std::size_t inputs = node_.inputs().size();
    if (*shared < 0 || static_cast<std::size_t>(*shared) > inputs) {
      return fail(str("'shared' is ", *shared, "; it must be between 0 and the ", inputs, " inputs"));
    }
    const auto n = static_cast<std::size_t>(*replicas);
    const auto common = static_cast<std::size_t>(*shared);
    if ((inputs - common) % n != 0) {
      return fail(str("the ", inputs - common, " inputs behind the ", common,
                      " shared ones do not form groups of ", n, ", one input per replica"));
    }
    const std::size_t wanted = common + (inputs - common) / n;
    for (std::size_t replica = 0; replica < n && (replica == 0 || inputs > common); ++replica) {
      const auto input_of = [&](std::size_t i) {
        return i < common ? i : common + (i - common) * n + replica;
      };
      if (!takes(0, wanted, input_of)) return;
    }
    const auto* world = node_.find<std::int64_t>("world");
    const bool stands_for_several = n > 1 || (world != nullptr && *world > 1);
    if (const Node* gather = stands_for_several ? gather_of_known_extent(node_.regions()[0]) : nullptr) {
      return fail(str("'", gather->name(),
                      "' inside of it: all_gather gives what all replicas have, which is not known there: ",
                      "its attribute 'replicas' must be 0"));
    }
    const std::size_t results = node_.regions()[0].results().size();
    if (node_.outputs().size() != results * n) {
      fail(str("the region 'replica' gives ", results, " results on each of ", n,
               " replicas; the node states ", node_.outputs().size(), " outputs"));
    }
  }

 private:
  void fail(const std::string& message) {
    check_.fail(str("'", node_.name(), "': ", node_.op().name, ": ", message));
  }
  const TensorSpec& input(std::size_t i) const { return check_.graph.spec(node_.inputs()[i]); }
  static const TensorSpec& parameter(const Graph& region, std::size_t i) {
    return region.spec({region.parameters()[i], 0});
  }

  // Does the region take `count` values, the i-th being the node's input input_of(i)?
  template <class InputOf>
  bool takes(std::size_t index, std::size_t count, InputOf input_of) {
    const Graph& region = node_.regions()[index];
    const std::string label = region_label(node_.op().region_kind, index);
    if (region.parameters().size() != count) {
      fail(str("the region '", label, "' takes ", region.parameters().size(),
               " parameters, the node gives it ", count));
      return false;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const TensorSpec& wanted = parameter(region, i);
      const TensorSpec& value = input(input_of(i));
      if (wanted.may_equal(value)) continue;
      fail(str("parameter ", i, " of the region '", label, "' is ", wanted, ", the node gives it ", value));
      return false;
    }
    return true;
  }

  static std::string specs_of_results(const Graph& region) {
    if (region.results().empty()) return "nothing";
    std::string specs;
    for (const ValueId value : region.results()) specs += str(specs.empty() ? "" : ", ", region.spec(value));
    return specs;
  }

  NodeCheck& check_;
  const Node& node_;
};

// Checks the merge calls of a graph and of its regions, as code of that many replicas; 0: of none.
void check_merge_calls(GraphCheck& check, const Graph& graph, std::int64_t replicas) {
  for (const NodeId id : graph.region_owners()) {
    const Node& node = graph.node(id);
    const std::int64_t* own = node.find<std::int64_t>("replicas");
    std::int64_t inside = replicas;
    if (node.op().region_kind == RegionKind::kReplicated) {
      if (own == nullptr) continue;
      inside = *own;
    } else if (node.op().region_kind == RegionKind::kNone && has(node.op().effects, Effect::kCollective)) {
      inside = 0;
      if (replicas == 0) {
        check.fail_at(node, str("'", node.name(), "': ", node.op().name,
                                " stands outside of a replicated region: only replicas can leave their code "
                                "together"));
      } else if (own != nullptr && *own != replicas) {
        check.fail_at(node,
                      str("'", node.name(), "': ", node.op().name, " is for ", *own,
                          *own == 1 ? " replica" : " replicas", ", and the region around it for ", replicas));
      }
    }
    for (const Graph& region : node.regions()) check_merge_calls(check, region, inside);
  }
}

}  // namespace

void merge_calls(GraphCheck& check) {
  if (check.holder == nullptr) check_merge_calls(check, check.graph, 0);
}

void region_count(NodeCheck& check) {
  const Node& node = check.node;
  if (!node.op().known || node.regions().size() == node.op().regions) return;
  check.fail(str("'", node.name(), "': ", node.op().name, " has ", node.op().regions,
                 node.op().regions == 1 ? " region, got " : " regions, got ", node.regions().size()));
}

void region_signature(NodeCheck& check) {
  if (check.node.op().region_kind == RegionKind::kNone || !check.sound || !check.regions_sound) return;
  Signature signature(check);
  switch (check.node.op().region_kind) {
    case RegionKind::kCond: return signature.check_cond();
    case RegionKind::kWhile: return signature.check_while();
    case RegionKind::kReplicated: return signature.check_replicated();
    case RegionKind::kNone: return;
  }
}

}  // namespace lockstep::internal::verifier
